"""The extender as an ASGI application: ``/filter``, ``/prioritize`` and ``/bind``.

A scheduler shows what is in ``Error``, and of an answer that is not 200 only the number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pinfold.cluster.classes.extending import Extender, ExtenderError
from pinfold.documents.scheduler_extender import (
    MOST_NODES,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    HostPriority,
    NodeList,
)
from pinfold.ports.kubernetes import Metadata, Object
from pinfold.web.answers import Document, error_answer
from pinfold.web.bodies import MOST_OBJECT, Room, announced, read_body, too_large
from pinfold.web.limited_connection import LimitedConnection, Limits
from pinfold.web.replica.figures import Requests

FILTER: Final = "filter"
PRIORITIZE: Final = "prioritize"
BIND: Final = "bind"
VERBS: Final = (FILTER, PRIORITIZE, BIND)

MOST_BODY: Final = 64 << 20
"""Bytes of a question: a pod, and thousands of nodes if they are sent whole."""

MOST_NAMES: Final = 2 << 20
"""Bytes of a pod and the names of 5,000 nodes, at most.

Such questions have a room of their own: who sends whole nodes, and slowly, holds up no others.
"""

MOST_BY_NAME: Final = MOST_OBJECT + MOST_NODES * 256
"""Bytes of the largest pod and the longest names."""

LIMITS: Final = Limits(request=10.0, answer=5.0, idle=90, connections=100)
"""A scheduler waits for 5 s by itself; it keeps a connection for 90."""

T = TypeVar("T")

_args: Final = msgspec.json.Decoder(ExtenderArgs)
_binding: Final = msgspec.json.Decoder(ExtenderBindingArgs)


class ExtenderConnection(LimitedConnection):
    """A connection of a scheduler."""


def make_extender(extender: Extender, requests: Requests, *, room: Room | None = None) -> Starlette:
    """The application.

    Args:
        extender: who answers.
        requests: counts, by :data:`VERBS`.
        room: for questions with whole nodes; None: for one of the largest.
    """
    served = _Extender(extender, requests, room or Room(MOST_BODY))
    answers = {FILTER: served.filter, PRIORITIZE: served.prioritize, BIND: served.bind}
    app = Starlette(
        routes=[Route(f"/{verb}", answers[verb], methods=["POST"]) for verb in VERBS],
        exception_handlers={HTTPException: _refused, Exception: _refused},
    )
    app.router.redirect_slashes = False
    return app


class _Node(Struct):
    metadata: Metadata


_node: Final = msgspec.json.Decoder(_Node)
_pod: Final = msgspec.json.Decoder(dict[str, Any])


class _Extender:
    def __init__(self, extender: Extender, requests: Requests, room: Room) -> None:
        self._extender = extender
        self._requests = requests
        self._room = room
        self._room_of_names = Room(16 * MOST_NAMES)

    async def filter(self, request: Request) -> Response:
        """Which nodes fit."""
        with self._requests.counted() as counted:
            counted.path = FILTER
            asked, pod, nodes = await self._asked(request, _question)
            names = [name for name, _ in nodes]
            try:
                fitting = self._extender.fitting(pod, names)
            except ExtenderError as error:
                return Document(ExtenderFilterResult(error=_shown(error)))
            counted.decision = "allowed" if fitting.nodes else "denied"
            fit = set(fitting.nodes)
            return Document(
                ExtenderFilterResult(
                    NodeList(tuple(raw for name, raw in nodes if name in fit))
                    if asked.node_names is None
                    else None,
                    None if asked.node_names is None else fitting.nodes,
                    fitting.failed,
                    # To a scheduler it would seem that the pod fits as soon as it looks what it
                    # could evict: its own filters know nothing of classes.
                    fitting.failed,
                )
            )

    async def prioritize(self, request: Request) -> Response:
        """How well nodes suit."""
        with self._requests.counted() as counted:
            counted.path = PRIORITIZE
            _, pod, nodes = await self._asked(request, _question)
            names = [name for name, _ in nodes]
            try:
                scores = self._extender.scores(pod, names)
            except ExtenderError as error:
                raise HTTPException(503, str(error)) from None
            counted.decision = "allowed"
            return Document([HostPriority(*one) for one in zip(names, scores, strict=True)])

    async def bind(self, request: Request) -> Response:
        """Bind a pod to a node."""
        with self._requests.counted() as counted:
            counted.path = BIND
            asked = await self._asked(request, _binding.decode)
            try:
                await self._extender.bind(asked.namespace, asked.name, asked.uid, asked.node)
            except ExtenderError as error:
                counted.decision = "denied"
                return Document(ExtenderBindingResult(_shown(error)))
            counted.decision = "allowed"
            return Document(ExtenderBindingResult())

    async def _asked(self, request: Request, decode: Callable[[bytearray], T]) -> T:
        size = announced(request, MOST_BODY)
        async with (self._room_of_names if size <= MOST_NAMES else self._room).taken(size):
            body = await read_body(request, MOST_BODY)
            try:
                return decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise HTTPException(
                    400, f"the body is not what a scheduler asks: {error}"
                ) from None
            except RecursionError:
                raise HTTPException(400, "the body is nested too deeply") from None


def _question(body: bytearray) -> tuple[ExtenderArgs, Object, Sequence[tuple[str, Raw]]]:
    """What is asked, about which pod, and of which nodes."""
    asked = _args.decode(body)
    if len(asked.pod) > MOST_OBJECT:
        raise too_large(MOST_OBJECT)
    if asked.node_names is not None and len(body) > MOST_BY_NAME:
        raise too_large(MOST_BY_NAME)
    return asked, _pod.decode(asked.pod), _nodes(asked)


def _nodes(asked: ExtenderArgs) -> Sequence[tuple[str, Raw]]:
    """The nodes by name; each as it came, where they came whole."""
    if asked.node_names is not None:
        return [(name, _NOTHING) for name in asked.node_names]
    items = (asked.nodes.items if asked.nodes is not None else None) or ()
    try:
        return [(_node.decode(item).metadata.name, item) for item in items]
    except msgspec.DecodeError as error:
        raise HTTPException(400, f"Nodes.items: {error}") from None


_NOTHING: Final = Raw(b"null")


def _shown(error: Exception) -> str:
    """What a scheduler shows; it takes it for a format, in which a percent sign is something."""
    return f"pinfold: {error}".replace("%", "")


async def _refused(_request: Request, error: Exception) -> Response:
    return error_answer(error)
