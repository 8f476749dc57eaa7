"""Health and metrics, in plain HTTP: for kubelets and Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pinfold.web.limited_connection import LimitedConnection
from pinfold.web.replica.figures import MEDIA_TYPE, Figures


class HealthConnection(LimitedConnection):
    """A connection of a kubelet or of Prometheus."""


def make_health(problems: Callable[[], Sequence[str]], figures: Figures) -> Starlette:
    """The application: ``/healthz``, ``/readyz`` and ``/metrics``.

    ``problems`` are the reasons not to be asked: ready is who has none.
    """

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        found = problems()
        return PlainTextResponse("\n".join(found or ["ok"]) + "\n", 503 if found else 200)

    async def metrics(_request: Request) -> Response:
        return Response(figures.text(), media_type=MEDIA_TYPE)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
