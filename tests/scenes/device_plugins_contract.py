"""What every :class:`pinfold.ports.devices.DevicePlugins` does, however it asks its plugins.

A test module subclasses :class:`DevicePluginsContract` and gives it a fixture ``place``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.devices.devices import (
    Device,
    DeviceInventory,
    DeviceResource,
    DeviceRunOptions,
    PreferenceQuestion,
)
from pinfold.ports.devices import DevicePluginError, DevicePlugins

_NONSENSE: Final = (b"3", b"[1]", b'{"a": 1}', b'{"a": [1]}', b"null", b"\xff", b"\x0a\x02\x0a\x01")

GPU, NIC = "example.com/gpu", "example.com/nic"


def resource(name: str = GPU, count: int = 3, **options: bool) -> DeviceResource:
    """Devices of two NUMA nodes, the last of them unhealthy."""
    devices = [Device(f"d{n}", healthy=n < count - 1, numa_nodes=(n % 2,)) for n in range(count)]
    return DeviceResource(name, {device.id: device for device in devices}, **options)


class World(Protocol):
    """Plugins that do what a test tells them; each method returns when the port has noticed."""

    @property
    def plugins(self) -> DevicePlugins:
        """The port."""

    async def offer(self, resource: DeviceResource) -> None:
        """A plugin registers with these devices and options, or one that has lists others."""

    async def disconnect(self, name: str) -> None:
        """A plugin goes away."""

    async def refuse(self, name: str) -> None:
        """A plugin answers every call with an error from now on."""


Place = Callable[[], AbstractAsyncContextManager[World]]
Calls = tuple[Callable[[], Awaitable[object]], ...]


def calls(plugins: DevicePlugins, name: str) -> Calls:
    """Everything that a plugin can be asked."""
    return (
        lambda: plugins.allocate(name, ["d0"]),
        lambda: plugins.pre_start(name, ["d0"]),
        lambda: plugins.preferred_allocation(PreferenceQuestion(name, ("d0", "d1"), (), 1)),
    )


class DevicePluginsContract:
    """The tests; each in an event loop of its own."""

    def play(self, place: Place, scenario: Callable[[World], Awaitable[None]]) -> None:
        """Run one scenario."""

        async def whole() -> None:
            async with place() as world:
                await scenario(world)

        asyncio.run(whole())

    def test_what_is_offered_is_listed(self, place: Place) -> None:
        async def scenario(world: World) -> None:
            assert dict(world.plugins.inventory()) == {}
            gpu = resource(pre_start_required=True, preferred_allocation=True)
            await world.offer(gpu)
            await world.offer(resource(NIC, 1))
            assert dict(world.plugins.inventory()) == {GPU: gpu, NIC: resource(NIC, 1)}

        self.play(place, scenario)

    def test_an_inventory_stays_as_it_is(self, place: Place) -> None:
        async def scenario(world: World) -> None:
            await world.offer(resource())
            before = world.plugins.inventory()
            await world.offer(resource(NIC))
            await world.offer(resource(count=5))
            assert dict(before) == {GPU: resource()}

        self.play(place, scenario)

    def test_subscribers_are_told_what_is_new_and_nothing_twice(self, place: Place) -> None:
        async def scenario(world: World) -> None:
            told: list[DeviceInventory] = []
            world.plugins.subscribe(told.append)
            await world.offer(resource())
            await world.offer(resource())
            await world.offer(resource(count=4))
            await world.disconnect(GPU)
            assert [dict(one) for one in told] == [
                {GPU: resource()},
                {GPU: resource(count=4)},
                {GPU: replace(resource(count=4), connected=False)},
            ]
            assert dict(told[-1]) == dict(world.plugins.inventory())

        self.play(place, scenario)

    def test_a_plugin_that_is_gone_leaves_its_devices_and_answers_nothing(
        self, place: Place
    ) -> None:
        async def scenario(world: World) -> None:
            await world.offer(resource())
            await world.offer(resource(NIC))
            await world.disconnect(GPU)
            assert world.plugins.inventory()[GPU] == replace(resource(), connected=False)
            for call in calls(world.plugins, GPU):
                with pytest.raises(DevicePluginError, match=GPU):
                    await call()
            assert await world.plugins.allocate(NIC, ["d0"])
            await world.offer(resource())
            assert world.plugins.inventory()[GPU] == resource()
            assert await world.plugins.allocate(GPU, ["d0"])

        self.play(place, scenario)

    def test_what_nobody_offers_cannot_be_asked_for(self, place: Place) -> None:
        async def scenario(world: World) -> None:
            for call in calls(world.plugins, GPU):
                with pytest.raises(DevicePluginError, match=GPU):
                    await call()

        self.play(place, scenario)

    def test_a_refusal_is_one_kind_of_error(self, place: Place) -> None:
        async def scenario(world: World) -> None:
            await world.offer(resource())
            await world.refuse(GPU)
            for call in calls(world.plugins, GPU):
                with pytest.raises(DevicePluginError, match=GPU):
                    await call()
            assert world.plugins.inventory()[GPU] == resource(), "a refusal is no end"

        self.play(place, scenario)

    def test_an_answer_can_be_read_and_tells_devices_apart(self, place: Place) -> None:
        async def scenario(world: World) -> None:
            await world.offer(resource())
            ask, read = world.plugins.allocate, world.plugins.options
            one, two = await ask(GPU, ["d0"]), await ask(GPU, ["d0", "d1"])
            assert read(one) == read(await ask(GPU, ["d0"])) != read(two)
            assert "d0,d1" in read(two).envs.values()
            assert read(b"") == DeviceRunOptions(), "a plugin may give nothing"
            await world.plugins.pre_start(GPU, ["d0"])

        self.play(place, scenario)

    def test_a_preference_is_among_what_is_offered(self, place: Place) -> None:
        async def scenario(world: World) -> None:
            await world.offer(resource(count=9, preferred_allocation=True))
            available = tuple(f"d{n}" for n in range(8))
            for size, must in ((1, ()), (3, ("d1",)), (2, ("d0", "d7")), (8, ())):
                question = PreferenceQuestion(GPU, available, must, size)
                found = await world.plugins.preferred_allocation(question)
                assert len(set(found)) == size
                assert set(must) <= set(found) <= set(available)

        self.play(place, scenario)

    # The port is opened anew for each answer: reading one leaves nothing behind.
    @settings(max_examples=50, deadline=None, suppress_health_check=[*HealthCheck])
    @given(answers=st.lists(st.binary(max_size=40) | st.sampled_from(_NONSENSE), max_size=20))
    def test_any_answer_is_read_or_refused(self, place: Place, answers: list[bytes]) -> None:
        async def scenario(world: World) -> None:
            for answer in answers:
                with contextlib.suppress(DevicePluginError):
                    assert isinstance(world.plugins.options(answer), DeviceRunOptions)

        self.play(place, scenario)
