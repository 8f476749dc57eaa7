"""Serving on a unix socket that only the agent's user and root may use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from pinfold.node.ports import PortError

_PEER: Final = struct.Struct("3i")
"""``struct ucred``: pid, uid, gid."""

_SHUTDOWN_SECONDS: Final = 2


class _PeerCheckedProtocol(H11Protocol):
    """HTTP for peers whose user may ask; the others are hung up on."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("socket")
        if peer is None or not _may_ask(peer):
            transport.abort()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.transport is not None:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is not None:
            super().connection_lost(exc)


def _may_ask(peer: socket.socket) -> bool:
    packed = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(packed)
    return uid in (0, os.geteuid())


async def serve(app: Starlette, path: Path, *, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set; the socket is gone afterwards.

    Raises:
        PortError: the socket cannot be made, or another agent listens on it.
    """
    listener = listen(path)
    config = uvicorn.Config(
        app,
        http=_PeerCheckedProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        timeout_keep_alive=5,
    )
    server = _QuietServer(config)

    async def end() -> None:
        await stop.wait()
        server.should_exit = True

    ending = asyncio.create_task(end())
    try:
        await server.serve(sockets=[listener])
    finally:
        ending.cancel()
        listener.close()
        _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


class _QuietServer(uvicorn.Server):
    """Leaves the signals to the agent."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


def listen(path: Path) -> socket.socket:
    """A listening socket at a path, for its owner only from the first moment.

    Raises:
        PortError: it cannot be made, or another agent listens on it.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _take_away_stale(path)
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(1024)
        listener.setblocking(False)  # noqa: FBT003 - the method's own argument
    except OSError as error:
        listener.close()
        long = "; its path may have 107 bytes at most" if len(str(path)) > 107 else ""
        raise PortError(
            f"{path}: {error.strerror or error}{long}", "name another --socket"
        ) from None
    except PortError:
        listener.close()
        raise
    return listener


def _take_away_stale(path: Path) -> None:
    """Remove the socket of an agent that has died."""
    if not path.exists():
        return
    if not path.is_socket():
        raise PortError(f"{path}: there is something that is no socket", "name another --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise PortError(f"{path}: another agent listens here", "stop it, or name another --socket")
