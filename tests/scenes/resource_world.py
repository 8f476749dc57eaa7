"""A machine with huge pages and devices, configurations and pods for plans."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold import CPUSet, NodeConfig, Planner, Quantity, parse_short_form
from pinfold.core.devices.devices import Device, DeviceInventory, DeviceResource
from pinfold.core.machine.machine import HugepagePool, Machine
from pinfold.core.pod.pod import Container, Pod

GPU: Final = "example.com/gpu"
NIC: Final = "example.com/nic"
GIB: Final = 1 << 30


def machine(form: str = "2s4c2t@16Gi", pages: int = 4) -> Machine:
    """A machine with 1 GiB pages at every NUMA node."""
    plain = parse_short_form(form)
    pools = {GIB: HugepagePool(pages, pages)}
    nodes = tuple(replace(node, hugepages=pools) for node in plain.numa_nodes)
    whole = pages * len(nodes)
    return replace(plain, numa_nodes=nodes, hugepages={GIB: HugepagePool(whole, whole)})


def static(**more: Any) -> NodeConfig:
    """Both static policies, with 1 GiB reserved at node 0."""
    base: dict[str, Any] = {
        "cpu_manager_policy": "static",
        "reserved_system_cpus": CPUSet([0]),
        "topology_manager_policy": "single-numa-node",
        "memory_manager_policy": "Static",
        "eviction_hard": {},
        "system_reserved": {"memory": Quantity.parse("1Gi")},
        "reserved_memory": ({"numaNode": 0, "limits": {"memory": Quantity.parse("1Gi")}},),
    }
    return NodeConfig(**{**base, **more})


def listed(**resources: list[tuple[int, ...]]) -> DeviceInventory:
    """Resource -> NUMA nodes of its devices, which are called gpu-0 and so on."""
    return {
        f"example.com/{name}": DeviceResource(
            f"example.com/{name}",
            {f"{name}-{n}": Device(f"{name}-{n}", numa_nodes=at) for n, at in enumerate(places)},
        )
        for name, places in resources.items()
    }


FOUR = listed(gpu=[(0,), (0,), (1,), (1,)], nic=[(0,), (1,)])


def container(name: str, **limits: str) -> Container:
    names = {"gpu": GPU, "nic": NIC, "pages": "hugepages-1Gi"}
    amounts = {names.get(key, key): Quantity.parse(value) for key, value in limits.items()}
    return Container(name, amounts, amounts)


def pod(name: str, *containers: Container, init: tuple[Container, ...] = ()) -> Pod:
    return Pod(uid=f"uid-{name}", name=name, containers=containers, init_containers=init)


def one(name: str, **limits: str) -> Pod:
    return pod(name, container("main", **limits))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Planner, list[Pod]]:
    """A machine of 1 to 4 NUMA nodes with devices, some configuration, and some pods."""
    nodes = draw(st.integers(1, 4))
    per_node = st.lists(
        st.sampled_from([(), *((node,) for node in range(nodes)), (0, nodes - 1)]), max_size=5
    )
    devices = listed(gpu=draw(per_node), nic=draw(per_node))
    policy = draw(st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]))
    config = static(
        topology_manager_policy=policy,
        topology_manager_scope=draw(st.sampled_from(["container", "pod"])),
    )
    if draw(st.booleans()):
        config = replace(config, memory_manager_policy="None", reserved_memory=())
    planner = Planner(machine(f"1s{nodes}n{4 * nodes}c2t@12Gi"), config, devices=devices)
    amounts = st.fixed_dictionaries(
        {},
        optional={
            "cpu": st.sampled_from(["1", "2", "4", "500m"]),
            "memory": st.sampled_from(["1Gi", "3Gi", "7Gi", "10Gi"]),
            "pages": st.sampled_from(["1Gi", "3Gi", "6Gi"]),
            "gpu": st.sampled_from(["1", "2", "3"]),
            "nic": st.sampled_from(["1", "2"]),
        },
    )
    pods = []
    for number in range(draw(st.integers(1, 5))):
        asked = draw(st.lists(amounts, min_size=1, max_size=3))
        containers = [container(f"c{n}", **limits) for n, limits in enumerate(asked)]
        inits = draw(st.integers(0, len(containers) - 1))
        pods.append(pod(f"p{number}", *containers[inits:], init=tuple(containers[:inits])))
    return planner, pods
