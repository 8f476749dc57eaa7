"""One run: pods come, are sent to nodes, are let in or refused, and end.

A run is one after the other and the same every time.  At one moment pods end before others come,
and those that come again do so before new ones.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.capacity import PODS
from pinfold.core.pod.pod import CPU, MEMORY
from pinfold.documents.simulation.results import Run
from pinfold.planning.simulation.experiment.specification import RunSpec
from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.moving import Moves, Moving
from pinfold.planning.simulation.fleet.nodes import FleetNode, NodeModel, RefusedBy
from pinfold.planning.simulation.fleet.shapes import PodShape, Shapes
from pinfold.planning.simulation.observers.figures import Counts, Gauges, Series
from pinfold.planning.simulation.observers.fitting import Fitting, Period
from pinfold.planning.simulation.observers.observer import Observer
from pinfold.planning.simulation.observers.worst import MOST, WorstDecisions
from pinfold.planning.simulation.scheduling.node_index import Capacity, NodeIndex, Want
from pinfold.ports.arrivals import TraceError

UNSCHEDULABLE: Final = "Unschedulable"
"""The reason where no node has room for a pod, or none that ``TopologyAware`` asks lets it in."""

_LOOK_EVERY: Final = 2048
"""Events between two looks at whether to go on."""

_MOST_ARRIVALS: Final = 50_000_000
"""Of one run: they take 24 bytes each."""

GoOn = Callable[[float, int], bool]
"""Told the share of the run that is done, and how many pods were placed; False: stop."""


class StoppedError(Exception):
    """A run was told to stop before it began."""


class Arrivals(Struct):
    """All arrivals of a run, by the number of the pod: when, for how long, and of which shape.

    ``until`` is when the run ends: where it is stopped, else with the last arrival.
    """

    at: array[float]
    lifetime: array[float]
    shape: array[int]
    shapes: list[PodShape]
    until: float = 0.0

    @classmethod
    def of(cls, spec: RunSpec, go_on: Callable[[], bool] = lambda: True) -> Arrivals:
        """Read them, up to where the run stops; the first one comes at 0.

        Args:
            spec: what is to be run.
            go_on: asked every few thousand arrivals.

        Raises:
            TraceError: the trace cannot be read, or there is no end of it.
            StoppedError: ``go_on`` said no.
        """
        shapes = Shapes(spec.guarantee, spec.seed)
        found = cls(array("d"), array("d"), array("L"), shapes.every)
        most = inf if spec.stop_arrivals is None else spec.stop_arrivals
        first: float | None = None
        for at, lifetime, size in spec.arrivals.arrivals(spec.seed):
            first = at if first is None else first
            read = len(found.at)
            if read >= most:
                break
            if read >= _MOST_ARRIVALS:
                raise TraceError(
                    f"more than {_MOST_ARRIVALS:,} pods come within {at - first:g} s of time; have "
                    "the experiment stop earlier, or take a share of them"
                )
            if read % _LOOK_EVERY == 0 and not go_on():
                raise StoppedError
            if at - first > spec.stop_after:
                found.until = spec.stop_after
                break
            found.until = at - first
            found.at.append(at - first)
            found.lifetime.append(lifetime)
            found.shape.append(shapes.of(size).number)
        return found


class Simulated(Struct, frozen=True):
    """A run that has ended, and the fleet as it is then."""

    run: Run
    nodes: list[FleetNode]


class Engine:
    """One run; see :func:`simulate`."""

    def __init__(
        self,
        spec: RunSpec,
        observers: Iterable[Observer] = (),
        arrivals: Arrivals | None = None,
        *,
        fits: bool = True,
    ) -> None:
        self.spec = spec
        self.observers = tuple(observers)
        self.arrivals = Arrivals.of(spec) if arrivals is None else arrivals
        self.models: list[NodeModel] = []
        self.nodes: list[FleetNode] = []
        for kind in spec.kinds:
            first = len(self.nodes)
            model = NodeModel(kind, spec.config, first)
            self.models.append(model)
            self.nodes += [FleetNode(first + place, model) for place in range(kind.count)]
        self._index, self._wants = self._scheduler()
        self.counts, self.gauges = Counts(), Gauges(self.models, spec.warm_up)
        at = self.arrivals.at
        self.until = self.arrivals.until
        self.series = Series(self.until)
        self._counted_from = len(at)
        for pod, moment in enumerate(at):
            if moment >= spec.warm_up:
                self._counted_from = pod
                break
        # A run that is interrupted has looked less often.
        shapes, period = self.arrivals.shapes, Period(spec.warm_up, self.until)
        numbers = self.arrivals.shape[self._counted_from :] if fits else ()
        each = [shapes[number] for number in numbers]
        self._fitting = Fitting(self.nodes, each, period, spec.seed)
        self._ends: list[tuple[float, int, int]] = []
        self._again: deque[tuple[float, int, int]] = deque()
        dynamic = spec.config.dynamic
        self._moving = (
            None
            if dynamic is None
            else Moving(dynamic, self.nodes, lambda: self.gauges.now, self._moved)
        )
        self._decisions = 0

    def _scheduler(self) -> tuple[NodeIndex, list[Want]]:
        shapes, spec = self.arrivals.shapes, self.spec
        names = sorted({name for shape in shapes for name, _ in shape.size.extended})
        capacities = []
        for model in self.models:
            has = model.allocatable()
            extended = tuple(has.get(name, 0) for name in names)
            capacities.append(Capacity(has.get(CPU, 0), has.get(MEMORY, 0), extended, has[PODS]))
        chance = random.Random(f"{spec.seed}/scheduler")  # noqa: S311 - the same every time
        counts = [kind.count for kind in spec.kinds]
        scorer = spec.scheduling.scorer
        index = NodeIndex(
            capacities,
            counts,
            "MostAllocated" if scorer == "MostAllocated" else "LeastAllocated",
            chance,
        )
        wants = []
        for shape in shapes:
            asked = dict(shape.size.extended)
            extended = tuple(asked.get(name, 0) for name in names)
            wants.append(Want.of(shape.size.cpu_milli, shape.size.memory, extended))
        return index, wants

    def go(self, go_on: GoOn | None = None) -> bool:
        """Have it all happen; False: it was told to stop before the end."""
        at, again, ends = self.arrivals.at, self._again, self._ends
        last, pod, events = len(at), 0, 0
        moving = self._moving
        while True:
            coming = at[pod] if pod < last else inf
            back = again[0][0] if again else inf
            over = ends[0][0] if ends else inf
            moment = min(coming, back, over)
            if moving is not None:
                moment = min(moment, moving.due)
            if moment > self.until or moment == inf:
                break
            if moment > self.series.due:
                self.series.note_before(moment, self.gauges)
            if moment > self._fitting.due:
                self._fitting.look_before(moment)
            self.gauges.advance(moment)
            if over <= moment:
                _, ended, node = heappop(ends)
                self._end(moment, ended, node)
            elif moving is not None and moving.due <= moment:
                moving.rebalance()
            elif back <= moment:
                _, waiting, attempt = again.popleft()
                self.counts.waiting -= waiting >= self._counted_from
                self._try(moment, waiting, attempt)
            else:
                self.counts.arrived += pod >= self._counted_from
                self.series.totals["arrived"] += 1
                self._try(moment, pod, 1)
                pod += 1
            events += 1
            if go_on is not None and events % _LOOK_EVERY == 0:
                done = moment / self.until if self.until else 1.0
                if not go_on(done, self.series.totals["placed"]):
                    self.until = moment
                    return False
        self.gauges.advance(self.until)
        self.series.note_before(inf, self.gauges)
        self._fitting.look_before(inf)
        return True

    def _try(self, at: float, pod: int, attempt: int) -> None:
        shape = self.arrivals.shapes[self.arrivals.shape[pod]]
        want = self._wants[shape.number]
        found = self._find(want, shape)
        if found is None:
            self._refuse(at, pod, attempt, shape, None)
            return
        number, answer = found
        node = self.nodes[number]
        moving = self._moving
        if not answer.admitted and moving is not None and moving.make_room(node, shape):
            answer = self._answer(node, shape)
        if not answer.admitted:
            self._refuse(at, pod, attempt, shape, (node, answer))
            return
        node.take(pod, answer)
        self._index.take(number, want)
        self.gauges.changed(node, answer, 1)
        self.series.totals["placed"] += 1
        if moving is not None:
            moving.changed.add(number)
        if pod >= self._counted_from:
            self.counts.placed(answer, attempt)
        ends = at + self.arrivals.lifetime[pod]
        if ends <= self.until:
            heappush(self._ends, (ends, pod, number))
        for observer in self.observers:
            observer.placed(at, pod, attempt, node, answer)

    def _find(self, want: Want, shape: PodShape) -> tuple[int, Answer] | None:
        """The node that the scheduler sends a pod to, and what it answers; None: it finds none."""
        scheduling = self.spec.scheduling
        if scheduling.scorer != "TopologyAware":
            number = self._index.choose(want)
            return None if number is None else (number, self._answer(self.nodes[number], shape))
        best: tuple[int, Answer] | None = None
        for number in islice(self._index.candidates(want), scheduling.candidates):
            answer = self._answer(self.nodes[number], shape)
            if not answer.admitted:
                continue
            if best is None or answer.beyond < best[1].beyond:
                best = number, answer
            if not answer.is_spread:
                break
        return best

    def _answer(self, node: FleetNode, shape: PodShape) -> Answer:
        answer = node.model.answer(node, shape)
        self._decisions += 1
        if self._decisions % self.spec.replay_every == 0:
            self.counts.replayed += 1
            self.counts.different += not node.model.is_as_decided(node, shape, answer)
        return answer

    def _moved(self, moves: Moves) -> None:
        self.gauges.moved(moves)
        self.series.totals["moved"] += len(moves.moved)
        if moves.at >= self.spec.warm_up:
            self.counts.carried_out(moves)
        for observer in self.observers:
            observer.moved(moves)

    def _refuse(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        reason = UNSCHEDULABLE if by is None else by[1].reason
        counts, counted = self.counts, pod >= self._counted_from
        gives_up = attempt > self.spec.retry.limit
        if counted:
            counts.refusals[reason] += 1
            if gives_up:
                counts.rejected_by[reason] += 1
            else:
                counts.waiting += 1
        self.series.totals["refused"] += 1
        if gives_up:
            self.series.totals["rejected"] += 1
        else:
            self._again.append((at + self.spec.retry.backoff, pod, attempt + 1))
        for observer in self.observers:
            observer.refused(at, pod, attempt, shape, by)
            if gives_up:
                observer.rejected(at, pod, shape, reason)

    def _end(self, at: float, pod: int, number: int) -> None:
        node = self.nodes[number]
        answer = node.give(pod)
        self._index.give(number, self._wants[answer.shape.number])
        self.gauges.changed(node, answer, -1)
        self.series.totals["ended"] += 1
        if self._moving is not None:
            self._moving.changed.add(number)
        if pod >= self._counted_from:
            self.counts.running -= 1
            self.counts.ended += 1
        for observer in self.observers:
            observer.ended(at, pod, node, answer)

    def result(self, *, complete: bool) -> Run:
        """What was counted."""
        counts, spec = self.counts, self.spec
        return Run(
            configuration=spec.configuration,
            seed=spec.seed,
            nodes={kind.name: kind.count for kind in spec.kinds},
            complete=complete,
            until=self.until,
            counted_from=min(spec.warm_up, self.until),
            fates=counts.fates(),
            averages=self.gauges.averages(),
            spread=counts.spread(),
            fits=self._fitting.found(),
            moves=counts.moves(),
            replayed=counts.replays(),
            series=self.series.columns,
        )


def simulate(  # noqa: PLR0913 - a run, and what is made of it
    spec: RunSpec,
    observers: Iterable[Observer] = (),
    go_on: GoOn | None = None,
    *,
    worst: int = MOST,
    fits: bool = True,
    arrivals: Arrivals | None = None,
) -> Simulated:
    """Simulate one configuration with one seed.

    Args:
        spec: all that the run needs.
        observers: who is told of each event.
        go_on: asked every few thousand events; where it says no, the run ends as it is then.
        worst: how many of the worst decisions are told of; 0: nobody looks for them.
        fits: whether it is looked at how much of what is free could be used.
        arrivals: the run's own, where somebody has read them already.

    Raises:
        NodeError: a kubelet with this configuration would not start on one of the machines.
        MachineError: a kubelet would see no CPU.
        TraceError: the trace cannot be read.
    """
    kept = WorstDecisions(spec.warm_up)
    engine = Engine(spec, (*observers, kept) if worst else observers, arrivals, fits=fits)
    run = engine.result(complete=engine.go(go_on))
    return Simulated(replace(run, worst=kept.found(worst)), engine.nodes)
