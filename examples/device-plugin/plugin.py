"""A device plugin with simulated devices, for a kubelet or a pinfold agent alike.

Needs ``pip install grpcio grpcio-tools``.  ``--help`` shows the options, the README what to try.
"""  # noqa: INP001 - a program of its own, no package

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format

sys.path.insert(0, str(Path(__file__).parent))
api: Any = grpc.protos("deviceplugin.proto")

LOG = logging.getLogger("device-plugin")
VERSION = "v1beta1"
POLL = 0.2
MISBEHAVIOURS = (
    "never-list",  # registers and never sends a list
    "duplicate-ids",  # lists every device twice
    "flap",  # turns all devices unhealthy and healthy again, as fast as it can
    "never-answer",  # is asked to allocate and says nothing
    "refuse",  # answers Allocate with an error
    "die",  # is gone when it is asked to allocate
    "old-version",  # registers with v1alpha1
    "outside",  # registers a socket outside of the folder
)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    options = parsed()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    asyncio.run(Plugin(options).run())


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--resource", default="example.com/widget", help="what pods ask for (%(default)s)")
    add("--devices", type=int, default=4, help="how many there are (%(default)s)")
    add("--numa-nodes", type=int, default=1, help="that have devices; 0: none told (%(default)s)")
    add(
        "--folder",
        type=Path,
        default=Path("/var/lib/kubelet/device-plugins"),
        help="where kubelet.sock is, and our socket will be (%(default)s)",
    )
    add("--socket", default="", help="the name of our socket (made of the resource's)")
    add("--health-file", type=Path, help="names unhealthy devices, by line; read when it changes")
    add("--device-node", default="", help="a device node that containers get, such as /dev/null")
    add("--give", default="{}", metavar="JSON", help="what else: a ContainerAllocateResponse")
    add("--pre-start", action="store_true", help="be called before each start of a container")
    add("--prefer", action="store_true", help="prefer devices of one NUMA node")
    add("--misbehave", choices=MISBEHAVIOURS, action="append", default=[], help="for tests")
    return parser.parse_args()


@dataclass
class Plugin:
    """The plugin: a server of its own, registered whenever ``kubelet.sock`` is another one."""

    options: argparse.Namespace
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    unhealthy: frozenset[str] = frozenset()
    problem: str = ""

    def __post_init__(self) -> None:
        self.kubelet: Path = self.options.folder / "kubelet.sock"
        name = self.options.socket or self.options.resource.replace("/", "-") + ".sock"
        self.path: Path = self.options.folder / name

    def misbehaves(self, how: str) -> bool:
        """Whether it was asked to."""
        return how in self.options.misbehave

    async def run(self) -> None:
        """Serve, register, and do both again whenever the kubelet was started anew."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        health = asyncio.create_task(self.watch_health())
        server: grpc.aio.Server | None = None
        seen: object = None
        try:
            while not stop.is_set():
                there = identity(self.kubelet)
                if there is None:
                    self.complain(f"waiting for {self.kubelet}, which is not there")
                elif there != seen or not self.path.exists():
                    if server is not None:
                        await server.stop(None)
                    # First the server: the kubelet dials while it is registered with.
                    server = await self.serve()
                    seen = there if await self.register() else None
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), POLL)
        finally:
            health.cancel()
            if server is not None:
                await server.stop(None)
                self.path.unlink(missing_ok=True)

    async def serve(self) -> grpc.aio.Server:
        """Answer at our socket."""
        self.path.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self.handlers(),))
        server.add_insecure_port(f"unix:{self.path}")
        await server.start()
        return server

    async def register(self) -> bool:
        """Tell the kubelet where we are; False if it does not want us now."""
        request = api.RegisterRequest(
            version="v1alpha1" if self.misbehaves("old-version") else VERSION,
            endpoint="../outside.sock" if self.misbehaves("outside") else self.path.name,
            resource_name=self.options.resource,
            options=self.plugin_options(),
        )
        async with grpc.aio.insecure_channel(f"unix:{self.kubelet}") as channel:
            call = channel.unary_unary(
                f"/{VERSION}.Registration/Register",
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            try:
                await call(request, timeout=30)
            except grpc.aio.AioRpcError as error:
                self.complain(f"not registered, and tries again: {error.details()}")
                await asyncio.sleep(1)
                return False
        self.problem = ""
        LOG.info("registered %s at %s", self.options.resource, self.path)
        return True

    def complain(self, problem: str) -> None:
        """Say what is wrong, once until it is something else."""
        if problem != self.problem:
            LOG.error("%s", problem)
            self.problem = problem

    def plugin_options(self) -> Any:  # noqa: ANN401 - the messages' classes are made at run time
        """What we can do."""
        return api.DevicePluginOptions(
            pre_start_required=self.options.pre_start,
            get_preferred_allocation_available=self.options.prefer,
        )

    # -------------------------------------------------------------------------- the devices

    def device_ids(self) -> list[str]:
        """Their names."""
        return [f"widget-{number}" for number in range(self.options.devices)]

    def numa_node(self, device_id: str) -> int:
        """Where a device is: the first ones on node 0, the next ones on node 1, ..."""
        number = int(device_id.rpartition("-")[2])
        return number * int(self.options.numa_nodes) // max(int(self.options.devices), 1)

    def listed(self, *, all_unhealthy: bool = False) -> Any:  # noqa: ANN401 - the same
        """The list as it is now."""
        devices = []
        for device_id in self.device_ids():
            sick = all_unhealthy or device_id in self.unhealthy
            device = api.Device(ID=device_id, health="Unhealthy" if sick else "Healthy")
            if self.options.numa_nodes:
                device.topology.nodes.add(ID=self.numa_node(device_id))
            devices.append(device)
        if self.misbehaves("duplicate-ids"):
            devices *= 2
        return api.ListAndWatchResponse(devices=devices)

    async def watch_health(self) -> None:
        """Tell whoever watches when the health file changes."""
        seen: object = None
        while self.options.health_file is not None:
            there = identity(self.options.health_file)
            if there != seen:
                seen = there
                async with self.changed:
                    self.unhealthy = frozenset(read(self.options.health_file).split())
                    self.changed.notify_all()
            await asyncio.sleep(POLL)

    # ---------------------------------------------------------------------------- the calls

    async def list_and_watch(self, _request: object, _context: object) -> AsyncIterator[Any]:
        """All devices, again whenever one is another."""
        if self.misbehaves("never-list"):
            await asyncio.sleep(3600)
        while self.misbehaves("flap"):
            yield self.listed(all_unhealthy=True)
            yield self.listed()
        async with self.changed:
            while True:
                yield self.listed()
                await self.changed.wait()

    async def get_options(self, _request: object, _context: object) -> Any:  # noqa: ANN401 - the same
        """What we can do, once more."""
        return self.plugin_options()

    async def preferred(self, request: Any, _context: object) -> Any:  # noqa: ANN401 - the same
        """Of what is available, the devices of the NUMA node that has the most of them."""
        response = api.PreferredAllocationResponse()
        for asked in request.container_requests:
            available = list(asked.available_deviceIDs)
            must = list(asked.must_include_deviceIDs)
            nodes = [self.numa_node(device_id) for device_id in must or available]
            best = max(set(nodes), key=nodes.count, default=0)
            others = sorted(
                (d for d in available if d not in must), key=lambda d: self.numa_node(d) != best
            )
            response.container_responses.add(deviceIDs=(must + others)[: asked.allocation_size])
        return response

    async def allocate(self, request: Any, context: Any) -> Any:  # noqa: ANN401 - the same
        """What containers with these devices are started with."""
        if self.misbehaves("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.misbehaves("never-answer"):
            await asyncio.sleep(3600)
        if self.misbehaves("refuse"):
            await context.abort(grpc.StatusCode.UNKNOWN, "the device is on fire")
        response = api.AllocateResponse()
        for asked in request.container_requests:
            LOG.info("allocated %s", ", ".join(asked.devices_ids))
            given = response.container_responses.add()
            given.envs["WIDGETS"] = ",".join(asked.devices_ids)
            node = self.options.device_node
            if node:
                given.devices.add(container_path=node, host_path=node, permissions="rw")
            json_format.Parse(self.options.give, given)
        return response

    async def pre_start(self, request: Any, _context: object) -> Any:  # noqa: ANN401 - the same
        """A container is about to start."""
        LOG.info("prepared %s", ", ".join(request.devices_ids))
        return api.PreStartContainerResponse()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The service, as gRPC wants it."""

        def unary(
            answer: Callable[..., Any], request: str, response: str
        ) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(
                answer, getattr(api, request).FromString, getattr(api, response).SerializeToString
            )

        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": unary(self.get_options, "Empty", "DevicePluginOptions"),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self.list_and_watch,
                api.Empty.FromString,
                api.ListAndWatchResponse.SerializeToString,
            ),
            "GetPreferredAllocation": unary(
                self.preferred, "PreferredAllocationRequest", "PreferredAllocationResponse"
            ),
            "Allocate": unary(self.allocate, "AllocateRequest", "AllocateResponse"),
            "PreStartContainer": unary(
                self.pre_start, "PreStartContainerRequest", "PreStartContainerResponse"
            ),
        }
        return grpc.method_handlers_generic_handler(f"{VERSION}.DevicePlugin", methods)


def identity(path: Path) -> object:
    """What tells a file from another one that is there later; None if there is none."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None


def read(path: Path) -> str:
    """A file's text, "" if there is none."""
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


if __name__ == "__main__":
    main()
