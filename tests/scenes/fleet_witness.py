"""Whoever watches a simulated fleet and believes nothing that it says of itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from pinfold.admission.admission import NodeState, decide
from pinfold.admission.capacity import PODS, amounts
from pinfold.admission.decision import Decision
from pinfold.admission.settling import release, settle
from pinfold.core.pod.pod import CPU, MEMORY, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.simulation.engine import UNSCHEDULABLE, Engine
from pinfold.planning.simulation.experiment.specification import RunSpec
from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.moving import Moves
from pinfold.planning.simulation.fleet.nodes import FleetNode, RefusedBy
from pinfold.planning.simulation.fleet.shapes import CONTAINER, PodShape
from pinfold.planning.simulation.observers.observer import Observer
from pinfold.planning.simulation.scheduling.node_index import Want


class FleetWitness(Observer):
    """Keeps books of its own of every node, by the planner's own steps, and compares at each event.

    ``states`` is what the planner makes of each node: every pod is decided about from the whole
    state, and settled, as ``pinfold plan`` does it.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.engine = Engine(spec, [self])
        self.states: dict[int, NodeState] = {
            node.number: node.model.planner.empty for node in self.engine.nodes
        }
        self.running: dict[int, tuple[FleetNode, Pod, int]] = {}
        self.waiting: set[int] = set()
        self.fates = Counter[str]()
        self.refusals = Counter[str]()
        self.decisions = 0
        self.story: list[Any] = []
        """When, what and who; and of what else it tells."""

    def placed(self, at: float, pod: int, attempt: int, node: FleetNode, answer: Answer) -> None:
        """It has to be what the planner decides, on CPUs that nobody has."""
        self.story.append((at, "placed", pod, attempt, node.name, answer.claim))
        assert pod not in self.running
        self.waiting.discard(pod)
        decision = self._as_planned(pod, node, answer)
        assert decision.admitted
        # The ledger refuses a CPU with two owners, and one that is reserved.
        self.states[node.number] = settle(self.states[node.number], decision)
        self.running[pod] = node, decision.pod, answer.claim
        self._compare(node, at)

    def refused(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        """It has to be what the planner decides; or no node has room for it."""
        reason = UNSCHEDULABLE if by is None else by[1].reason
        self.story.append((at, "refused", pod, attempt, by and by[0].name, reason))
        assert shape is self.engine.arrivals.shapes[self.engine.arrivals.shape[pod]]
        assert pod not in self.running
        if pod >= self._first:
            self.refusals[reason] += 1
        if by is None:
            self._no_room(pod)
        else:
            assert not self._as_planned(pod, *by).admitted
            smt = by[0].model.node.smt
            # The scheduler has the kubelet's own sums, but for siblings that stay idle.
            assert not reason.startswith("OutOf") or (smt is not None and smt.isolates_all)
        if attempt <= self.engine.spec.retry.limit:
            self.waiting.add(pod)
            self._conserved(at)
        else:
            # The next that is told of it.
            self.waiting.discard(pod)

    def rejected(self, at: float, pod: int, shape: PodShape, reason: str) -> None:
        """It is in no other state."""
        self.story.append((at, "rejected", pod, shape.size, reason))
        assert pod not in self.running
        assert pod not in self.waiting
        self.fates["rejected"] += pod >= self._first
        self._conserved(at)

    def ended(self, at: float, pod: int, node: FleetNode, answer: Answer) -> None:
        """What it had is free."""
        self.story.append((at, "ended", pod, node.name, answer.claim))
        where, its_pod, claim = self.running.pop(pod)
        assert where is node
        assert answer.claim == claim
        self.states[node.number] = release(self.states[node.number], its_pod)
        self.fates["ended"] += pod >= self._first
        self._compare(node, at)

    def moved(self, moves: Moves) -> None:
        """All who move let go first, then each has its new CPUs, which nobody else has."""
        self.story.append((moves.at, "moved", *(one.pod for one in moves.moved)))
        number = moves.node.number
        before = ledger = self.states[number].ledger
        for one in moves.moved:
            ledger = ledger.without(str(one.pod))
        for one in moves.moved:
            where, its_pod, claim = self.running[one.pod]
            assert where is moves.node
            assert one.before.claim == claim
            assert one.after.claim.bit_count() == claim.bit_count()
            claims = {CONTAINER: CPUSet.from_mask(one.after.claim)}
            ledger = ledger.with_pod(str(one.pod), claims, before.idle.get(str(one.pod)))
            self.running[one.pod] = where, its_pod, one.after.claim
        self.states[number] = replace(self.states[number], ledger=ledger)
        # A pod for which room is made is on its way.
        self._compare(moves.node, moves.at, settled=moves.why == "rebalance")

    @property
    def _first(self) -> int:
        """The number of the first pod that is counted."""
        at, warm_up = self.engine.arrivals.at, self.engine.spec.warm_up
        return sum(one < warm_up for one in at)

    def _as_planned(self, pod: int, node: FleetNode, answer: Answer) -> Decision:
        newcomer = replace(answer.shape.pod, uid=str(pod))
        planner = node.model.planner
        decision = decide(planner.node, self.states[node.number], newcomer)
        given = decision.allocations.get(CONTAINER)
        claim = 0 if given is None else given.claim.mask
        idle = None if given is None or given.idle is None else given.idle.mask
        assert answer.shape is self.engine.arrivals.shapes[self.engine.arrivals.shape[pod]]
        assert (answer.admitted, answer.reason, answer.message, answer.claim, answer.idle) == (
            decision.admitted,
            decision.reason or "",
            decision.message or "",
            claim,
            idle,
        )
        assert answer.blocks == decision.memory.get(CONTAINER, ())
        assert answer.devices == decision.devices.get(CONTAINER, {})
        self.decisions += 1
        return decision

    def _compare(self, node: FleetNode, at: float, *, settled: bool = True) -> None:
        """The node, the scheduler and the gauges say what the planner's state says."""
        state, said = self.states[node.number], node.state()
        assert said.ledger == state.ledger
        assert node.free == state.ledger.default.mask
        assert said.memory == state.memory
        assert said.devices.allocations == state.devices.allocations
        drop = {name: count for name, count in state.requested.items() if count}
        assert {name: count for name, count in said.requested.items() if count} == drop
        assert said.pods == state.pods == len(node.pods)
        self._owned_once(node)
        self._within(node, state)
        self._gauges()
        if settled:
            self._conserved(at)

    def _owned_once(self, node: FleetNode) -> None:
        policy, taken = node.model.node.cpu_policy, 0
        for answer in node.pods.values():
            assert not taken & answer.claim
            taken |= answer.claim
        assert not taken & node.free
        if policy is not None:
            assert not taken & policy.reserved.mask

    def _within(self, node: FleetNode, state: NodeState) -> None:
        has = node.model.allocatable()
        assert state.pods <= has[PODS]
        assert all(count <= has.get(name, 0) for name, count in state.requested.items())

    def _no_room(self, pod: int) -> None:
        """No node has room by the sums; a scheduler that asks nodes may find none for all that."""
        engine = self.engine
        if engine.spec.scheduling.scorer == "TopologyAware":
            return
        shape = engine.arrivals.shapes[engine.arrivals.shape[pod]]
        wants = amounts(shape.pod)
        for node in engine.nodes:
            state, has = self.states[node.number], node.model.allocatable()
            fits = state.pods < has[PODS] and all(
                state.requested.get(name, 0) + count <= has.get(name, 0)
                for name, count in wants.items()
            )
            assert not fits, f"{node.name} has room for {shape.size}"

    def _gauges(self) -> None:
        engine, states = self.engine, self.states
        gauges = engine.gauges
        assert gauges.running == len(self.running)
        pods = [amounts(one) for _, one, _ in self.running.values()]
        assert gauges.requested == sum(one.get(CPU, 0) for one in pods)
        assert gauges.exclusive == sum(one.bit_count() for _, _, one in self.running.values())
        free = idle = stranded = 0
        for node in engine.nodes:
            policy, ledger = node.model.node.cpu_policy, states[node.number].ledger
            mask = 0 if policy is None else (policy.assignable & ledger.default).mask
            free += mask.bit_count()
            idle += self._idle_sockets(node)
            stranded += node.model.stranded(mask)
        assert (gauges.free, gauges.idle_sockets, gauges.stranded) == (free, idle, stranded)
        assert gauges.busy == sum(one.pods > 0 for one in states.values())

    def _idle_sockets(self, node: FleetNode) -> int:
        """Those on which nobody owns a CPU, where nobody shares."""
        there = [claim for where, _, claim in self.running.values() if where is node]
        if not all(there):
            return 0
        owned = 0
        for claim in there:
            owned |= claim
        sockets = node.model.planner.view.topology.sockets.values()
        return sum(not socket & owned for socket in sockets)

    def _conserved(self, at: float) -> None:
        counts = self.engine.counts
        fates = counts.fates()
        assert fates.arrived == fates.running + fates.ended + fates.rejected + fates.waiting
        first, moments = self._first, self.engine.arrivals.at
        assert fates.running == sum(pod >= first for pod in self.running)
        assert fates.waiting == sum(pod >= first for pod in self.waiting)
        assert (fates.ended, fates.rejected) == (self.fates["ended"], self.fates["rejected"])
        assert fates.refusals == self.refusals
        came = sum(one < at for one in moments[first:])
        assert came <= fates.arrived <= sum(one <= at for one in moments[first:])

    def check_scheduler(self) -> None:
        """The scheduler believes that each node has just as much room as the planner's state has.

        It draws from what the engine draws from; so this is for when a run is over.
        """
        engine = self.engine
        index = engine._index  # noqa: SLF001 - what it believes, asked as an outsider
        names = sorted({name for one in engine.arrivals.shapes for name, _ in one.size.extended})
        for node in engine.nodes:
            state, has = self.states[node.number], node.model.allocatable()
            left = {name: has.get(name, 0) - state.requested.get(name, 0) for name in has}

            def offered(number: int, **want: int) -> bool:
                extended = tuple(want.get(name, 0) for name in names)
                asked = Want.of(want.get(CPU, 0), want.get(MEMORY, 0), extended)
                return number in index.candidates(asked)

            assert offered(node.number) == (state.pods < has[PODS])
            if state.pods < has[PODS]:
                for name in (CPU, MEMORY, *names):
                    assert offered(node.number, **{name: left.get(name, 0)})
                    assert not offered(node.number, **{name: left.get(name, 0) + 1})
