"""Workloads of device plugins: from registration to capacity, Allocate, ten thousand devices.

Everything goes over real sockets.  The plugin runs in the same process and loop, with answers that
are made beforehand, so that the times are upper bounds.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from tests.scenes.device_plugin_peer import list_of

from benchmarks.agent_measuring import detailed
from benchmarks.measure import Result
from pinfold.adapters.deviceplugin import DevicePluginServer
from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from pinfold.core.devices.devices import Device, DeviceInventory

REGISTRATIONS: Final = 50
ALLOCATIONS: Final = 1000
LISTS: Final = 10
MANY: Final = 10_000
KUBELET_REGISTER_MS: Final = 170.0
"""From the registration to the node's capacity, observed at a kubelet."""
KUBELET_ALLOCATE_MS: Final = 0.6

_NAME: Final = "example.com/widget"
_SOCKET: Final = "p.sock"


class _Plugin:
    """A plugin with prepared lists; each watcher gets those that are put."""

    def __init__(self, folder: Path, first: bytes) -> None:
        self._folder = folder
        self._first = first
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._server = grpc.aio.server()

    async def start(self) -> None:
        answer = pb.AllocateResponse(
            container_responses=[pb.ContainerAllocateResponse(envs={"WIDGETS": "d1"})]
        ).SerializeToString()

        async def options(request: bytes, context: object) -> bytes:
            del request, context
            return b""

        async def allocate(request: bytes, context: object) -> bytes:
            del request, context
            return answer

        async def lists(request: bytes, context: object) -> AsyncIterator[bytes]:
            del request, context
            yield self._first
            while True:
                yield await self._queue.get()

        unary = grpc.unary_unary_rpc_method_handler
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": unary(options),
            "Allocate": unary(allocate),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(lists),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
        )
        self._server.add_insecure_port(f"unix:{self._folder / _SOCKET}")
        await self._server.start()

    def put(self, data: bytes) -> None:
        self._queue.put_nowait(data)

    async def stop(self) -> None:
        await self._server.stop(None)


class _Told:
    """A subscriber that can be waited for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self, inventory: DeviceInventory) -> None:
        del inventory
        self._event.set()

    async def once(self) -> None:
        await asyncio.wait_for(self._event.wait(), 30)
        self._event.clear()


Scenario = Callable[[DevicePluginServer, _Plugin, _Told, Path], Awaitable[list[float]]]


def _devices(count: int, *, healthy: bool = True) -> bytes:
    return list_of(Device(f"device-{n:05}", healthy, (n % 8,)) for n in range(count))


async def _run(scenario: Scenario, first: bytes) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="dp-") as made:
        folder = Path(made) / "device-plugins"
        server, told = DevicePluginServer(folder), _Told()
        server.subscribe(told)
        await server.start()
        plugin = _Plugin(folder, first)
        await plugin.start()
        try:
            return await scenario(server, plugin, told, folder)
        finally:
            await plugin.stop()
            await server.close()


async def _register(folder: Path, name: str = _NAME) -> None:
    request = pb.RegisterRequest(version="v1beta1", endpoint=_SOCKET, resource_name=name)
    async with grpc.aio.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary("/v1beta1.Registration/Register")
        await call(request.SerializeToString())


async def _registrations(
    _server: DevicePluginServer, _plugin: _Plugin, told: _Told, folder: Path
) -> list[float]:
    times = []
    for number in range(REGISTRATIONS):
        began = time.perf_counter_ns()
        await _register(folder, f"{_NAME}-{number}")
        await told.once()
        times.append(float(time.perf_counter_ns() - began))
    return times


async def _allocations(
    server: DevicePluginServer, _plugin: _Plugin, told: _Told, folder: Path
) -> list[float]:
    await _register(folder)
    await told.once()
    times = []
    for _ in range(ALLOCATIONS):
        began = time.perf_counter_ns()
        await server.allocate(_NAME, ["device-00001"])
        times.append(float(time.perf_counter_ns() - began))
    return times


async def _lists(
    server: DevicePluginServer, plugin: _Plugin, told: _Told, folder: Path
) -> list[float]:
    await _register(folder)
    await told.once()
    times = []
    for number in range(LISTS):
        # All devices change, and then one of them is allocated.
        data = _devices(MANY, healthy=bool(number % 2))
        await asyncio.sleep(0.5)  # lists that come faster are made to wait
        began = time.perf_counter_ns()
        plugin.put(data)
        await told.once()
        await server.allocate(_NAME, ["device-00001"])
        times.append(float(time.perf_counter_ns() - began))
    return times


def _measured(scenario: Scenario, first: int, **details: float) -> Result:
    return detailed(asyncio.run(_run(scenario, _devices(first))), **details)


MEASURED: Final[dict[str, Callable[[], Result]]] = {
    "plugin.register": partial(_measured, _registrations, 4, kubelet_ms=KUBELET_REGISTER_MS),
    "plugin.allocate": partial(_measured, _allocations, 4, kubelet_ms=KUBELET_ALLOCATE_MS),
    "plugin.list.10000": partial(_measured, _lists, MANY),
}
