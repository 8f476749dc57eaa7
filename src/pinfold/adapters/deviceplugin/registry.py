"""The plugin watcher: sockets that appear in a folder are asked who they are.

Source: upstream ``pkg/kubelet/pluginmanager`` (``plugin_watcher.go``, ``operation_generator.go``).
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from msgspec import Struct, field

from pinfold.adapters.deviceplugin import pluginregistration_pb2 as pb
from pinfold.adapters.deviceplugin.plugin_client import PluginLimits, open_channel, rpc_error
from pinfold.adapters.deviceplugin.registration_rules import (
    RegistrationRefusedError,
    check_resource_name,
    check_versions,
    go_quoted,
    printable,
)
from pinfold.adapters.deviceplugin.registration_service import ELSEWHERE
from pinfold.linux.socket_files import socket_folder
from pinfold.linux.socket_places import LONGEST_PATH, Identity, identity
from pinfold.ports.devices import DevicePluginError
from pinfold.retry.backoff import Backoff

PLUGIN_TYPE: Final = "DevicePlugin"
"""The only type of plugin that is taken."""

_SERVICE: Final = "/pluginregistration.Registration/"
_DEEPEST: Final = 8
_FIRST_RETRY: Final = 0.5
_LONGEST_RETRY: Final = 120.0
_LONG_ENOUGH: Final = 60.0


class Registrar(Protocol):
    """Who takes the plugins that are found."""

    async def register(self, resource: str, path: Path, *, origin: Path | None) -> None:
        """Connect to a plugin; raises what :meth:`DevicePluginServer.register` raises."""

    def deregister(self, origin: Path) -> None:
        """Take the plugin of that socket for gone."""

    def serves(self, resource: str) -> bool:
        """Whether a plugin is connected for the resource."""


class _Found(Struct):
    """A socket of the folder; ``resource`` is set while it is registered."""

    identity: Identity
    task: asyncio.Task[None] | None = None
    resource: str = ""
    since: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_RETRY, _LONGEST_RETRY))


class PluginRegistry:
    """The folder's sockets, each registered as long as it is there.

    Files whose names begin with a dot are not for it, folders are looked into.  One that failed
    is asked again after half a second, then after twice as long each time, up to two minutes.
    """

    def __init__(
        self,
        folder: Path,
        limits: PluginLimits,
        registrar: Registrar,
        report: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._limits = limits
        self._registrar = registrar
        self._report = report
        self._found: dict[Path, _Found] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Semaphore(limits.asked_at_once)

    def prepare(self) -> None:
        """Make the folder; raises PortError."""
        socket_folder(self._folder, ELSEWHERE)

    def look(self) -> None:
        """See what has come and gone, and begin what has to be done."""
        there = dict(_sockets(str(self._folder), _DEEPEST))
        for path in [p for p, found in self._found.items() if there.get(p) != found.identity]:
            gone = self._found.pop(path)
            if gone.task is not None:
                gone.task.cancel()
            self._registrar.deregister(path)
        now = asyncio.get_running_loop().time()
        for path, which in there.items():
            found = self._found.setdefault(path, _Found(which))
            if found.resource and not self._registrar.serves(found.resource):
                # It is there and its stream has ended: perhaps it wants to be asked again.
                found.resource = ""
                if now - found.since > _LONG_ENOUGH:
                    found.backoff.well()
                found.backoff.failed()
            if found.task is None and not found.resource and now >= found.backoff.due:
                found.task = asyncio.create_task(self._ask(path, found))
                self._tasks.add(found.task)
                found.task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ask nobody any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._found.clear()

    async def _ask(self, path: Path, found: _Found) -> None:
        async with self._asking:
            await self._ask_now(path, found)

    async def _ask_now(self, path: Path, found: _Found) -> None:
        channel = open_channel(path, self._limits)
        try:
            found.resource = await self._register(path, channel)
            found.since = asyncio.get_running_loop().time()
            found.backoff.problem = ""
        except (DevicePluginError, RegistrationRefusedError) as error:
            if str(error) != found.backoff.problem:
                self._report(f"plugin at {path} was not registered: {printable(str(error))}")
            found.backoff.failed(str(error))
        finally:
            found.task = None
            await channel.close(None)

    async def _register(self, path: Path, channel: grpc.aio.Channel) -> str:
        try:
            async with asyncio.timeout(self._limits.dial):
                await channel.channel_ready()
        except TimeoutError:
            raise DevicePluginError(
                f"nobody answered within {self._limits.dial:g} s", "remove the socket"
            ) from None
        data = await _call(channel, "GetInfo", b"", self._limits.info)
        try:
            info = pb.PluginInfo.FromString(data)
        except DecodeError:
            raise DevicePluginError(
                f"GetInfo was answered with {len(data)} bytes that are no PluginInfo",
                "see the plugin's log",
            ) from None
        refusal = await self._try(info, path)
        status = pb.RegistrationStatus(plugin_registered=not refusal, error=refusal)
        try:
            await _call(
                channel,
                "NotifyRegistrationStatus",
                status.SerializeToString(),
                self._limits.notify,
            )
        except DevicePluginError as error:
            if not refusal:
                # It serves all the same.
                self._report(f"plugin at {path} was not told that it is registered: {error}")
        if refusal:
            raise RegistrationRefusedError(refusal)
        return info.name

    async def _try(self, info: pb.PluginInfo, path: Path) -> str:
        """Register it; what it is to be told if that failed, "" if not."""
        if info.type != PLUGIN_TYPE:
            return (
                f"RegisterPlugin error -- no handler registered for plugin type: {info.type} at "
                f"socket {path}"
            )
        try:
            endpoint = _endpoint(info.endpoint, path)
            check_versions(info.supported_versions)
            try:
                check_resource_name(info.name)
            except RegistrationRefusedError as error:
                raise RegistrationRefusedError(
                    f"invalid name of device plugin socket: {error}"
                ) from None
        except RegistrationRefusedError as error:
            return f"RegisterPlugin error -- plugin validation failed with err: {error}"
        try:
            await self._registrar.register(info.name, endpoint, origin=path)
        except (DevicePluginError, RegistrationRefusedError) as error:
            return f"RegisterPlugin error -- plugin registration failed with err: {error}"
        return ""


def _endpoint(endpoint: str, path: Path) -> Path:
    if not endpoint:
        return path
    if (
        not endpoint.startswith("/")
        or "\0" in endpoint
        or ".." in Path(endpoint).parts
        or len(os.fsencode(endpoint)) > LONGEST_PATH
    ):
        raise RegistrationRefusedError(
            f"the endpoint {go_quoted(endpoint)} is invalid: it must be the absolute path of a "
            f"socket, without .., of {LONGEST_PATH} bytes at most"
        )
    return Path(endpoint)


async def _call(channel: grpc.aio.Channel, method: str, request: bytes, seconds: float) -> bytes:
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{_SERVICE}{method}")
    try:
        return await ask(request, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        raise DevicePluginError(f"{method}: {rpc_error(error)}", "see the plugin's log") from None


def _sockets(folder: str, deepest: int) -> list[tuple[Path, Identity]]:
    found: list[tuple[Path, Identity]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if deepest:
                        found += _sockets(entry.path, deepest - 1)
                elif stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    path = Path(entry.path)
                    which = identity(path)
                    if which is not None:
                        found.append((path, which))
    except OSError:
        pass  # it went while it was looked at
    return found
