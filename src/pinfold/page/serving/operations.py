"""The table of what the page's server answers: each of them reads, and there is nothing else."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class PageOperation(Struct, frozen=True):
    """One path, for ``GET`` and ``HEAD``.

    Attributes:
        path: with the names that are taken from it.
        handler: the coroutine in :class:`pinfold.page.serving.handlers.PageHandlers`.
        meaning: what it answers, in a line.
        query: the parameters that it may have.
    """

    path: str
    handler: str
    meaning: str
    query: tuple[str, ...] = ()


OPERATIONS: Final = (
    PageOperation("/", "page", "the page"),
    PageOperation("/files/{name}", "file", "a file of the page"),
    PageOperation("/v1/events", "events", "what changes, as server-sent events"),
    PageOperation("/v1/scene", "scene", "how the node is drawn, now or then", ("at",)),
    PageOperation("/v1/history", "history", "what was decided", ("pod", "kind", "limit")),
    PageOperation("/v1/explain/{namespace}/{name}", "explain", "why a pod has what it has"),
)
"""All of it, beside the door's: ``/healthz``, and the form at ``/`` that brings the token."""
