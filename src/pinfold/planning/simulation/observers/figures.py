"""What is counted while a run goes on: what became of the pods, means over time, and series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from pinfold.documents.simulation.results import Averages, Fates, Moves, Replayed, Spread
from pinfold.planning.simulation.fleet.answer import BEYOND, Answer
from pinfold.planning.simulation.fleet.moving import Moves as Carried
from pinfold.planning.simulation.fleet.nodes import FleetNode, NodeModel

MOMENTS: Final = 240
"""Points of a series."""

_GAUGES: Final = (
    "runningPods",
    "requestedCPUs",
    "exclusiveCPUs",
    "freeCPUs",
    "strandedCPUs",
    "idleSockets",
    "busyNodes",
    "splitContainers",
)
_COUNTERS: Final = ("arrived", "placed", "refused", "rejected", "ended", "moved")


class Gauges:
    """Sums over the fleet as they are now, and their means over time.

    CPUs are whole but for those requested, which are milli-CPUs.
    """

    def __init__(self, models: Sequence[NodeModel], counted_from: float) -> None:
        self.now = 0.0
        self._from = counted_from
        self.running = self.requested = self.exclusive = self.busy = 0
        self.free = self.idle_sockets = self.stranded = self.split = 0
        for model in models:
            node = FleetNode(model.first, model)
            count = model.kind.count
            self.free += count * model.free_cpus(node.free)
            self.idle_sockets += count * model.idle_sockets(node)
            self.stranded += count * model.stranded(node.free)
        self.allocatable = sum(
            model.allocatable().get("cpu", 0) * model.kind.count for model in models
        )
        self._sums = [0.0] * 7

    def advance(self, at: float) -> None:
        """Let time pass, with all as it is now."""
        since = max(self.now, self._from)
        if at > since:
            passed = at - since
            sums = self._sums
            sums[0] += passed * self.requested
            sums[1] += passed * self.exclusive
            sums[2] += passed * self.free
            sums[3] += passed * self.stranded
            sums[4] += passed * self.idle_sockets
            sums[5] += passed * self.busy
            sums[6] += passed * self.split
        self.now = at

    def changed(self, node: FleetNode, answer: Answer, sign: int) -> None:
        """A pod came (1) to a node, or went (-1); the node is as it is then."""
        self.running += sign
        self.requested += sign * answer.shape.size.cpu_milli
        if sign > 0:
            self.busy += len(node.pods) == 1
        else:
            self.busy -= not node.pods
        if answer.claim:
            count = answer.claim.bit_count()
            self.exclusive += sign * count
            self.free -= sign * count
            if answer.beyond[0]:
                self.split += sign
        self.looked_at(node)

    def moved(self, moves: Carried) -> None:
        """Pods of a node have other CPUs, and as many."""
        self.split += sum(one.after.is_split - one.before.is_split for one in moves.moved)
        self.looked_at(moves.node)

    def looked_at(self, node: FleetNode) -> None:
        """Count anew what of a node's free CPUs is stranded, and which of its sockets are idle."""
        model = node.model
        idle, stranded = model.idle_sockets(node), model.stranded(node.free)
        self.idle_sockets += idle - node.idle_sockets
        self.stranded += stranded - node.stranded
        node.idle_sockets, node.stranded = idle, stranded

    def values(self) -> tuple[float, ...]:
        """As they are now, in the order of the series."""
        return (
            self.running,
            self.requested / 1000,
            self.exclusive,
            self.free,
            self.stranded,
            self.idle_sockets,
            self.busy,
            self.split,
        )

    def averages(self) -> Averages:
        """The means from the end of the warm-up until now; as they are now, where that is later."""
        span = self.now - self._from
        if span > 0:
            requested, *others = (one / span for one in self._sums)
        else:
            requested, others = self.requested, [self.exclusive, *self.values()[3:]]
        exclusive, free, stranded, idle, busy, split = others
        return Averages(
            allocatable_cpus=self.allocatable / 1000,
            requested_cpus=requested / 1000,
            exclusive_cpus=exclusive,
            free_cpus=free,
            stranded_cpus=stranded,
            idle_sockets=idle,
            busy_nodes=busy,
            split_containers=split,
        )


class Counts:
    """What became of the pods that came after the warm-up; and all that a series counts."""

    def __init__(self) -> None:
        self.arrived = self.ended = self.running = self.waiting = 0
        self.placed_at = Counter[int]()
        self.rejected_by = Counter[str]()
        self.refusals = Counter[str]()
        self.numa_nodes = Counter[int]()
        self.sockets = Counter[int]()
        self.caches = Counter[int]()
        self.beyond = [0] * len(BEYOND)
        self.made_room = self.rebalances = self.moved = self.moved_cpus = self.moved_memory = 0
        self.replayed = self.different = 0

    def placed(self, answer: Answer, attempt: int) -> None:
        """A pod was let in at its nth attempt."""
        self.running += 1
        self.placed_at[attempt] += 1
        if not answer.claim:
            return
        self.numa_nodes[answer.numa_nodes] += 1
        self.sockets[answer.sockets] += 1
        self.caches[answer.caches] += 1
        if answer.is_spread:
            for place, more in enumerate(answer.beyond):
                self.beyond[place] += more > 0

    def carried_out(self, moves: Carried) -> None:
        """A plan of moves was carried out."""
        self.made_room += moves.why == "makeRoom"
        self.rebalances += moves.why == "rebalance"
        self.moved += len(moves.moved)
        self.moved_cpus += moves.cpus
        self.moved_memory += moves.memory_bytes

    def fates(self) -> Fates:
        """What became of the pods."""
        return Fates(
            arrived=self.arrived,
            running=self.running,
            ended=self.ended,
            rejected=self.rejected_by.total(),
            waiting=self.waiting,
            placed_at={str(n): count for n, count in sorted(self.placed_at.items())},
            rejected_by=dict(sorted(self.rejected_by.items())),
            refusals=dict(sorted(self.refusals.items())),
        )

    def spread(self) -> Spread:
        """Over how much of a machine the containers are."""
        return Spread(
            numa_nodes=_by_number(self.numa_nodes),
            sockets=_by_number(self.sockets),
            caches=_by_number(self.caches),
            beyond=dict(zip(BEYOND, self.beyond, strict=True)),
        )

    def moves(self) -> Moves:
        """What was moved."""
        return Moves(
            made_room=self.made_room,
            rebalances=self.rebalances,
            containers=self.moved,
            cpus=self.moved_cpus,
            memory_bytes=self.moved_memory,
        )

    def replays(self) -> Replayed:
        """The decisions that were made once more."""
        return Replayed(decisions=self.replayed, different=self.different)


class Series:
    """The gauges at moments that are evenly apart, and how much was counted until then.

    What happens at such a moment is in it.
    """

    def __init__(self, until: float) -> None:
        self._moments = [*(until * place / MOMENTS for place in range(1, MOMENTS)), until]
        self._next = 0
        self.due = self._moments[0]
        self.totals = dict.fromkeys(_COUNTERS, 0)
        self.columns: dict[str, list[float]] = {name: [] for name in ("time", *_GAUGES, *_COUNTERS)}

    def note_before(self, at: float, gauges: Gauges) -> None:
        """Note all moments before a time, at which all is as it is now."""
        while self.due < at:
            self._note(self.due, gauges)
            self._next += 1
            self.due = self._moments[self._next] if self._next < MOMENTS else float("inf")

    def _note(self, moment: float, gauges: Gauges) -> None:
        self.columns["time"].append(moment)
        for name, value in zip(_GAUGES, gauges.values(), strict=True):
            self.columns[name].append(value)
        for name, total in self.totals.items():
            self.columns[name].append(total)


def _by_number(counts: Counter[int]) -> dict[str, int]:
    return {str(number): count for number, count in sorted(counts.items())}
