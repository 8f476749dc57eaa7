"""Device plugins over real sockets: they register, list, are asked, go and come back."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from pinfold.adapters.deviceplugin import response_of, run_options
from pinfold.adapters.deviceplugin.messages import listing
from pinfold.adapters.deviceplugin.registration_rules import go_quoted
from pinfold.core.devices.devices import (
    Device,
    DeviceMount,
    DeviceNode,
    DeviceRunOptions,
    PreferenceQuestion,
)
from pinfold.core.values.resource_names import is_extended
from pinfold.ports.devices import DevicePluginError
from pinfold.ports.devices import DevicePlugins as Port
from tests.scenes.device_plugin_peer import (
    QUICK,
    WIDGET,
    an_answer,
    list_of,
    scene,
    some_devices,
)
from tests.scenes.waiting import until

# ------------------------------------------------------------------------------------- lists


def test_a_plugin_registers_and_its_devices_are_listed() -> None:
    async def scenario() -> None:
        async with scene() as found:
            port: Port = found.server
            plugin = await found.plugin(some_devices(3))
            plugin.answers["GetDevicePluginOptions"] = pb.DevicePluginOptions(
                pre_start_required=True
            ).SerializeToString()
            await plugin.register()
            await until(port.inventory)
            resource = port.inventory()[WIDGET]
            assert resource.devices == {device.id: device for device in some_devices(3)}
            assert resource.connected
            assert resource.pre_start_required
            assert not resource.preferred_allocation
            # A newer list replaces the one before, health and all.
            plugin.lists([Device("d1", healthy=False), Device("d7")])
            await until(lambda: found.healthy() == ["d7"])
            await until(lambda: found.told[-1] == port.inventory())
            assert found.reports == []

    asyncio.run(scenario())


def test_options_come_from_the_plugin_and_else_from_its_registration() -> None:
    offered = pb.DevicePluginOptions(get_preferred_allocation_available=True)

    async def scenario() -> None:
        async with scene() as found:
            without = await found.plugin([Device("a")])
            await without.register(options=offered)
            await until(found.server.inventory)
            assert found.server.inventory()[WIDGET].preferred_allocation
            asked = await found.plugin([Device("a")], socket="q.sock", resource="example.com/q")
            asked.answers["GetDevicePluginOptions"] = b""
            await asked.register(options=offered)
            await until(lambda: "example.com/q" in found.server.inventory())
            # As with today's kubelet, what it says when it is asked counts.
            assert not found.server.inventory()["example.com/q"].preferred_allocation

    asyncio.run(scenario())


def test_registering_again_replaces_the_socket_without_a_gap() -> None:
    async def scenario() -> None:
        async with scene() as found:
            await found.registered(some_devices(2))
            other = await found.plugin(some_devices(3), socket="new.sock")
            other.answers["Allocate"] = an_answer(FROM="new")
            await other.register()
            await until(lambda: len(found.healthy()) == 3)
            response = await found.server.allocate(WIDGET, ["d0"])
            assert found.server.options(response).envs == {"FROM": "new"}
            assert all(told[WIDGET].connected for told in found.told)

    asyncio.run(scenario())


def test_a_plugin_that_goes_comes_back() -> None:
    # Its socket goes with it, which a look would tell where it comes before the end of the stream.
    async def scenario() -> None:
        async with scene(replace(QUICK, look=3600)) as found:
            plugin = await found.registered(some_devices(2))
            await plugin.stop()
            await until(lambda: not found.server.inventory()[WIDGET].connected)
            gone = found.server.inventory()[WIDGET]
            assert (len(gone.devices), found.healthy()) == (2, [])
            with pytest.raises(DevicePluginError, match="widget: its device plugin is not there"):
                await found.server.allocate(WIDGET, ["d0"])
            (report,) = (report for report in found.reports if " has gone: " in report)
            assert report.startswith(f"device plugin {WIDGET} has gone: ListAndWatch: ")
            assert report.count(WIDGET) == 1
            await plugin.start()
            await plugin.register()
            await until(lambda: found.healthy() == ["d0", "d1"])

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [grpc.StatusCode.OK, grpc.StatusCode.INTERNAL])
def test_a_stream_that_ends_is_a_plugin_that_has_gone(status: grpc.StatusCode) -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.registered(some_devices(2))
            plugin.end_streams(status)
            await until(lambda: not found.server.inventory()[WIDGET].connected)
            assert len(found.reports) == 1

    asyncio.run(scenario())


def test_a_plugin_whose_socket_is_removed_has_gone() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.registered(some_devices(2))
            plugin.path.unlink()
            await until(lambda: not found.server.inventory()[WIDGET].connected)
            assert found.reports == [
                f"device plugin {WIDGET} has gone: its socket {plugin.path} was removed"
            ]

    asyncio.run(scenario())


def test_after_the_grace_the_resource_leaves() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, grace=0.1)) as found:
            plugin = await found.registered(some_devices(2))
            await plugin.stop()
            await until(lambda: len(found.told) == 3)
            assert [{name: r.connected for name, r in told.items()} for told in found.told] == [
                {WIDGET: True},
                {WIDGET: False},
                {},
            ]

    asyncio.run(scenario())


def test_one_that_is_back_within_the_grace_stays() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, grace=0.3)) as found:
            plugin = await found.registered(some_devices(1))
            await plugin.stop()
            await until(lambda: not found.healthy())
            await plugin.start()
            await plugin.register()
            await until(found.healthy)
            await asyncio.sleep(0.5)
            assert found.healthy() == ["d0"]

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------- calls


def test_allocate_gives_the_answer_with_what_is_not_known() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.registered(some_devices(2))
            container = response_of(DeviceRunOptions(envs={"A": "1"})) + b"\xa2\x06\x02hi"
            plugin.answers["Allocate"] = b"\x0a" + bytes([len(container)]) + container
            response = await found.server.allocate(WIDGET, ["d0", "d1"])
            assert response == container
            assert found.server.options(response) == DeviceRunOptions(envs={"A": "1"})
            (request,) = plugin.asked["Allocate"]
            assert request == b"\x0a\x08\x0a\x02d0\x0a\x02d1"

    asyncio.run(scenario())


def test_preferences_are_asked_for_and_given_as_they_are() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.registered(some_devices(4))
            question = PreferenceQuestion(WIDGET, ("d0", "d1", "d2"), ("d1",), 2)
            plugin.answers["GetPreferredAllocation"] = pb.PreferredAllocationResponse(
                container_responses=[
                    pb.ContainerPreferredAllocationResponse(deviceIDs=["d2", "d1", "other"])
                ]
            ).SerializeToString()
            assert await found.server.preferred_allocation(question) == ("d2", "d1", "other")
            assert plugin.asked["GetPreferredAllocation"] == [
                b"\x0a\x12\x0a\x02d0\x0a\x02d1\x0a\x02d2\x12\x02d1\x18\x02"
            ]
            plugin.answers["GetPreferredAllocation"] = b""
            assert await found.server.preferred_allocation(question) == ()

    asyncio.run(scenario())


def test_pre_start_waits_for_the_plugin() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.registered(some_devices(2))
            plugin.answers["PreStartContainer"] = b""
            await found.server.pre_start(WIDGET, ["d1"])
            assert plugin.asked["PreStartContainer"] == [b"\x0a\x02d1"]
            plugin.answers["PreStartContainer"] = grpc.StatusCode.UNKNOWN
            with pytest.raises(DevicePluginError) as raised:
                await found.server.pre_start(WIDGET, ["d1"])
            assert raised.value.problem == (
                f"{WIDGET}: PreStartContainer: rpc error: code = Unknown desc = as asked"
            )

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("example.com/widget", True),
        ("nvidia.com/gpu", True),
        ("a/b", True),
        ("example.com/Widget_1.x", True),
        ("x" * 50 + ".com/" + "n" * 63, True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("kubernetes.io/x", False),
        ("foo.kubernetes.io/x", False),
        ("requests.example.com/x", False),
        ("example.com/" + "n" * 64, False),
        ("Example.com/x", False),
        ("example.com/x/y", False),
        ("/x", False),
        ("example.com/", False),
        ("", False),
        ("example.com/a b", False),
        ("example.com/x\n", False),
        ("example.com/x\0", False),
        ("../x", False),
    ],
)
def test_names_of_extended_resources(name: str, valid: bool) -> None:
    assert is_extended(name) is valid


def test_texts_are_quoted_as_go_does() -> None:
    assert go_quoted('a"\\\n\0\x7fé\u200b\U000e0001') == r'"a\"\\\n\x00\x7fé\u200b\U000e0001"'


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
OPTIONS = st.builds(
    DeviceRunOptions,
    envs=st.dictionaries(TEXTS, TEXTS, max_size=3),
    mounts=st.lists(st.builds(DeviceMount, TEXTS, TEXTS, st.booleans()), max_size=3).map(tuple),
    devices=st.lists(st.builds(DeviceNode, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple),
    annotations=st.dictionaries(TEXTS, TEXTS, max_size=3),
    cdi_devices=st.lists(TEXTS, max_size=3).map(tuple),
)


@given(OPTIONS)
def test_options_come_through(options: DeviceRunOptions) -> None:
    assert run_options(response_of(options)) == options


DEVICES = st.builds(
    Device,
    TEXTS.filter(lambda text: text and "\0" not in text),
    st.booleans(),
    st.frozensets(st.integers(0, 63), max_size=4).map(lambda nodes: tuple(sorted(nodes))),
)


@given(st.lists(DEVICES, unique_by=lambda device: device.id), st.lists(DEVICES))
def test_lists_come_through(devices: list[Device], known: list[Device]) -> None:
    before = {device.id: device for device in known}
    found = listing(list_of(devices), before)
    assert found.devices == {device.id: device for device in devices}
    assert found.problems == {}
    for device in found.devices.values():
        assert device is before.get(device.id) or device != before.get(device.id)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_answer_are_one_error(data: bytes) -> None:
    try:
        options = run_options(data)
    except DevicePluginError:
        return
    assert run_options(response_of(options)) == options


def test_the_wire_is_as_published() -> None:
    whole = DeviceRunOptions(
        {"E": "v"},
        (DeviceMount("/c", "/h", read_only=True),),
        (DeviceNode("/dev/c", "/dev/h", "rw"),),
        {"a": "b"},
        ("v.com/c=x",),
    )
    assert response_of(whole) == (
        b"\x0a\x06\x0a\x01E\x12\x01v"
        b"\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01"
        b"\x1a\x14\x0a\x06/dev/c\x12\x06/dev/h\x1a\x02rw"
        b"\x22\x06\x0a\x01a\x12\x01b"
        b"\x2a\x0b\x0a\x09v.com/c=x"
    )
    assert list_of([Device("d", healthy=True, numa_nodes=(0, 3))]) == (
        b"\x0a\x14\x0a\x01d\x12\x07Healthy\x1a\x06\x0a\x00\x0a\x02\x08\x03"
    )
