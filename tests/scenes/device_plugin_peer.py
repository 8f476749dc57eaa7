"""Device plugins on real unix sockets in the test's own loop, as good or bad as a test wants."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import pytest

from pinfold.adapters.deviceplugin import DevicePluginServer, PluginLimits
from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from pinfold.adapters.deviceplugin import pluginregistration_pb2 as registry_pb
from pinfold.adapters.deviceplugin.messages import HEALTHY
from pinfold.core.devices.devices import Device, DeviceInventory
from tests.scenes.waiting import until

WIDGET = "example.com/widget"
GOOD = "example.com/good"
QUICK = PluginLimits(
    dial=1.0,
    options=1.0,
    first_list=30.0,
    preferred=1.0,
    allocate=1.0,
    pre_start=1.0,
    notify=1.0,
    grace=30.0,
    look=0.02,
)
"""Limits for tests: short where a test waits for them, long where it must not meet them."""

Answer = Callable[[bytes], Awaitable[bytes]]


async def hanging(_: bytes) -> bytes:
    await asyncio.sleep(3600)
    return b""


def list_of(devices: Iterable[Device]) -> bytes:
    """A ``ListAndWatchResponse``, serialized."""
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=device.id,
                health=HEALTHY if device.healthy else "Unhealthy",
                topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in device.numa_nodes])
                if device.numa_nodes
                else None,
            )
            for device in devices
        ]
    ).SerializeToString()


def some_devices(count: int, *, healthy: bool = True, nodes: int = 2) -> list[Device]:
    return [Device(f"d{n}", healthy, (n % nodes,)) for n in range(count)]


def an_answer(**envs: str) -> bytes:
    """An AllocateResponse for one container."""
    return pb.AllocateResponse(
        container_responses=[pb.ContainerAllocateResponse(envs=envs)]
    ).SerializeToString()


@dataclass
class PluginPeer:
    """One plugin: its answers by method (bytes, a status, or what is awaited), and its lists.

    ``asked`` has the requests by method.
    """

    folder: Path
    socket: str = "p.sock"
    resource: str = WIDGET
    answers: dict[str, Answer | bytes | grpc.StatusCode] = field(default_factory=dict)
    asked: dict[str, list[bytes]] = field(default_factory=dict)
    streams: list[asyncio.Queue[bytes | grpc.StatusCode]] = field(default_factory=list)
    first: bytes | None = None
    statuses: list[tuple[bool, str]] = field(default_factory=list)
    info: registry_pb.PluginInfo | None = None
    _server: grpc.aio.Server | None = None

    @property
    def path(self) -> Path:
        return self.folder / self.socket

    def lists(self, devices: Iterable[Device] | bytes) -> None:
        """Send a list to whoever watches, and first to whoever comes."""
        self.first = devices if isinstance(devices, bytes) else list_of(devices)
        for stream in self.streams:
            stream.put_nowait(self.first)

    def end_streams(self, status: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        for stream in self.streams:
            stream.put_nowait(status)

    async def start(self) -> None:
        peer = self

        class Handler(grpc.GenericRpcHandler):
            def service(
                self, handler_call_details: grpc.HandlerCallDetails
            ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
                return peer._handler(handler_call_details.method.rpartition("/")[2])

        self._server = grpc.aio.server(
            handlers=(Handler(),), options=[("grpc.max_send_message_length", -1)]
        )
        self._server.add_insecure_port(f"unix:{quote(str(self.path))}")
        await self._server.start()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def register(self, **fields: Any) -> None:
        """Call Register; ``fields`` stand in the request instead of what is right."""
        request = {"version": "v1beta1", "endpoint": self.socket, "resource_name": self.resource}
        message = pb.RegisterRequest(**{**request, **fields})
        await self.register_raw(message.SerializeToString())

    async def register_raw(self, message: bytes) -> bytes:
        async with grpc.aio.insecure_channel(
            f"unix:{quote(str(self.folder / 'kubelet.sock'))}",
            options=[("grpc.use_local_subchannel_pool", 1)],
        ) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            call = channel.unary_unary("/v1beta1.Registration/Register")
            return await call(message, timeout=20, wait_for_ready=True)

    def _handler(self, method: str) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if method == "ListAndWatch" and method not in self.answers:
            return grpc.unary_stream_rpc_method_handler(self._list)
        if method == "GetInfo" and self.info is not None:
            self.answers[method] = self.info.SerializeToString()
        if method == "NotifyRegistrationStatus" and method not in self.answers:
            self.answers[method] = self._note
        if method not in self.answers:
            return None

        async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            self.asked.setdefault(method, []).append(request)
            found = self.answers[method]
            if isinstance(found, bytes):
                return found
            if isinstance(found, grpc.StatusCode):
                await context.abort(found, "as asked")
            return await found(request)

        return grpc.unary_unary_rpc_method_handler(answer)

    async def _note(self, request: bytes) -> bytes:
        status = registry_pb.RegistrationStatus.FromString(request)
        self.statuses.append((status.plugin_registered, status.error))
        return b""

    async def _list(
        self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        del request
        queue: asyncio.Queue[bytes | grpc.StatusCode] = asyncio.Queue()
        if self.first is not None:
            queue.put_nowait(self.first)
        self.streams.append(queue)
        try:
            while True:
                found = await queue.get()
                if found is grpc.StatusCode.OK:
                    return
                if isinstance(found, grpc.StatusCode):
                    await context.abort(found, "as asked")
                yield found
        finally:
            self.streams.remove(queue)


@dataclass
class Scene:
    """A server and what it said; ``told`` has the inventories that a subscriber was told."""

    folder: Path
    registry: Path
    server: DevicePluginServer
    reports: list[str]
    told: list[DeviceInventory]
    peers: list[PluginPeer] = field(default_factory=list)

    async def plugin(
        self, devices: Iterable[Device] | bytes | None = None, **given: Any
    ) -> PluginPeer:
        """A plugin that serves, in the plugins' folder if no other is given."""
        peer = PluginPeer(**{"folder": self.folder, **given})
        if devices is not None:
            peer.lists(devices)
        await peer.start()
        self.peers.append(peer)
        return peer

    async def registered(self, devices: Iterable[Device] | bytes, **given: Any) -> PluginPeer:
        """A plugin that has registered and whose devices are listed."""
        peer = await self.plugin(devices, **given)
        await peer.register()
        await until(lambda: peer.resource in self.server.inventory())
        return peer

    def healthy(self, resource: str = WIDGET) -> list[str]:
        """The ids that can be allocated."""
        found = self.server.inventory().get(resource)
        if found is None or not found.connected:
            return []
        return sorted(device.id for device in found.devices.values() if device.healthy)


async def refusal(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    """How a call is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), raised.value.details() or ""


@asynccontextmanager
async def scene(limits: PluginLimits = QUICK) -> AsyncIterator[Scene]:
    """A server in a short folder (a socket's path has 108 bytes at most).

    Afterwards it is closed, and nothing of it is left: no task, no file.
    """
    before = asyncio.all_tasks()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as made:
        plugins, registry = Path(made) / "dp", Path(made) / "reg"
        reports: list[str] = []
        server = DevicePluginServer(
            plugins, registry=registry, limits=limits, report=reports.append
        )
        found = Scene(plugins, registry, server, reports, [])
        server.subscribe(found.told.append)
        await server.start()
        try:
            yield found
        finally:
            await server.close()
            for peer in found.peers:
                await peer.stop()
        assert "kubelet.sock" not in os.listdir(plugins)
        left = {task for task in asyncio.all_tasks() - before if "grpc" not in repr(task)}
        assert {task.get_name() for task in left if "pinfold" in repr(task)} == set()
        assert failures == []


async def a_good_one(found: Scene) -> PluginPeer:
    """A plugin that must not suffer from the others."""
    good = await found.registered(some_devices(2), socket="good.sock", resource=GOOD)
    good.answers["Allocate"] = an_answer(GOOD="yes")
    return good


async def the_good_one_serves(found: Scene) -> None:
    response = await found.server.allocate(GOOD, ["d0"])
    assert found.server.options(response).envs == {"GOOD": "yes"}
    assert found.healthy(GOOD) == ["d0", "d1"]
