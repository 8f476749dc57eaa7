"""Device plugins in memory and over real sockets pass the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from pinfold.adapters.deviceplugin import DevicePluginServer, response_of
from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from pinfold.core.devices.devices import DeviceResource, DeviceRunOptions
from pinfold.planning.fake_plugins import FakeDevicePlugins
from tests.scenes.device_plugin_peer import (
    PluginPeer,
    Scene,
    scene,
)
from tests.scenes.device_plugins_contract import DevicePluginsContract, Place
from tests.scenes.waiting import until


class FakeWorld:
    """Plugins that are a table."""

    def __init__(self) -> None:
        self.plugins = FakeDevicePlugins()

    async def offer(self, resource: DeviceResource) -> None:
        self.plugins.put(resource)

    async def disconnect(self, name: str) -> None:
        self.plugins.disconnect(name)

    async def refuse(self, name: str) -> None:
        del name
        self.plugins.faults.fail_at.update(range(1000))


class SocketWorld:
    """Plugins with a socket each, and the server that they register with."""

    def __init__(self, found: Scene) -> None:
        self._scene = found
        self._peers: dict[str, PluginPeer] = {}
        self.plugins: DevicePluginServer = found.server

    async def offer(self, resource: DeviceResource) -> None:
        peer = self._peers.get(resource.name)
        if peer is None:
            peer = self._peers[resource.name] = await self._plugin(resource)
        else:
            peer.lists(resource.devices.values())
        await until(lambda: self.plugins.inventory().get(resource.name) == resource)
        # Whoever was told nothing new should have had the time to be told.
        await asyncio.sleep(0.1)

    async def disconnect(self, name: str) -> None:
        await self._peers.pop(name).stop()
        await until(lambda: not self.plugins.inventory()[name].connected)
        await asyncio.sleep(0.1)

    async def refuse(self, name: str) -> None:
        answers = self._peers[name].answers
        answers.update(dict.fromkeys(answers, grpc.StatusCode.UNKNOWN))

    async def _plugin(self, resource: DeviceResource) -> PluginPeer:
        options = pb.DevicePluginOptions(
            pre_start_required=resource.pre_start_required,
            get_preferred_allocation_available=resource.preferred_allocation,
        )
        peer = await self._scene.plugin(
            resource.devices.values(),
            resource=resource.name,
            socket=f"{resource.name.replace('/', '-')}.sock",
            answers={
                "GetDevicePluginOptions": options.SerializeToString(),
                "Allocate": _allocate,
                "PreStartContainer": b"",
                "GetPreferredAllocation": _prefer,
            },
        )
        await peer.register()
        return peer


async def _allocate(request: bytes) -> bytes:
    (asked,) = pb.AllocateRequest.FromString(request).container_requests
    given = response_of(DeviceRunOptions(envs={"DEVICES": ",".join(asked.devices_ids)}))
    answer = pb.ContainerAllocateResponse.FromString(given)
    return pb.AllocateResponse(container_responses=[answer]).SerializeToString()


async def _prefer(request: bytes) -> bytes:
    (asked,) = pb.PreferredAllocationRequest.FromString(request).container_requests
    must = list(asked.must_include_deviceIDs)
    others = [one for one in asked.available_deviceIDs if one not in must]
    chosen = pb.ContainerPreferredAllocationResponse(
        deviceIDs=(must + others)[: asked.allocation_size]
    )
    return pb.PreferredAllocationResponse(container_responses=[chosen]).SerializeToString()


class TestFake(DevicePluginsContract):
    @pytest.fixture
    def place(self) -> Place:
        @asynccontextmanager
        async def opened() -> AsyncIterator[FakeWorld]:
            yield FakeWorld()

        return opened


class TestSockets(DevicePluginsContract):
    @pytest.fixture
    def place(self) -> Place:
        @asynccontextmanager
        async def opened() -> AsyncIterator[SocketWorld]:
            async with scene() as found:
                yield SocketWorld(found)

        return opened
