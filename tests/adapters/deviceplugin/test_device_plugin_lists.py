"""Lists of devices that are odd, huge, broken, late or too many."""

from __future__ import annotations

import asyncio
import time

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from pinfold.adapters.deviceplugin.messages import listing
from pinfold.core.devices.devices import Device
from tests.scenes.device_plugin_peer import (
    QUICK,
    WIDGET,
    a_good_one,
    list_of,
    scene,
    some_devices,
    the_good_one_serves,
)
from tests.scenes.waiting import until


@given(st.binary(max_size=40))
def test_any_bytes_are_a_list_or_one_error(data: bytes) -> None:
    try:
        found = listing(data, {})
    except DecodeError:
        return
    for device in found.devices.values():
        assert device.id
        assert all(0 <= node <= 63 for node in device.numa_nodes)


@given(
    st.lists(
        st.builds(
            pb.Device,
            ID=st.sampled_from(["", "a", "b", "c\0"]),
            health=st.sampled_from(["", "Healthy", "Unhealthy", "healthy"]),
            topology=st.builds(
                pb.TopologyInfo,
                nodes=st.lists(
                    st.builds(pb.NUMANode, ID=st.integers(-(2**63), 2**63 - 1)), max_size=2
                ),
            ),
        ),
        max_size=6,
    )
)
def test_of_any_list_the_last_of_each_id_is_taken(devices: list[pb.Device]) -> None:
    found = listing(pb.ListAndWatchResponse(devices=devices).SerializeToString(), {})
    last = {device.ID: device for device in devices if device.ID and "\0" not in device.ID}
    assert found.devices.keys() == last.keys()
    for device_id, device in found.devices.items():
        nodes = {node.ID for node in last[device_id].topology.nodes if 0 <= node.ID <= 63}
        assert device.healthy == (last[device_id].health == "Healthy")
        assert device.numa_nodes == tuple(sorted(nodes))


def test_rules_for_odd_devices() -> None:
    def device(device_id: str, *nodes: int, health: str = "Healthy") -> pb.Device:
        topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])
        return pb.Device(ID=device_id, health=health, topology=topology)

    odd = pb.ListAndWatchResponse(
        devices=[
            device("twice", 0),
            device("twice", 1, health="Unhealthy"),
            device(""),
            device("nul\0"),
            device("nowhere", -1),
            device("beyond", 64, 63, 3, 3),
            device("shouting", health="HEALTHY"),
            device("x" * 5000),
        ]
    ).SerializeToString()

    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.registered(odd)
            assert dict(found.server.inventory()[WIDGET].devices) == {
                "twice": Device("twice", healthy=False, numa_nodes=(1,)),
                "nowhere": Device("nowhere"),
                "beyond": Device("beyond", numa_nodes=(3, 63)),
                "shouting": Device("shouting", healthy=False),
                "x" * 5000: Device("x" * 5000),
            }
            said = "\n".join(found.reports)
            assert "a device with the id '' is left out" in said
            assert "1 of 6 devices repeat the id of another; the last one counts" in said
            assert "'nowhere' names NUMA node -1, which is taken for none" in said
            # The same again is not told again.
            plugin.lists(some_devices(1))
            await until(lambda: found.healthy() == ["d0"])
            plugin.lists(odd)
            await until(lambda: len(found.healthy()) == 3)
            assert len(found.reports) == 3

    asyncio.run(scenario())


def test_a_plugin_that_never_lists_is_reported_and_may_list_later() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, first_list=0.2)) as found:
            await found.registered(some_devices(1), socket="before.sock")
            silent = await found.plugin()
            await silent.register()
            assert found.healthy() == ["d0"]
            await until(lambda: not found.healthy())
            (report,) = found.reports
            assert "has registered, and has sent no list of devices for 0.2 s" in report
            silent.lists(some_devices(2))
            await until(lambda: len(found.healthy()) == 2)

    asyncio.run(scenario())


def test_an_empty_list_is_a_resource_without_devices() -> None:
    async def scenario() -> None:
        async with scene() as found:
            await found.registered([])
            assert found.server.inventory()[WIDGET].connected
            assert not found.server.inventory()[WIDGET].devices

    asyncio.run(scenario())


@pytest.mark.parametrize("garbage", [b"\xff", b"\x0a\x05\x0a\x03\xff\xfe\xfd", b"\0" * 2_000_000])
def test_a_list_that_is_none_ends_the_plugin(garbage: bytes) -> None:
    async def scenario() -> None:
        async with scene() as found:
            await a_good_one(found)
            plugin = await found.registered(some_devices(1))
            plugin.lists(garbage)
            await until(lambda: not found.healthy())
            assert f"{len(garbage)} bytes that are no list of devices" in found.reports[-1]
            await until(lambda: not plugin.streams)
            await the_good_one_serves(found)

    asyncio.run(scenario())


def test_a_huge_list_is_read_and_a_larger_one_harms_its_plugin_only() -> None:
    def devices(each: int) -> bytes:
        return list_of([Device(f"{n:0>{each}}") for n in range(10_000)])

    async def scenario() -> None:
        async with scene() as found:
            await a_good_one(found)
            huge = devices(1400)
            assert 13 << 20 < len(huge) < 16 << 20
            plugin = await found.registered(huge)
            assert len(found.healthy()) == 10_000
            plugin.lists(devices(1700))
            await until(lambda: not found.healthy())
            assert "code = ResourceExhausted" in found.reports[-1]
            assert len(found.server.inventory()[WIDGET].devices) == 10_000
            await the_good_one_serves(found)

    asyncio.run(scenario())


def test_a_storm_of_ten_thousand_flapping_devices() -> None:
    ups, downs = list_of(some_devices(10_000)), list_of(some_devices(10_000, healthy=False))

    async def scenario() -> None:
        async with scene() as found:
            await a_good_one(found)
            plugin = await found.registered(ups)
            assert len(found.healthy()) == 10_000
            told = len(found.told)
            for _ in range(100):
                plugin.lists(downs)
                plugin.lists(ups)
            plugin.lists(some_devices(3))
            longest = 0.0
            async with asyncio.timeout(90):
                while len(found.healthy()) != 3:
                    before = time.monotonic()
                    await asyncio.sleep(0.001)
                    longest = max(longest, time.monotonic() - before)
            # Those in between were skipped, and the loop went on meanwhile.
            assert len(found.told) - told < 100
            assert longest < 5
            await until(lambda: found.told[-1] == found.server.inventory())
            await the_good_one_serves(found)

    asyncio.run(scenario())


def test_subscribers_hear_once_of_what_came_at_once() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, list_pause=0)) as found:
            plugin = await found.registered(some_devices(1))
            await until(lambda: len(found.told) == 1)
            for _ in range(5):
                plugin.lists(some_devices(1))
            await found.registered([Device("a")], socket="a.sock", resource="example.com/a")
            # Lists that change nothing are no news.
            await until(lambda: found.told[-1] == found.server.inventory())
            assert len(found.told) == 2

    asyncio.run(scenario())
