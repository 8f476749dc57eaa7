"""Node status with devices, memory and huge pages: in total as the kubelet has it, and by zone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.node_status import node_resource_topology, node_status
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Machine
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.memory.memory import Block, MemoryState
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from tests.scenes.manager_harness import ALL_MANAGERS, Harness, manifest, run_virtually
from tests.scenes.memory_scene import GIB, MIB, TOPOLOGY, conform, machine_with_pages
from tests.scenes.published_schemas import node_status_document
from tests.scenes.web_world import served

GPU = "example.com/gpu"
NIC = "example.com/nic"
USB = "example.com/usb"


def document(node: Harness) -> dict[str, Any]:
    machine = parse_short_form(node.machine)
    manager = node.manager
    status = node_status(
        machine, node.view, node.config, manager.books.view.node, manager.books.view.state
    )
    conform(node_resource_topology(status, "n"), TOPOLOGY)
    return node_status_document(status)


def with_devices() -> Harness:
    node = Harness(machine="2s2c2t", config=ALL_MANAGERS)
    near = Device("g0", numa_nodes=(0,)), Device("g1", numa_nodes=(1,))
    node.plugins.put_devices(GPU, *near, Device("g2", healthy=False, numa_nodes=(1,)))
    node.plugins.put_devices(NIC, Device("bond", numa_nodes=(0, 1)))
    node.plugins.put_devices(USB, Device("u"))
    return node


def amounts(found: dict[str, Any], kind: str) -> dict[str, str]:
    return {name: amount for name, amount in found[kind].items() if "/" in name}


def test_devices_are_counted_as_the_kubelet_counts_them() -> None:
    async def scenario() -> None:
        node = with_devices()
        await node.start()
        found = document(node)
        assert found["memoryManagerPolicy"] == "Static"
        assert amounts(found, "capacity") == {GPU: "3", NIC: "1", USB: "1"}
        assert amounts(found, "allocatable") == {GPU: "2", NIC: "1", USB: "1"}
        assert amounts(found, "requested") == {}
        await node.admit(manifest("app", "1", more={GPU: "1", USB: "1"}), wait=False)
        found = document(node)
        assert amounts(found, "capacity") == {GPU: "3", NIC: "1", USB: "1"}
        assert amounts(found, "allocatable") == {GPU: "2", NIC: "1", USB: "1"}
        assert amounts(found, "requested") == {GPU: "1", USB: "1"}
        assert [zone["resources"].get(GPU) for zone in found["zones"]] == [
            {"capacity": "1", "allocatable": "1", "available": "0"},
            {"capacity": "2", "allocatable": "1", "available": "1"},
        ]
        # In reach of both nodes, it may be taken on either.
        one = {"capacity": "1", "allocatable": "1", "available": "1"}
        assert [zone["resources"].get(NIC) for zone in found["zones"]] == [one, one]
        assert [zone["resources"].get(USB) for zone in found["zones"]] == [None, None]
        await node.kill()

    run_virtually(scenario())


def test_a_plugin_that_goes_takes_allocatable_at_once_and_capacity_when_it_is_given_up() -> None:
    async def scenario() -> None:
        node = with_devices()
        await node.start()
        await node.admit(manifest("app", "1", more={GPU: "1"}), wait=False)
        node.plugins.disconnect(GPU)
        await node.health.take(node.plugins.inventory())
        found = document(node)
        assert (found["capacity"][GPU], found["allocatable"][GPU]) == ("3", "0")
        assert found["zones"][1]["resources"][GPU] == {
            "capacity": "2",
            "allocatable": "0",
            "available": "0",
        }
        await node.health.take({NIC: node.plugins.inventory()[NIC]})
        found = document(node)
        # Both are still named, as in a kubelet's node status: they were a plugin's, and are gone.
        assert amounts(found, "capacity") == {GPU: "0", NIC: "1", USB: "0"}
        assert amounts(found, "allocatable") == {GPU: "0", NIC: "1", USB: "0"}
        assert found["requested"][GPU] == "1"
        assert GPU not in found["zones"][0]["resources"]
        async with node.books.change() as draft:
            draft.node = replace(draft.node, devices_managed=True)
        refused = await node.admit(manifest("late", "1", more={USB: "1"}))
        assert refused.reason == f"OutOf{USB}"
        await node.health.take(node.plugins.inventory())
        assert document(node)["capacity"][USB] == "1"
        await node.kill()

    run_virtually(scenario())


def test_after_a_restart_what_pods_have_is_named_until_the_plugin_is_back() -> None:
    async def scenario() -> None:
        node = with_devices()
        await node.start()
        await node.admit(manifest("app", "1", more={GPU: "1"}))
        await node.kill()
        inventory, node.plugins = node.plugins.inventory(), type(node.plugins)()
        await node.start()
        found = document(node)
        assert (found["capacity"][GPU], found["allocatable"][GPU]) == ("0", "0")
        await node.health.take(inventory)
        assert document(node)["capacity"][GPU] == "3"
        await node.kill()

    run_virtually(scenario())


# ---------------------------------------------------------------------------------- by NUMA node


def state_of(machine: Machine, blocks: Mapping[str, tuple[Block, ...]]) -> dict[str, Any]:
    config = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0]),
        memory_manager_policy="Static",
        kube_reserved={"memory": Quantity.parse("924Mi")},
        reserved_memory=({"numaNode": 0, "limits": {"memory": Quantity.parse("1Gi")}},),
        topology_manager_policy="restricted",
    )
    view = kubelet_view(machine)
    node = build_node(machine, config, view=view)
    state = empty_state(node, view.topology.cpus)
    assert node.memory_policy is not None
    memory = MemoryState.of(node.memory_policy.nodes, {"u": blocks} if blocks else {})
    return node_status_document(
        node_status(machine, view, config, node, replace(state, memory=memory))
    )


def test_memory_and_huge_pages_by_zone() -> None:
    blocks = {"c": (Block((1,), "memory", GIB), Block((1,), "hugepages-2Mi", 64 * MIB))}
    first, second = state_of(machine_with_pages(), blocks)["zones"]
    assert first["resources"] == {
        "cpu": {"capacity": "4", "allocatable": "3", "available": "3"},
        "hugepages-2Mi": {"capacity": "512Mi", "allocatable": "512Mi", "available": "512Mi"},
        # 8Gi less 512Mi of pages and 1Gi that is reserved.
        "memory": {"capacity": "8Gi", "allocatable": "6656Mi", "available": "6656Mi"},
    }
    assert second["resources"] == {
        "cpu": {"capacity": "4", "allocatable": "4", "available": "4"},
        "hugepages-2Mi": {"capacity": "256Mi", "allocatable": "256Mi", "available": "192Mi"},
        "memory": {"capacity": "8Gi", "allocatable": "7936Mi", "available": "6912Mi"},
    }


def test_sizes_without_pages_are_in_no_zone() -> None:
    first, _ = state_of(machine_with_pages((0, 1)), {})["zones"]
    assert first["resources"].keys() == {"cpu", "memory"}


def test_without_a_memory_manager_memory_is_in_no_zone() -> None:
    machine = machine_with_pages()
    config = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
    view = kubelet_view(machine)
    node = build_node(machine, config, view=view)
    found = node_status_document(
        node_status(machine, view, config, node, empty_state(node, view.topology.cpus))
    )
    assert found["memoryManagerPolicy"] == "None"
    assert [zone["resources"].keys() for zone in found["zones"]] == [{"cpu"}, {"cpu"}]
    assert found["capacity"]["hugepages-2Mi"] == "768Mi"


DEVICES = st.dictionaries(
    st.integers(0, 30).map(lambda n: f"d{n}"),
    st.tuples(st.booleans(), st.lists(st.integers(-1, 1), max_size=2, unique=True)),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(listed=DEVICES, held=st.sets(st.integers(0, 30).map(lambda n: f"d{n}")), there=st.booleans())
def test_zones_count_what_counting_by_hand_counts(
    listed: dict[str, tuple[bool, list[int]]], held: set[str], *, there: bool
) -> None:
    devices = {i: Device(i, healthy=ok, numa_nodes=tuple(n)) for i, (ok, n) in listed.items()}
    state = DeviceState({GPU: DeviceResource(GPU, devices, connected=there)})
    if held:
        state = state.with_pod("u", {"c": {GPU: held}})
    machine = parse_short_form("2s2c1t")
    config, view = NodeConfig(), kubelet_view(machine)
    node = build_node(machine, config, view=view)
    empty: NodeState = empty_state(node, view.topology.cpus)
    status = node_status(machine, view, config, node, replace(empty, devices=state))
    healthy = [d for d in devices.values() if d.healthy and there]
    assert status.capacity[GPU].value() == len(devices)
    assert status.allocatable[GPU].value() == len(healthy)
    for zone in status.zones:
        here = [d for d in devices.values() if zone.id in d.numa_nodes]
        free = [d for d in healthy if zone.id in d.numa_nodes and d.id not in held]
        found = zone.resources.get(GPU)
        assert (found is None) == (not here)
        if found is not None:
            assert found.capacity.value() == len(here)
            assert found.allocatable.value() == len([d for d in healthy if d in here])
            assert found.available.value() == len(free)


def test_the_api_tells_of_them(tmp_path: Path) -> None:
    with served(tmp_path / "s", machine="2s2c2t", config=ALL_MANAGERS) as server:
        server.do(lambda: server.node.plugins.put_devices(GPU, Device("g", numa_nodes=(1,))))
        server.call(server.node.health.take(server.node.plugins.inventory()))
        found = server.ask("GET", "/v1/node").json
        assert found["capacity"][GPU] == "1"
        assert found["zones"][1]["resources"][GPU]["available"] == "1"
        assert found["zones"][1]["resources"]["memory"]["available"]
