"""Whether nodes have the resources of classes yet: what ``pinfold readiness -o json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from pinfold.documents.records import Document, Record

State = Annotated[
    str, Meta(extra_json_schema={"enum": ["ready", "coming", "not viable", "not here"]})
]


class ClassOnNode(Record, frozen=True, kw_only=True):
    """A class on one node."""

    class_name: str
    node: str
    state: State
    """``ready``: all that the node's labels promise is there. ``coming``: not yet. ``not viable``:
    not within the time that the class gives it. ``not here``: no label promises any, and there is
    none."""
    expected: int | None
    """How many the node's labels promise; null where no label says."""
    exported: int
    """How many there are."""
    wait_seconds: float | None
    """For how long it is worth waiting; null where it is not coming, or without a bound."""


class Readiness(Document, frozen=True, kw_only=True):
    """Whether nodes have the resources of classes yet."""

    kind: Literal["Readiness"] = "Readiness"
    at: str
    """The moment at which this was so (RFC 3339)."""
    answers: Sequence[ClassOnNode]
    """By node and class, in the order in which they were read."""
