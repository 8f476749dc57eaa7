"""What others are told of a node's devices."""

from __future__ import annotations

from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.devices.classes import DeviceClasses
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.node_devices import devices_of_kubelet, devices_of_state
from pinfold.core.devices.state import DeviceAllocations, DeviceState

GPU, NIC = "nvidia.com/gpu", "example.com/nic"


def listed(*devices: Device, connected: bool = True) -> dict[str, DeviceResource]:
    return {GPU: DeviceResource(GPU, {one.id: one for one in devices}, connected=connected)}


def ids(found: object) -> dict[str, set[str]]:
    assert isinstance(found, dict)
    return {name: set(one.devices) for name, one in found.items()}


def test_healthy_devices_and_those_in_use() -> None:
    near, sick = Device("gpu-0", numa_nodes=(1,)), Device("gpu-1", healthy=False)
    gone = Device("gpu-2", healthy=False)
    state = DeviceState(listed(near, sick, gone)).with_pod("u", {"c": {GPU: ["gpu-2"]}})
    found = devices_of_state(state)
    assert ids(found.inventory) == {GPU: {"gpu-0", "gpu-2"}}
    assert found.inventory[GPU].devices["gpu-0"] == near
    assert found.in_use == {GPU: {"gpu-2"}}
    # A plugin that is away gives nothing, nor one that is given up.
    for one in (
        state.with_inventory(listed(near, gone, connected=False)),
        state.with_inventory({}),
        # Nor one that has not registered since the start.
        DeviceState(allocations=DeviceAllocations({"u": {"c": {GPU: ("gpu-2",)}}})),
    ):
        found = devices_of_state(one)
        assert ids(found.inventory) == {GPU: {"gpu-2"}}
        assert found.in_use == {GPU: {"gpu-2"}}


def test_devices_of_a_kubelet() -> None:
    near = Device("gpu-0", numa_nodes=(1,))
    found = devices_of_kubelet(
        {GPU: [near, Device("gpu-1")]},
        [{GPU: [near]}, {NIC: [Device("nic-9", numa_nodes=(0,))]}, {}],
    )
    assert ids(found.inventory) == {GPU: {"gpu-0", "gpu-1"}, NIC: {"nic-9"}}
    assert found.in_use == {GPU: {"gpu-0"}, NIC: {"nic-9"}}


def test_a_device_near_one_numa_node_says_which() -> None:
    inventory = listed(
        Device("a", numa_nodes=(1,)), Device("b", numa_nodes=(0, 1)), Device("c"), Device("d")
    )
    said = ComputeResource("x", "n", GPU, {"numaNode": "7"}, devices=("d",))
    made = DeviceClasses(described=(said,), node_name="n").compute_resources(inventory)
    assert {one.devices: one.properties for one in made} == {
        ("a",): {"numaNode": "1"},
        ("b", "c"): {},
        ("d",): {"numaNode": "7"},
    }
