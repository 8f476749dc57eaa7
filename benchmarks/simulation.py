"""Workloads of the simulator: the cost of a placement, whatever the size of the fleet.

A call is one placement of a run, with all that belongs to it: the scheduler's choice, the node's
answer, refusals, and the ends of pods.  What a run needs before its first event is not in it, but
in the rows ``simulate.azure2017...``, which are whole runs.  ``python -m benchmarks.simulation``
prints placements a second, and the memory of a fleet of 100,000 nodes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from benchmarks import calibration
from benchmarks.agent_scene import NotHereError
from benchmarks.calibration import REFERENCE_NS
from benchmarks.measure import Result
from pinfold.adapters.traces.azure2017 import Azure2017
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.simulation.engine import Engine, simulate
from pinfold.planning.simulation.experiment.specification import FleetKind, RunSpec
from pinfold.planning.simulation.experiment.synthetic import (
    LifetimeLaw,
    SyntheticArrivals,
    WeightedSize,
)
from pinfold.ports.arrivals import ArrivalSource, PodSize

FLEETS: Final = (100, 1_000, 10_000, 100_000)
A_NODE: Final = 4
"""Arrivals for each node of these, of which half the fleet is full at the end."""
ARRIVALS: Final = 40_000
"""Of the other runs: pods leave as fast as they come once four fifths are full."""
TRACES: Final = Path(__file__).parents[2] / "shared" / "traces"
"""Where the public trace may be."""
_GIB: Final = 1 << 30
_SIZES: Final = tuple(
    WeightedSize(weight, PodSize(1000 * cpus, 2 * cpus * _GIB))
    for weight, cpus in ((8, 1), (6, 2), (4, 4), (2, 8), (1, 16))
)
_MEAN_CPUS: Final = 76 / 21
_STATIC: Final = NodeConfig(
    cpu_manager_policy="static", reserved_system_cpus=CPUSet([0, 64]), max_pods=250
)
_RESTRICTED: Final = NodeConfig(
    cpu_manager_policy="static",
    reserved_system_cpus=CPUSet([0, 1]),
    topology_manager_policy="restricted",
    max_pods=250,
)


def filling(nodes: int) -> RunSpec:
    """Nodes that all get as many pods, of sizes four times as large, and keep most of them."""
    sizes = tuple(
        WeightedSize(one.weight, PodSize(4 * one.size.cpu_milli, one.size.memory)) for one in _SIZES
    )
    come = A_NODE * nodes
    # Who comes in the first half has ended by then with a chance of one in three.
    source = SyntheticArrivals(3600.0, sizes, LifetimeLaw("exponential", 2.0 * come), None)
    return of(source, "2s32c2t@512Gi", nodes, _STATIC, come)


def full(machine: str, nodes: int, config: NodeConfig) -> RunSpec:
    """A fleet that pods fill to four fifths, and go on coming and going."""
    cpus = len(parse_short_form(machine).online) * nodes
    source = SyntheticArrivals(
        3600.0, _SIZES, LifetimeLaw("exponential", 0.8 * cpus / _MEAN_CPUS), None
    )
    return of(source, machine, nodes, config, ARRIVALS)


def of(
    source: ArrivalSource, machine: str, nodes: int, config: NodeConfig, arrivals: int | None
) -> RunSpec:
    """One kind of nodes."""
    kinds = (FleetKind("node", parse_short_form(machine), nodes),)
    return RunSpec("measured", config, kinds, source, stop_arrivals=arrivals)


def placement(spec: RunSpec) -> int:
    """Make the run; the nanoseconds of CPU time of one placement."""
    engine = Engine(spec)
    start = time.process_time_ns()
    engine.go()
    return (time.process_time_ns() - start) // max(1, engine.series.totals["placed"])


def whole_trace(config: NodeConfig) -> int:
    """Simulate all of the azure2017 trace's test part; the nanoseconds of CPU time."""
    if not (TRACES / "azure2017.v1.test.txt.xz").is_file():
        raise NotHereError(f"the trace azure2017 is not in {TRACES}")
    source = Azure2017(str(TRACES))
    spec = of(source, "2s32c2t@512Gi", 440, config, None)
    start = time.process_time_ns()
    simulate(spec)
    return time.process_time_ns() - start


def _once(call: Callable[[], int]) -> Result:
    took = call()
    return Result(took, took, 1, 1, min(calibration.loop() for _ in range(5)))


_OPTIONS: Final = {
    "static": _STATIC,
    "whole-cores": replace(_STATIC, cpu_manager_policy_options={"full-pcpus-only": "true"}),
    "restricted": replace(_STATIC, topology_manager_policy="restricted"),
    "single-numa-node": replace(_STATIC, topology_manager_policy="single-numa-node"),
}
MEASURED: Final[dict[str, Callable[[], Result]]] = {
    **{
        f"simulate.nodes.{nodes}": partial(
            lambda nodes: _once(partial(placement, filling(nodes))), nodes
        )
        for nodes in FLEETS
    },
    "simulate.static-full": lambda: _once(partial(placement, full("2s32c2t@512Gi", 200, _STATIC))),
    "simulate.restricted-8n": lambda: _once(
        partial(placement, full("2s4n8c2t@64Gi", 200, _RESTRICTED))
    ),
    **{
        f"simulate.azure2017.{name}": partial(
            lambda config: _once(partial(whole_trace, config)), config
        )
        for name, config in _OPTIONS.items()
    },
}


def memory() -> int:
    """The most memory that a process had that ran 100,000 nodes; bytes."""
    command = [sys.executable, "-m", "benchmarks.simulation", "--nodes"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(told.stdout)


def _main() -> None:
    if sys.argv[1:] == ["--nodes"]:
        Engine(filling(100_000)).go()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return
    print(f"memory at 100,000 nodes: {memory() / 2**20:.0f} MiB")
    for name, measured in MEASURED.items():
        try:
            result = measured()
        except NotHereError as error:
            print(f"{name:<32} left out: {error}", flush=True)
            continue
        here = result.min_ns * REFERENCE_NS / result.calibration_ns
        if name.startswith("simulate.azure2017."):
            print(f"{name:<32}{result.min_ns / 1e9:6.1f} s {here / 1e9:6.1f} s", flush=True)
        else:
            print(f"{name:<32}{1e9 / result.min_ns:9,.0f}/s {1e9 / here:9,.0f}/s", flush=True)


if __name__ == "__main__":
    _main()
