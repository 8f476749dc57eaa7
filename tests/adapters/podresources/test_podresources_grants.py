"""Devices and memory in podresources: from what a manager has given to the bytes of the wire."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.podresources import podresources_v1alpha1_pb2 as v1alpha1
from pinfold.adapters.podresources import serve_pod_resources
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.state import DeviceState
from pinfold.node.observation.pod_resources import ManagedPodResources, allocatable_resources
from pinfold.ports.podresources import ContainerDevices, ContainerMemory
from tests.scenes.manager_harness import ALL_MANAGERS, STATIC, Harness, manifest, run_virtually
from tests.scenes.podresources_world import LISTER, Reader, fields, numbers, reading

GPU = "example.com/gpu"
NIC = "example.com/nic"
USB = "example.com/usb"
MIB = 1 << 20
GIB = 1 << 30


def node_with_devices() -> Harness:
    node = Harness(machine="2s2c2t", config=ALL_MANAGERS)
    node.plugins.put_devices(
        GPU, *(Device(f"g{n}", numa_nodes=(n % 2,)) for n in (10, 2)), Device("g1", healthy=False)
    )
    node.plugins.put_devices(
        NIC, Device("bond", numa_nodes=(1, 0)), Device("odd", numa_nodes=(-1,))
    )
    node.plugins.put_devices(USB, Device("u"))
    return node


def test_devices_and_memory_of_a_container() -> None:
    async def scenario() -> None:
        node = node_with_devices()
        source = ManagedPodResources((await node.start()).books)
        more = {GPU: "1", NIC: "1", USB: "1"}
        document = manifest("app", "1", more=more, init=("1",))
        small = {"cpu": "1", "memory": "1Mi"}
        document["spec"]["initContainers"][0]["resources"] = {"limits": small, "requests": small}
        await node.admit(document, wait=False)
        (pod,) = source.pods()
        (container,) = pod.containers
        given = node.books.view.pods.active["uid-app"].record.devices["c0"]
        (gpu,) = given[GPU].ids
        assert container.devices == (
            ContainerDevices(GPU, (gpu,), (0,)),
            # A device near two nodes is told of twice, as the kubelet does.
            ContainerDevices(NIC, ("bond",), (1,)),
            ContainerDevices(NIC, ("bond",), (0,)),
            ContainerDevices(USB, ("u",), None),
        )
        assert container.memory == (ContainerMemory("memory", 64 * MIB, (0,)),)
        assert source.pod("default", "app") == pod
        await node.manager.release("app")
        assert source.pods() == ()
        await node.kill()

    run_virtually(scenario())


def test_a_pod_that_has_ended_has_nothing() -> None:
    async def scenario() -> None:
        node = node_with_devices()
        source = ManagedPodResources((await node.start()).books)
        record = await node.admit(manifest("app", "99", more={USB: "1"}))
        assert record.reason
        pod = source.pod("default", "app")
        assert pod is not None
        assert (pod.containers[0].devices, pod.containers[0].memory) == ((), ())
        await node.kill()

    run_virtually(scenario())


def test_devices_stay_told_of_when_they_fail_or_their_plugin_goes() -> None:
    async def scenario() -> None:
        node = node_with_devices()
        source = ManagedPodResources((await node.start()).books)
        await node.admit(manifest("app", "1", more={GPU: "1"}), wait=False)
        (before,) = source.pods()
        assert before.containers[0].devices[0].numa_nodes == (0,)
        node.plugins.disconnect(GPU)
        await node.health.take(node.plugins.inventory())
        assert source.pods() == (before,)
        assert not [d for d in source.allocatable().devices if d.resource_name == GPU]
        # The plugin is given up: what it said last of its devices still holds.
        left = {n: r for n, r in node.plugins.inventory().items() if n != GPU}
        await node.health.take(left)
        await node.health.take({})
        assert source.pods() == (before,)
        assert source.allocatable().devices == ()
        await node.kill()

    run_virtually(scenario())


def test_what_may_be_given() -> None:
    async def scenario() -> None:
        node = node_with_devices()
        manager = await node.start()
        found = ManagedPodResources(manager.books).allocatable()
        assert found.devices == (
            ContainerDevices(GPU, ("g2",), (0,)),
            ContainerDevices(GPU, ("g10",), (0,)),
            ContainerDevices(NIC, ("bond",), (1,)),
            ContainerDevices(NIC, ("bond",), (0,)),
            ContainerDevices(NIC, ("odd",), None),
            ContainerDevices(USB, ("u",), None),
        )
        sizes = {n: node.view.memory[n] for n in (0, 1)}
        assert found.memory == (
            ContainerMemory("memory", sizes[0] - GIB, (0,)),
            ContainerMemory("memory", sizes[1], (1,)),
        )
        # What is in use may be given all the same: it is no count of what is free.
        await node.admit(manifest("app", "1", more={GPU: "1"}), wait=False)
        assert ManagedPodResources(manager.books).allocatable() == found
        await node.kill()

    run_virtually(scenario())


def test_without_a_memory_manager_there_is_no_memory_to_tell_of() -> None:
    async def scenario() -> None:
        node = Harness(config=replace(STATIC))
        source = ManagedPodResources((await node.start()).books)
        await node.admit(manifest("app", "1"), wait=False)
        assert source.allocatable().memory == ()
        assert source.pods()[0].containers[0].memory == ()
        await node.kill()

    run_virtually(scenario())


def test_the_bytes_on_the_socket(tmp_path: Path) -> None:
    """The whole way, over gRPC, read without our definitions."""

    async def scenario() -> None:
        node = node_with_devices()
        source = ManagedPodResources((await node.start()).books)
        await node.admit(manifest("app", "1", more={NIC: "1", USB: "1"}))
        path, stop, ready = tmp_path / "s", asyncio.Event(), asyncio.Event()
        server = asyncio.create_task(serve_pod_resources(source, path, stop=stop, ready=ready))
        await ready.wait()
        async with reading(path) as reader:
            await check_list(reader)
            await check_allocatable(reader, node.view.memory[0])
            await check_alpha(reader)
        stop.set()
        await server
        await node.manager.release("app")
        await node.kill()

    asyncio.run(scenario())


async def check_list(reader: Reader) -> None:
    raw = await reader.raw(LISTER + "List")
    one = await reader.raw(LISTER + "Get", b"\x0a\x03app\x12\x07default")
    assert raw == one, "both are one message in field 1"
    ((_, pod),) = fields(raw)
    assert fields(pod)[:2] == [(1, b"app"), (2, b"default")]
    container = fields(fields(pod)[2][1])
    assert [number for number, _ in container] == [1, 2, 2, 2, 3, 4]
    assert [value for number, value in container if number == 2] == [
        b"\x0a\x0fexample.com/nic\x12\x04bond\x1a\x04\x0a\x02\x08\x01",
        b"\x0a\x0fexample.com/nic\x12\x04bond\x1a\x02\x0a\x00",
        b"\x0a\x0fexample.com/usb\x12\x01u",
    ]
    assert len(numbers(container[4][1])) == 1
    # memory, 64 Mi, NUMA node 0
    assert container[5][1] == b"\x0a\x06memory\x10\x80\x80\x80\x20\x1a\x02\x0a\x00"


async def check_allocatable(reader: Reader, memory: int) -> None:
    found = fields(await reader.raw(LISTER + "GetAllocatableResources"))
    assert [number for number, _ in found] == [1] * 6 + [2] + [3] * 2
    assert found[0][1] == b"\x0a\x0fexample.com/gpu\x12\x02g2\x1a\x02\x0a\x00"
    assert fields(found[7][1]) == [(1, b"memory"), (2, memory - GIB), (3, b"\x0a\x00")]
    assert fields(found[8][1])[2] == (3, b"\x0a\x02\x08\x01")


async def check_alpha(reader: Reader) -> None:
    raw = await reader.raw("/v1alpha1.PodResourcesLister/List")
    (pod,) = v1alpha1.ListPodResourcesResponse.FromString(raw).pod_resources
    devices = [(d.resource_name, list(d.device_ids)) for d in pod.containers[0].devices]
    # It has no topology; an entry for each node it is all the same, as with the kubelet.
    assert devices == [(NIC, ["bond"]), (NIC, ["bond"]), (USB, ["u"])]


def test_ten_thousand_devices_fit_into_an_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Harness(machine="2s2c2t", config=ALL_MANAGERS)
        node.plugins.put_devices(
            GPU, *(Device(f"device-{n}", numa_nodes=(n % 2,)) for n in range(10_000))
        )
        source = ManagedPodResources((await node.start()).books)
        path, stop, ready = tmp_path / "s", asyncio.Event(), asyncio.Event()
        server = asyncio.create_task(serve_pod_resources(source, path, stop=stop, ready=ready))
        await ready.wait()
        async with reading(path) as reader:
            found = await reader.allocatable()
        assert len(found.devices) == 10_000
        assert found.devices[-1].device_ids == ["device-9999"]
        stop.set()
        await server
        await node.kill()

    asyncio.run(scenario())


def test_a_refusal_is_no_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_with_devices()
        source = ManagedPodResources((await node.start()).books)
        path, stop, ready = tmp_path / "s", asyncio.Event(), asyncio.Event()
        server = asyncio.create_task(serve_pod_resources(source, path, stop=stop, ready=ready))
        await ready.wait()
        async with reading(path) as reader:
            with pytest.raises(grpc.aio.AioRpcError, match="pod nobody in namespace default"):
                await reader.get("default", "nobody")
        stop.set()
        await server
        await node.kill()

    asyncio.run(scenario())


DEVICES = st.dictionaries(
    st.sampled_from([f"d{n}" for n in range(12)]),
    st.tuples(st.booleans(), st.lists(st.integers(-1, 3), max_size=3, unique=True)),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(listed=DEVICES, held=st.sets(st.sampled_from([f"d{n}" for n in range(12)]), max_size=5))
def test_each_healthy_device_is_told_of_once_for_each_node(
    listed: dict[str, tuple[bool, list[int]]], held: set[str]
) -> None:
    resource = DeviceResource(
        GPU, {i: Device(i, healthy=ok, numa_nodes=tuple(n)) for i, (ok, n) in listed.items()}
    )
    state = DeviceState({GPU: resource})
    if held:
        state = state.with_pod("u", {"c": {GPU: held}})

    async def scenario() -> None:
        node = Harness()
        manager = await node.start()
        told = allocatable_resources(
            manager.books.view.node, replace(manager.books.view.state, devices=state)
        ).devices
        await node.kill()
        expected: set[tuple[str, tuple[int, ...] | None]] = set()
        for device_id, (healthy, nodes) in listed.items():
            if healthy:
                expected |= {(device_id, (n,)) for n in nodes if n >= 0} or {(device_id, None)}
        assert {(d.device_ids[0], d.numa_nodes) for d in told} == expected
        assert len(told) == len(expected)

    run_virtually(scenario())
