"""Fragmentation: what a stream of pods leaves of a node, with ``static`` and with ``dynamic``.

    python -m benchmarks.fragmentation FOLDER [--nodes N] [--json FILE] [--svg FILE]

Pods come to a node as long as enough CPUs are free, whatever their place: more a scheduler does not
know.  Under ``single-numa-node`` it is counted how many the node then rejects for topology, under
``best-effort`` how many are spread over more NUMA nodes than they need, and for how long.  With
``dynamic`` the node makes room for who would be rejected, and rebalances every five minutes; a plan
moves four containers at most.  Where all pods are of one size nothing should move.  FOLDER has the
trace azure2017, of which the part ``dev`` is taken (docs/reference/traces.md): each virtual machine
stands for a Guaranteed pod with as many exclusive CPUs.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from benchmarks.fragmentation_plot import as_svg
from pinfold.adapters.traces.azure2017 import Azure2017
from pinfold.admission.admission import decide
from pinfold.admission.moves import with_claims
from pinfold.admission.rebalance import make_room_for, rebalance, who_may_move
from pinfold.admission.settling import release, settle
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.objective import NUMA_NODES, Objective
from pinfold.core.moves.owners import MoveError
from pinfold.core.moves.rebalance import Rebalance, RebalanceOptions
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.planning.planner import Planner
from pinfold.ports.arrivals import Arrival, PodSize

MACHINES: Final = {2: "2s32c2t", 8: "2s4n32c2t"}
"""By their number of NUMA nodes; 128 CPUs both."""
POLICIES: Final = ("single-numa-node", "best-effort")
PERIOD: Final = 300.0
"""Seconds between two rebalances; the trace's own grain."""
MOST_MOVED: Final = 4
"""Containers that one plan may move."""
WARM_UP: Final = 100
"""Arrivals that fill the node, and are not counted."""
_RESERVED: Final = CPUSet([0, 1])


class Figures(Struct):
    """What was counted of nodes of one kind.

    ``split_hours`` and ``hours`` are of containers; ``split`` are those that were spread for longer
    than :data:`PERIOD`, or till their end.
    """

    numa_nodes: int
    topology_manager: str
    policy: str
    pods: str = "of the trace"
    arrivals: int = 0
    rejected: int = 0
    split: int = 0
    split_hours: float = 0.0
    hours: float = 0.0
    moves: int = 0
    moved_cpus: int = 0

    @property
    def moves_per_arrival(self) -> float:
        """How many containers moved for each that came."""
        return self.moves / max(self.arrivals, 1)


class _Running(Struct):
    """A pod that is there; ``split_since`` is None where it needs all NUMA nodes that it has."""

    pod: Pod
    came: float
    counts: bool
    split_since: float | None = None


class FragmentedNode:
    """One node, and what is counted of it."""

    def __init__(self, numa_nodes: int, topology_manager: str, *, dynamic: bool) -> None:
        config = NodeConfig(
            cpu_manager_policy="static",
            topology_manager_policy=topology_manager,
            reserved_system_cpus=_RESERVED,
            max_pods=250,
            eviction_hard={},
        )
        planner = Planner(parse_short_form(MACHINES[numa_nodes]), config)
        self.node, self.state = planner.node, planner.empty
        self.objective = Objective(planner.view.topology, (NUMA_NODES,))
        self.dynamic = dynamic
        self.pods_tried = 0
        self.running: dict[str, _Running] = {}
        self.ends: list[tuple[float, str]] = []
        name = "dynamic" if dynamic else "static"
        self.figures = Figures(numa_nodes, topology_manager, name)
        self.changed = False
        self.counting = False

    @property
    def free(self) -> int:
        """How many CPUs are nobody's, and may be given."""
        return len(self.state.ledger.default - _RESERVED)

    def pass_time(self, until: float, now: float) -> None:
        """Let pods end, and rebalance every period, up to a time."""
        while self.dynamic and (tick := (now // PERIOD + 1) * PERIOD) <= until:
            self._end_until(tick)
            self._rebalance(tick)
            now = tick
        self._end_until(until)

    def _end_until(self, time: float) -> None:
        while self.ends and self.ends[0][0] <= time:
            at, uid = heapq.heappop(self.ends)
            one = self.running.pop(uid)
            self._count(one, at)
            self.state = release(self.state, one.pod)
            self.changed = True

    def _count(self, one: _Running, at: float) -> None:
        if one.counts:
            self.figures.hours += (at - one.came) / 3600
        self._whole_again(one, at, ended=True)

    def _whole_again(self, one: _Running, at: float, *, ended: bool = False) -> None:
        if one.split_since is None:
            return
        if one.counts:
            lasted = at - one.split_since
            self.figures.split_hours += lasted / 3600
            self.figures.split += ended or lasted > PERIOD
        one.split_since = None

    def finish(self, at: float) -> Figures:
        """What was counted, at the end of the stream."""
        for one in self.running.values():
            self._count(one, at)
        return self.figures

    def _options(self) -> RebalanceOptions:
        pods = (one.pod for one in self.running.values())
        asked = who_may_move(self.node, self.state, pods)
        return replace(asked, levels=(NUMA_NODES,), most_moved=MOST_MOVED)

    def _rebalance(self, now: float) -> None:
        split = any(one.split_since is not None for one in self.running.values())
        if not split or not self.changed:
            return
        self.changed = False
        try:
            found = rebalance(self.node, self.state, self._options())
        except MoveError:
            return
        self._moved(found, now)

    def _moved(self, found: Rebalance, now: float) -> None:
        plan = found.plan
        if self.counting:
            self.figures.moves += len(plan.moved)
            end, start = plan.end.placed, plan.start.placed
            self.figures.moved_cpus += sum(len(end[one] - start[one]) for one in plan.moved)
        self.state = replace(self.state, ledger=with_claims(self.state.ledger, plan.end))
        for owner in plan.moved:
            self._see(self.running[owner.pod_uid], now)

    def _see(self, one: _Running, now: float) -> None:
        held = self.state.ledger.assignments[one.pod.uid]["c"]
        if self.objective.score(held.mask)[0]:
            one.split_since = now if one.split_since is None else one.split_since
        else:
            self._whole_again(one, now)

    def come(self, arrival: Arrival) -> None:
        """Try a pod that the scheduler has sent here."""
        self.pods_tried += 1
        pod = _pod(self.pods_tried, arrival.size)
        self.figures.arrivals += self.counting
        decision = decide(self.node, self.state, pod)
        if not decision.admitted and self.dynamic:
            try:
                found = make_room_for(self.node, self.state, pod, self._options())
            except MoveError:
                pass
            else:
                self._moved(found, arrival.at)
                decision = decide(self.node, self.state, pod)
        if not decision.admitted:
            self.figures.rejected += self.counting
            return
        self.state = settle(self.state, decision)
        one = _Running(pod, arrival.at, self.counting)
        self.running[pod.uid] = one
        heapq.heappush(self.ends, (arrival.at + arrival.lifetime, pod.uid))
        self.changed = True
        self._see(one, arrival.at)


def _pod(number: int, size: PodSize) -> Pod:
    both = {"cpu": Quantity(size.cpu_milli, -3), "memory": Quantity(1 << 20)}
    name = f"p{number}"
    return Pod(uid=name, name=name, containers=(Container("c", both, both),))


def together(each: Sequence[Figures], pods: str) -> Figures:
    """The figures of several nodes added up, and what pods they had."""
    names = ("arrivals", "rejected", "split", "split_hours", "hours", "moves", "moved_cpus")
    sums = {name: sum(getattr(one, name) for one in each) for name in names}
    return replace(each[0], pods=pods, **sums)


def simulate(stream: Iterable[Arrival], node: FragmentedNode) -> Figures:
    """Send a stream to a node, and count after the first arrivals have filled it."""
    now, seen = 0.0, 0
    for arrival in stream:
        now = now or arrival.at
        node.pass_time(arrival.at, now)
        now = arrival.at
        if node.free * 1000 < arrival.size.cpu_milli:
            continue
        seen += 1
        node.counting = seen > WARM_UP
        node.come(arrival)
    return node.finish(now)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, print, write; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fragmentation", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the trace is")
    parser.add_argument("--nodes", type=int, default=12, metavar="N", help="each with its share")
    parser.add_argument("--share", type=float, default=0.006, help="of the trace's arrivals")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    trace = Azure2017(str(given.folder), "dev", given.share)
    streams = [list(trace.arrivals(given.seed + n)) for n in range(given.nodes)]
    pair = PodSize(2000, 0)
    alike = [[one._replace(size=pair) for one in stream] for stream in streams]
    scenes = [(m, p, d) for m in MACHINES for p in POLICIES for d in (False, True)]
    print(HEADER)
    found: list[Figures] = []
    for pods, which, some in (
        ("of the trace", streams, scenes),
        ("2 CPUs each", alike, scenes[3:4] + scenes[-1:]),
    ):
        for numa_nodes, manager, dynamic in some:
            each = [
                simulate(one, FragmentedNode(numa_nodes, manager, dynamic=dynamic)) for one in which
            ]
            found.append(together(each, pods))
            print(row(found[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(to_builtins(found), indent=2) + "\n")
    if given.svg:
        given.svg.write_text(as_svg([to_builtins(one) for one in found]))
    return 0


HEADER: Final = (
    "| pods | NUMA nodes | topology manager | policy | arrivals | rejected for topology "
    "| split for over 5 min | container hours split | moves per arrival |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def row(one: Figures) -> str:
    """A line of the table."""
    share = 100 * one.split_hours / max(one.hours, 1e-9)
    return (
        f"| {one.pods} | {one.numa_nodes} | `{one.topology_manager}` | `{one.policy}` "
        f"| {one.arrivals:,} "
        f"| {one.rejected:,} ({100 * one.rejected / max(one.arrivals, 1):.1f} %) "
        f"| {one.split:,} ({100 * one.split / max(one.arrivals, 1):.1f} %) "
        f"| {share:.1f} % | {one.moves_per_arrival:.3f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
