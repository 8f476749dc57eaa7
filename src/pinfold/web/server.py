"""Serves an application on a socket until it is told to stop: the local API, a webhook."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

import structlog
import uvicorn
from msgspec import Struct
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pinfold.linux.descriptors import RESERVE, file_limit
from pinfold.web.connection import Connection
from pinfold.web.limited_connection import LimitedConnection, Limits
from pinfold.web.listening import BACKLOG, listening

ACCEPT_PATIENCE: Final = 0.01
"""Seconds in which asyncio hands over what it has accepted."""

ANSWER_PATIENCE: Final = 0.3
"""Seconds in which they have to answer so."""

HANG_UP_PATIENCE: Final = 0.05
"""Seconds in which a client has to take what was written to him."""

log = structlog.get_logger("pinfold.web")


class Service(Struct, frozen=True):
    """How a server serves.

    Attributes:
        connection: the class of its connections.
        tls: a context, for HTTPS.
        finish: seconds for requests under way, once it stops; then they are answered with 503.
        handshake: seconds for one of TLS.
    """

    connection: type[LimitedConnection]
    tls: ssl.SSLContext | None = None
    finish: float = 0.7
    handshake: float = 5.0


LOCAL: Final = Service(Connection)
"""The agent's own API, on a unix socket."""


async def serve(
    app: Starlette, socket_path: Path, *, stop: asyncio.Event, limits: Limits | None = None
) -> None:
    """Serve until ``stop`` is set; returns within some 1.1 seconds, with the socket removed.

    Raises:
        PortError: the socket cannot be had; see :func:`pinfold.web.listening.listening`.
    """
    async with listening(socket_path) as sock:
        await serve_on(app, sock, stop=stop, limits=limits)


async def serve_on(
    app: ASGIApp,
    sock: socket.socket,
    *,
    stop: asyncio.Event,
    limits: Limits | None = None,
    service: Service = LOCAL,
) -> None:
    """The same on a socket that listens already, and is somebody else's to remove."""
    limits = limits or Limits()
    most = min(limits.connections, max(1, (file_limit() - RESERVE) // 2))
    limits = replace(limits, connections=most)
    config = uvicorn.Config(
        _answered(app, service.connection),
        http=cast("type[asyncio.Protocol]", functools.partial(service.connection, limits=limits)),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.idle,
        # So many are accepted before any of them is read: not all that there may be.
        backlog=min(BACKLOG, most // 4 + 1),
    )
    await _Server(config, stop, service).serve(sockets=[sock])


class _Server(uvicorn.Server):
    """uvicorn without its signals and its tick, and with an end that is soon."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event, service: Service) -> None:
        super().__init__(config)
        self._stop = stop
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The agent has its own."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        loop, config, tls = asyncio.get_running_loop(), self.config, self._service.tls
        protocol = cast("Callable[..., asyncio.Protocol]", config.http_protocol_class)
        # For answers that go on for ever: ``request.state.stop`` tells them to end.
        self.lifespan.state["stop"] = self._stop
        self.servers = [
            await loop.create_server(
                functools.partial(
                    protocol,
                    config=config,
                    server_state=self.server_state,
                    app_state=self.lifespan.state,
                ),
                sock=sock,
                ssl=tls,
                backlog=config.backlog,
                ssl_handshake_timeout=None if tls is None else self._service.handshake,
            )
            for sock in sockets or ()
        ]
        self.started = True
        for sock in sockets or ():
            sock.listen(BACKLOG)  # asyncio has taken how many it accepts in a turn for this, too

    async def main_loop(self) -> None:
        """Nothing is due ten times a second."""
        await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what is nearly done, refuse the rest, hang up."""
        for sock in sockets or ():
            asyncio.get_running_loop().remove_reader(sock)
        # A connection that was accepted a moment ago is known some turns of the loop later, and is
        # lost without being closed if its server is closed in between.
        await asyncio.sleep(ACCEPT_PATIENCE)
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(set(state.tasks), timeout=self._service.finish)
        for task in state.tasks:
            task.cancel()
        if state.tasks:
            await asyncio.wait(set(state.tasks), timeout=ANSWER_PATIENCE)
        if state.connections:
            await asyncio.sleep(HANG_UP_PATIENCE)
        for connection in list(state.connections):
            cast("LimitedConnection", connection).transport.abort()
        await asyncio.sleep(0)


def _answered(app: ASGIApp, connection: type[LimitedConnection]) -> ASGIApp:
    """See that every request gets an answer, and that a fault gets into the log."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await app(scope, receive, watched)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            # Only the end of the server cancels a request.
            if not begun:
                content = connection.refusal(503, *connection.stopping)
                answer = Response(content, 503, media_type="application/json")
                await answer(scope, receive, send)
        except Exception:  # noqa: BLE001 - whatever it is, the agent goes on
            # Starlette has answered with 500 before it raises again.
            # Not as an exception: some renderers print the local variables too, and a manifest's
            # environment is nobody's business.
            where = traceback.format_exc()
            log.error("request failed", method=scope["method"], path=scope["path"], where=where)

    return answered
