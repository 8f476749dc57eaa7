"""The server on a socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from tests.cluster.api_server.server import ApiServer


@asynccontextmanager
async def running(
    api: ApiServer, port: int = 0, certificate: Path | None = None, key: Path | None = None
) -> AsyncIterator[ApiServer]:
    """Serve it on 127.0.0.1; ``url`` is where."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        api.app(),
        log_level="error",
        lifespan="off",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    scheme = "https" if certificate else "http"
    api.url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
    # What uvicorn's serve() does, without its signals, which are the tests'.
    config.load()
    server.lifespan = config.lifespan_class(config)
    listening.listen()
    await server.startup(sockets=[listening])
    ticking = asyncio.create_task(server.main_loop())
    try:
        yield api
    finally:
        server.should_exit = True
        api.cluster.disconnect()
        await ticking
        await server.shutdown(sockets=[listening])
