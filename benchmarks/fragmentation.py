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
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from benchmarks.fragmentation_plot import as_svg
from pinfold.adapters.traces.azure2017 import Azure2017
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.simulation.engine import simulate
from pinfold.planning.simulation.experiment.specification import FleetKind, Retry, RunSpec
from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.moving import Moves
from pinfold.planning.simulation.fleet.nodes import FleetNode, RefusedBy
from pinfold.planning.simulation.fleet.shapes import PodShape
from pinfold.planning.simulation.observers.observer import Observer
from pinfold.ports.arrivals import Arrival, ArrivalSource, PodSize

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

    came: float
    counts: bool
    split_since: float | None = None


class Fragments(Observer):
    """Counts what happens in a run; nobody tries twice.

    Args:
        figures: where it is counted.
        warm_up: how many pods that find room by their number of CPUs are not counted.
    """

    def __init__(self, figures: Figures, warm_up: int = WARM_UP) -> None:
        self.figures = figures
        self._uncounted = warm_up
        self._running: dict[int, _Running] = {}

    def placed(self, at: float, pod: int, attempt: int, node: FleetNode, answer: Answer) -> None:
        """The node let a pod in."""
        del attempt, node
        one = self._running[pod] = _Running(at, self._comes())
        self._see(one, answer, at)

    def refused(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        """The node refused a pod, or had too few CPUs: then nobody would have sent it."""
        del at, pod, attempt, shape
        if by is not None:
            self.figures.rejected += self._comes()

    def ended(self, at: float, pod: int, node: FleetNode, answer: Answer) -> None:
        """A pod ended."""
        del node, answer
        self._count(self._running.pop(pod), at)

    def moved(self, moves: Moves) -> None:
        """Pods moved."""
        if not self._uncounted:
            self.figures.moves += len(moves.moved)
            self.figures.moved_cpus += moves.cpus
        for moved in moves.moved:
            self._see(self._running[moved.pod], moved.after, moves.at)

    def finish(self, at: float) -> None:
        """Count those who are there at the end."""
        for one in self._running.values():
            self._count(one, at)

    def _comes(self) -> bool:
        """Whether a pod that comes now counts."""
        if self._uncounted:
            self._uncounted -= 1
            return False
        self.figures.arrivals += 1
        return True

    def _see(self, one: _Running, answer: Answer, at: float) -> None:
        if not answer.is_split:
            self._whole_again(one, at)
        elif one.split_since is None:
            one.split_since = at

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


class Stream(Struct, frozen=True):
    """Pods of a trace, or all of one number of CPUs; they ask for next to no memory."""

    trace: ArrivalSource
    cpus: int | None = None

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """See :class:`pinfold.ports.arrivals.ArrivalSource`."""
        sizes: dict[int, PodSize] = {}
        for one in self.trace.arrivals(seed):
            milli = one.size.cpu_milli if self.cpus is None else 1000 * self.cpus
            size = sizes.setdefault(milli, PodSize(milli, 1 << 20))
            yield one._replace(size=size)


def run_of(
    stream: ArrivalSource, numa_nodes: int, topology_manager: str, *, dynamic: bool, seed: int = 1
) -> RunSpec:
    """One node; who is refused does not come again."""
    options = DynamicOptions(
        rebalance_period="5m", make_room=True, moves_per_hour=3600, most_moved=MOST_MOVED
    )
    config = NodeConfig(
        cpu_manager_policy="dynamic" if dynamic else "static",
        topology_manager_policy=topology_manager,
        reserved_system_cpus=_RESERVED,
        max_pods=250,
        eviction_hard={},
        own=OwnPolicies(dynamic=options),
    )
    kinds = (FleetKind("node", parse_short_form(MACHINES[numa_nodes]), 1),)
    return RunSpec(
        config.cpu_manager_policy, config, kinds, stream, retry=Retry(limit=0), seed=seed
    )


def counted(spec: RunSpec, numa_nodes: int, warm_up: int = WARM_UP) -> Figures:
    """Make a run, and count after the first pods have filled the node."""
    manager = spec.config.topology_manager_policy
    figures = Figures(numa_nodes, manager, spec.configuration)
    fragments = Fragments(figures, warm_up)
    fragments.finish(simulate(spec, (fragments,), worst=0).run.until)
    return figures


def together(each: Sequence[Figures], pods: str) -> Figures:
    """The figures of several nodes added up, and what pods they had."""
    names = ("arrivals", "rejected", "split", "split_hours", "hours", "moves", "moved_cpus")
    sums = {name: sum(getattr(one, name) for one in each) for name in names}
    return replace(each[0], pods=pods, **sums)


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
    seeds = range(given.seed, given.seed + given.nodes)
    scenes = [(m, p, d) for m in MACHINES for p in POLICIES for d in (False, True)]
    print(HEADER)
    found: list[Figures] = []
    for pods, stream, some in (
        ("of the trace", Stream(trace), scenes),
        ("2 CPUs each", Stream(trace, 2), scenes[3:4] + scenes[-1:]),
    ):
        for numa_nodes, manager, dynamic in some:
            each = [
                counted(run_of(stream, numa_nodes, manager, dynamic=dynamic, seed=seed), numa_nodes)
                for seed in seeds
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
