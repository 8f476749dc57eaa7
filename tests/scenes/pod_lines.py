"""Arrivals for a small simulation as a test writes them down: when, for how long, how many CPUs.

Each has 1 GiB of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from hypothesis import strategies as st

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.simulation.experiment.specification import FleetKind, Retry, RunSpec
from pinfold.ports.arrivals import Arrival, PodSize
from tests.scenes.simulated_fleets import GIB, ListedArrivals

PodLine = tuple[float, float, int]
"""When a pod comes, for how long, and how many CPUs it asks for."""


CROWDS: Final[st.SearchStrategy[tuple[PodLine, ...]]] = st.lists(
    st.tuples(st.integers(0, 300), st.integers(10, 60), st.sampled_from([1, 2, 2, 3, 3, 4])),
    min_size=12,
    max_size=40,
).map(lambda some: tuple(sorted((float(a), float(b), c) for a, b, c in some)))
"""So many in five minutes that eight CPUs are nearly full, and fragmented."""


def small_config(topology: str = "none", **other: Any) -> NodeConfig:
    """The policy static, if nothing else is said; CPU 0 is reserved."""
    said = {"cpu_manager_policy": "static", **other}
    return NodeConfig(
        topology_manager_policy=topology,
        reserved_system_cpus=CPUSet([0]),
        eviction_hard={},
        **said,
    )


def listed(lines: Iterable[PodLine]) -> ListedArrivals:
    """A source of such arrivals."""
    return ListedArrivals(tuple(Arrival(at, life, PodSize(n * 1000, GIB)) for at, life, n in lines))


def small_run(
    lines: Sequence[PodLine],
    config: NodeConfig,
    machine: str = "2s4c1t@16Gi",
    nodes: int = 1,
    **other: Any,
) -> RunSpec:
    """A run in which every decision is made twice, and nobody who is refused tries again."""
    said = {"retry": Retry(limit=0), "replay_every": 1, **other}
    kinds = (FleetKind("node", parse_short_form(machine), nodes),)
    return RunSpec("tested", config, kinds, listed(lines), **said)
