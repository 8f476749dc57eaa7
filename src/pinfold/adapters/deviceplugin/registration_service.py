"""``v1beta1.Registration`` on ``kubelet.sock``, which comes back when its file is taken away.

Source: upstream ``pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go``.
"""

from __future__ import annotations

import functools
import math
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from pinfold.adapters.deviceplugin.plugin_client import PluginOptions
from pinfold.adapters.deviceplugin.registration_rules import (
    SOCKET_NAME,
    RegistrationRefusedError,
    check_resource_name,
    check_version,
    endpoint_path,
    printable,
)
from pinfold.formats.grpc_limits import CALLS, server_options
from pinfold.linux.socket_files import SocketFile
from pinfold.linux.socket_places import Identity, identity, remove_own
from pinfold.ports.devices import DevicePluginError
from pinfold.ports.errors import PortError

_SERVICE: Final = "v1beta1.Registration"
_LONGEST_TEXT: Final = 600
_SAME_AGAIN: Final = 60.0
_MOST_REFUSALS: Final = 100
_OPTIONS: Final = (("grpc.max_receive_message_length", 4 << 20),)


ELSEWHERE: Final = "give the device plugins another folder"


class Connecting(Protocol):
    """Who takes the plugins that register."""

    async def register(self, resource: str, path: Path, *, offered: PluginOptions | None) -> None:
        """Connect to a plugin; raises what :meth:`DevicePluginServer.register` raises."""


class RegistrationService:
    """The socket at which plugins register, in ``folder`` (absolute)."""

    def __init__(self, folder: Path, connecting: Connecting, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._connecting = connecting
        self._report = report
        self._socket = registration_socket(folder)
        self._server: grpc.aio.Server | None = None
        self._identity: Identity | None = None
        self._reported = ""
        self._refusals: dict[str, float] = {}

    async def start(self) -> None:
        """Serve, in a folder without the sockets of earlier plugins; raises PortError."""
        self._server, self._identity = await self._serve(clean=True)

    async def look(self) -> None:
        """Make the socket anew if its file has gone; plugins then register again."""
        if identity(self._socket.path) == self._identity:
            return
        before = self._server
        try:
            self._server, self._identity = await self._serve(clean=False)
        except PortError as error:
            if str(error) != self._reported:
                self._report(f"device plugins cannot register: {error}")
                self._reported = str(error)
            return
        self._reported = ""
        if before is not None:
            await before.stop(None)

    async def close(self) -> None:
        """Remove the socket and end the calls."""
        server, self._server = self._server, None
        remove_own(self._socket.path, self._identity)
        if server is not None:
            await server.stop(None)

    async def _serve(self, *, clean: bool) -> tuple[grpc.aio.Server, Identity | None]:
        self._socket.prepare()
        server = grpc.aio.server(
            handlers=(self._handlers(),),
            options=[*_OPTIONS, *server_options()],
            maximum_concurrent_rpcs=CALLS,
        )
        try:
            with self._socket.workshop() as made:
                try:
                    server.add_insecure_port(f"unix:{quote(str(made))}")
                except RuntimeError as error:
                    raise PortError(f"{self._socket.path}: {error}") from None
                await server.start()
                # There are plugins that register again only when they see their socket removed.
                first = functools.partial(remove_sockets, self._folder) if clean else None
                return server, await self._socket.put(made, first=first)
        except BaseException:
            await server.stop(None)
            raise

    def _handlers(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]]
        handlers = {"Register": grpc.unary_unary_rpc_method_handler(self._register)}
        return grpc.method_handlers_generic_handler(_SERVICE, handlers)

    async def _register(
        self, message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        try:
            request = pb.RegisterRequest.FromString(message)
        except DecodeError as error:
            await context.abort(
                grpc.StatusCode.INTERNAL, f"grpc: failed to unmarshal the received message: {error}"
            )
        try:
            check_version(request.version)
            check_resource_name(request.resource_name)
            await self._connecting.register(
                request.resource_name,
                endpoint_path(self._folder, request.endpoint),
                offered=PluginOptions.of(request.options) if request.HasField("options") else None,
            )
        except (RegistrationRefusedError, DevicePluginError) as error:
            # What is refused may be of any length; peers drop an answer whose headers have 8 KiB.
            text = str(error)[:_LONGEST_TEXT]
            self._report_refusal(request.resource_name[:_LONGEST_TEXT], text)
            # An error of Go's that is no gRPC status travels as code UNKNOWN.
            await context.abort(grpc.StatusCode.UNKNOWN, text)
        return b""

    def _report_refusal(self, resource: str, text: str) -> None:
        """Report it, but not each time that the plugin tries again."""
        now = time.monotonic()
        report = f"device plugin {resource!r} was refused: {printable(text)}"
        if now - self._refusals.get(report, -math.inf) < _SAME_AGAIN:
            return
        if len(self._refusals) >= _MOST_REFUSALS:
            self._refusals.clear()
        self._refusals[report] = now
        self._report(report)


def registration_socket(folder: Path) -> SocketFile:
    """The socket at which plugins register, in ``folder`` (absolute)."""
    return SocketFile(
        folder / SOCKET_NAME,
        shorter="give the device plugins a folder with a shorter path",
        elsewhere=ELSEWHERE,
        who="another process (perhaps a kubelet)",
    )


def remove_sockets(folder: Path) -> None:
    """Remove the sockets of plugins, as the kubelet does when it starts; raises OSError."""
    with os.scandir(folder) as entries:
        found = [(entry.path, entry.stat(follow_symlinks=False).st_mode) for entry in entries]
    if any(stat.S_ISDIR(mode) and not Path(path).name.startswith(".") for path, mode in found):
        return  # not a folder for plugins only: the sockets may be anybody's
    for path, mode in found:
        if stat.S_ISSOCK(mode):
            Path(path).unlink(missing_ok=True)
