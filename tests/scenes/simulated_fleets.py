"""Fleets, kubelets and arrivals for simulations: written down by hand, or drawn by hypothesis."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import Any, Final, Literal

from hypothesis import strategies as st
from msgspec import Struct

from pinfold import CPUSet, NodeConfig, Quantity, named_version, parse_short_form
from pinfold.core.devices.devices import Device, DeviceInventory, DeviceResource
from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies, SMTIsolate
from pinfold.core.machine.machine import Machine
from pinfold.core.pod.pod import QOSClass
from pinfold.planning.simulation.experiment.specification import (
    FleetKind,
    Guarantee,
    Retry,
    RunSpec,
    Scheduling,
)
from pinfold.ports.arrivals import Arrival, PodSize

DEVICE: Final = "example.com/nic"
MIB: Final = 1 << 20
GIB: Final = 1 << 30
_SCORERS: Final[tuple[Literal["LeastAllocated", "MostAllocated", "TopologyAware"], ...]] = (
    "LeastAllocated",
    "MostAllocated",
    "TopologyAware",
)
_GATES: Final = {"CPUManagerPolicyAlphaOptions": True, "TopologyManagerPolicyAlphaOptions": True}
_SHORT_FORMS: Final = (
    "2s4c2t",
    "2s8c2t@64Gi",
    "2s2n4c2t@4Gi",
    "1s2c2t",
    "1s4l8c1t@half",
    "2s2c1t@2Gi",
    "2s4c2t@half@3Gi",
    "2s3c2t",
    "2s6c2t@24Gi",
    "4s2n2c2t@half@2Gi",
)
_CPU_OPTIONS: Final = (
    "full-pcpus-only",
    "distribute-cpus-across-numa",
    "distribute-cpus-across-cores",
    "align-by-socket",
    "strict-cpu-reservation",
    "prefer-align-cpus-by-uncorecache",
)
_CONFLICTS: Final = (
    {"full-pcpus-only", "distribute-cpus-across-cores"},
    {"distribute-cpus-across-numa", "distribute-cpus-across-cores"},
    {"distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache"},
    {"distribute-cpus-across-cores", "prefer-align-cpus-by-uncorecache"},
)


class ListedArrivals(Struct, frozen=True):
    """Arrivals that are written down: the same for every seed."""

    every: tuple[Arrival, ...]

    def arrivals(self, seed: int) -> Iterator[Arrival]:  # noqa: ARG002 - as the port has it
        """Yield them."""
        return iter(self.every)


def machines(*odd: Machine) -> st.SearchStrategy[Machine]:
    """Small machines of all kinds, and as often these."""
    small = st.sampled_from(_SHORT_FORMS).map(parse_short_form)
    return st.one_of(small, st.sampled_from(odd)) if odd else small


def devices_of(machine: Machine) -> DeviceInventory:
    """Two devices at each NUMA node, and one that is nowhere."""
    places = [node.id for node in machine.numa_nodes for _ in range(2)]
    devices = [Device(f"d{place}", numa_nodes=(node,)) for place, node in enumerate(places)]
    devices.append(Device("nowhere"))
    return {DEVICE: DeviceResource(DEVICE, {one.id: one for one in devices})}


@st.composite
def kinds(draw: st.DrawFn, every: st.SearchStrategy[Machine]) -> tuple[FleetKind, ...]:
    """One to three kinds of machines, of one to three nodes each."""
    found = []
    for place in range(draw(st.integers(1, 3))):
        machine = draw(every)
        devices = devices_of(machine) if draw(st.booleans()) else {}
        found.append(FleetKind(f"kind{place}", machine, draw(st.integers(1, 3)), devices))
    return tuple(found)


@st.composite
def _options(draw: st.DrawFn) -> dict[str, str]:
    chosen = draw(st.sets(st.sampled_from(_CPU_OPTIONS)))
    for one, other in _CONFLICTS:
        if {one, other} <= chosen:
            chosen -= {other}
    return dict.fromkeys(sorted(chosen), "true")


@st.composite
def configs(draw: st.DrawFn) -> NodeConfig:
    """Settings of kubelets, and of agents that isolate from SMT; some fit no machine."""
    given: dict[str, Any] = {
        "feature_gates": _GATES,
        "max_pods": draw(st.sampled_from([110, 110, 110, 3])),
    }
    version = named_version(draw(st.sampled_from(["1.34", "1.35", "1.36"]))).version
    reserved = CPUSet(draw(st.sampled_from([(0,), (0, 1), (3,), (0, 2)])))
    given |= {"kubelet_version": version, "reserved_system_cpus": reserved}
    policy = draw(st.sampled_from(["static", "static", "configurable", "dynamic", "none"]))
    given["cpu_manager_policy"] = policy
    if policy != "none":
        given["cpu_manager_policy_options"] = draw(_options())
    if policy == "configurable":
        given["own"] = OwnPolicies(smt_isolate=SMTIsolate(draw(st.booleans())))
    if policy == "dynamic":
        dynamic = DynamicOptions(draw(st.sampled_from(["never", "5s"])), make_room=True)
        smt = SMTIsolate(draw(st.sampled_from([False, False, True])))
        given["own"] = OwnPolicies(dynamic=dynamic, smt_isolate=smt)
    topology = draw(
        st.sampled_from(["none", "best-effort", "restricted", "restricted", "single-numa-node"])
    )
    given["topology_manager_policy"] = topology
    given["topology_manager_scope"] = draw(st.sampled_from(["container", "pod"]))
    if topology in {"best-effort", "restricted"} and draw(st.booleans()):
        given["topology_manager_policy_options"] = {"prefer-closest-numa-nodes": "true"}
    if draw(st.booleans()):
        limits = {"memory": Quantity.parse("100Mi")}
        given |= {
            "memory_manager_policy": "Static",
            "reserved_memory": ({"numaNode": 0, "limits": limits},),
        }
    return NodeConfig(**given)


def _size(chance: random.Random) -> PodSize:
    cpu = chance.choice([0, 250, 1500, 3000, 6000, *[1000] * 4, *[2000] * 4, *[4000] * 2])
    memory = chance.choice([0, 3 * GIB, *[64 * MIB] * 4, *[GIB] * 4])
    devices = chance.choice([0, 0, 0, 1, 2])
    qos = chance.choice([None, *QOSClass])
    return PodSize(cpu, memory, ((DEVICE, devices),) if devices else (), qos)


@st.composite
def arrivals(draw: st.DrawFn) -> ListedArrivals:
    """Pods of few sizes, more than there is room for; many things happen at the same moment."""
    # Drawn from one number: hypothesis by itself tries short lists, in which nothing happens.
    chance = random.Random(draw(st.integers(0, 1 << 32)))  # noqa: S311 - no secret
    sizes = [_size(chance) for _ in range(chance.randint(1, 6))]
    if chance.random() < 0.1:
        sizes.append(PodSize(20_000, 1000 * GIB))
    lives = [0.0, 1.0, 2.0, 5.0, 5.0, 9.0, 9.0, 20.0, 50.0, *[inf] * (chance.random() < 0.3)]
    gaps = chance.choice([(0.0, 1.0), (0.0, 1.0, 2.0, 0.5), (0.0, 2.0, 3.0, 7.0)])
    found, at = [], float(chance.randint(0, 3))
    for _ in range(draw(st.sampled_from([80, 40, 20, 3, 0]))):
        found.append(Arrival(at, chance.choice(lives), chance.choice(sizes)))
        at += chance.choice(gaps)
    return ListedArrivals(tuple(found))


@st.composite
def run_specs(draw: st.DrawFn, *odd: Machine) -> RunSpec:
    """Whole runs, on odd machines beside the small ones; every decision is made once more."""
    return RunSpec(
        configuration="drawn",
        config=draw(configs()),
        kinds=draw(kinds(machines(*odd))),
        arrivals=draw(arrivals()),
        guarantee=Guarantee(
            draw(st.sampled_from(["whole", "all", "whole", "whole", "traced", "none"])),
            multiple_of=draw(st.sampled_from([1, 1, 2])),
            share=draw(st.sampled_from([1.0, 1.0, 0.5])),
        ),
        scheduling=Scheduling(draw(st.sampled_from(_SCORERS)), draw(st.integers(1, 4))),
        retry=Retry(draw(st.sampled_from([0.0, 1.0, 3.5])), draw(st.integers(0, 3))),
        seed=draw(st.integers(1, 3)),
        warm_up=draw(st.sampled_from([0.0, 0.0, 4.0, 1000.0])),
        stop_after=draw(st.sampled_from([inf, inf, inf, 15.0, 0.0])),
        stop_arrivals=draw(st.sampled_from([None, None, None, 12])),
        replay_every=1,
    )
