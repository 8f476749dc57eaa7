"""The podresources server on its unix socket, which comes back when its file is taken away."""

from __future__ import annotations

import asyncio
import grp
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from pinfold.adapters.podresources.service import TokenBucket, pod_resources_handlers
from pinfold.formats.grpc_limits import CALLS, server_options
from pinfold.linux.socket_files import SocketFile
from pinfold.linux.socket_places import Identity, identity, remove_own
from pinfold.ports.errors import PortError
from pinfold.ports.podresources import PodResourcesSource

DEFAULT_SOCKET: Final = "/var/lib/pinfold/pod-resources/pinfold.sock"

LOOK_PERIOD: Final = 1.0
"""Seconds between looks at the socket's file."""

GRACE: Final = 1.0
"""Seconds in which requests that came before the end are answered."""

_OPTIONS: Final = (
    # Readers made for the kubelet take 16 MiB; a Go server sends what there is.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 4 << 20),
)


async def serve_pod_resources(  # noqa: PLR0913 - what the caller may choose, by keyword
    source: PodResourcesSource,
    path: Path,
    *,
    stop: asyncio.Event,
    group: str | int | None = None,
    ready: asyncio.Event | None = None,
    report: Callable[[str], None] = lambda _: None,
    look_period: float = LOOK_PERIOD,
) -> None:
    """Serve podresources v1 and v1alpha1 until ``stop`` is set; then the socket's file is removed.

    A socket's file that is deleted meanwhile is made anew; whoever was connected is told to
    connect again, as gRPC's clients do by themselves.

    Args:
        source: who knows the pods' resources; asked in this event loop.
        path: the socket, which gets mode 0600; missing folders are made with mode 0750.
        stop: when to end.
        group: a group, by name or number, whose members may connect too (mode 0660).
        ready: is set once the socket answers.
        report: takes a problem that arises while serving, once as long as it stays the same.
        look_period: seconds between looks at the socket's file.

    Raises:
        PortError: the socket cannot be had at the start.
    """
    file = _socket_file(path, group)
    limit = TokenBucket(time.monotonic)
    serving = await _Serving.open(file, source, limit)
    if ready is not None:
        ready.set()
    reported = ""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while not stopped.done():
            await asyncio.wait({stopped}, timeout=look_period)
            if stopped.done() or serving.in_place:
                reported = ""
                continue
            try:
                successor = await _Serving.open(file, source, limit)
            except PortError as error:
                if str(error) != reported:
                    report(f"podresources: {error}")
                    reported = str(error)
                continue
            before, serving = serving, successor
            await before.close()
    finally:
        stopped.cancel()
        await serving.close()


def _socket_file(path: Path, group: str | int | None) -> SocketFile:
    if isinstance(group, str):
        try:
            group = grp.getgrnam(group).gr_gid
        except KeyError:
            raise PortError(
                f"{path}: there is no group {group!r} that could use the podresources socket",
                "make the group, or name another",
            ) from None
    return SocketFile(
        path.absolute(),
        shorter="give the podresources socket a shorter one",
        elsewhere="give the podresources socket another path",
        group=group,
    )


class _Serving:
    """A server whose socket was put in its place."""

    def __init__(self, server: grpc.aio.Server, file: SocketFile, which: Identity | None) -> None:
        self._server = server
        self._file = file
        self._identity = which

    @classmethod
    async def open(
        cls, file: SocketFile, source: PodResourcesSource, limit: TokenBucket
    ) -> _Serving:
        """Start a server and put its socket in place; raises PortError."""
        file.prepare()
        server = grpc.aio.server(
            handlers=pod_resources_handlers(source, limit),
            options=[*_OPTIONS, *server_options()],
            maximum_concurrent_rpcs=CALLS,
        )
        try:
            with file.workshop() as made:
                try:
                    server.add_insecure_port(f"unix:{quote(str(made))}")
                except RuntimeError as error:
                    raise PortError(f"{file.path}: {error}") from None
                await server.start()
                return cls(server, file, await file.put(made))
        except BaseException:
            await server.stop(None)
            raise

    @property
    def in_place(self) -> bool:
        """Whether the socket's file is there."""
        return identity(self._file.path) == self._identity

    async def close(self) -> None:
        """Remove the file, answer what was asked, and end."""
        remove_own(self._file.path, self._identity)
        await self._server.stop(GRACE)
