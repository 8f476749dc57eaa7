"""An extender over real sockets, beside an API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.cluster.classes.extending import Extender
from pinfold.cluster.classes.holdings import Holdings
from pinfold.cluster.classes.known import Known
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.web.addresses import listen
from pinfold.web.extender.app import LIMITS, VERBS, ExtenderConnection, make_extender
from pinfold.web.limited_connection import Limits
from pinfold.web.replica.figures import Figures, Requests
from pinfold.web.server import Service, serve_on
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.scenes.class_cluster import install
from tests.scenes.kubernetes_worlds import in_background
from tests.scenes.waiting import PATIENCE


@asynccontextmanager
async def asking(app: Starlette, limits: Limits = LIMITS) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an extender that is served as a replica serves it, but for TLS."""
    stop = asyncio.Event()
    with listen("127.0.0.1:0") as sock:
        serving = asyncio.create_task(
            serve_on(app, sock, stop=stop, limits=limits, service=Service(ExtenderConnection))
        )
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=30 * PATIENCE) as client:
                yield client
        finally:
            stop.set()
            await serving


class World:
    """A cluster, its extender, and a scheduler's connection to it."""

    def __init__(self, cluster: FakeCluster, extender: Extender, http: httpx.AsyncClient) -> None:
        self.cluster = cluster
        self.extender = extender
        self._http = http

    async def ask(self, verb: str, asked: Any) -> Any:
        """What a scheduler is answered, who takes nothing but 200."""
        answer = await self._http.post(f"/{verb}", json=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @asynccontextmanager
    async def sending(self, head: bytes) -> AsyncIterator[asyncio.StreamReader]:
        """What is answered to some bytes, of a client that says nothing more."""
        url = self._http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        try:
            writer.write(head)
            await writer.drain()
            yield reader
        finally:
            writer.transport.abort()

    async def send(self, verb: str, body: bytes) -> int:
        """The status of the answer to any body."""
        return (await self._http.post(f"/{verb}", content=body)).status_code


@asynccontextmanager
async def served(
    figures: Figures, *, leads: bool = True, limits: Limits = LIMITS
) -> AsyncIterator[World]:
    """All of it, with both kinds defined."""
    async with running(ApiServer()) as api:
        install(api.cluster)
        client = KubeObjects(Access(api.url, None))
        try:
            known, holdings = Known(client), Holdings(client)
            extender = Extender(client, known, holdings, leads=lambda: leads)
            requests = Requests(figures, "pinfold_classes_extender", "Questions", VERBS, "verb")
            async with (
                asking(make_extender(extender, requests), limits) as http,
                in_background(known.follow(), extender.lead()),
            ):
                yield World(api.cluster, extender, http)
        finally:
            await client.close()
