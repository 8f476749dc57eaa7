"""The server on a socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from tests.cluster.api_server.server import ApiServer


@asynccontextmanager
async def running(
    api: ApiServer, port: int = 0, certificate: Path | None = None, key: Path | None = None
) -> AsyncIterator[ApiServer]:
    """Serve it on 127.0.0.1; ``url`` is where."""
    end = api.cluster.disconnect
    async with served(api.app(), port, certificate=certificate, key=key, end=end) as url:
        api.url = url
        yield api


@asynccontextmanager
async def served(
    app: Starlette,
    port: int = 0,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    end: Callable[[], None] = lambda: None,
) -> AsyncIterator[str]:
    """Serve an application on 127.0.0.1, and call ``end`` before it ends; where it is."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        app,
        log_level="error",
        lifespan="off",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    # What uvicorn's serve() does, without its signals, which are the tests'.
    config.load()
    server.lifespan = config.lifespan_class(config)
    listening.listen()
    await server.startup(sockets=[listening])
    ticking = asyncio.create_task(server.main_loop())
    try:
        scheme = "https" if certificate else "http"
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        end()
        await ticking
        await server.shutdown(sockets=[listening])
