"""One event of ``GET /v1/events``: what has changed on a node since the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.live.scene import Scene
from pinfold.documents.machine import Machine
from pinfold.documents.move_plan import MovePlan
from pinfold.documents.node import Node
from pinfold.documents.observation import Observation
from pinfold.documents.plan import QuotaUse
from pinfold.documents.records import CPUs, Document, Record
from pinfold.documents.status import Agent, Pod, Status

EventKind: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["whole", "changed", "observed", "away"]})
]


class Whole(Record, frozen=True, kw_only=True):
    """All that there is to know: where a reader begins."""

    status: Status
    machine: Machine
    node: Node


class Changed(Record, frozen=True, kw_only=True):
    """What is otherwise than before; what is not here is as it was."""

    pods: Sequence[Pod] = ()
    """Those that have come or are otherwise, whole but for the ``load`` of their containers."""
    gone: Sequence[str] = ()
    """The uids of those that are not there any more."""
    agent: Agent | UnsetType = UNSET
    shared: CPUs | UnsetType = UNSET
    """These as in the status."""
    pool: CPUs | UnsetType = UNSET
    reserved: CPUs | UnsetType = UNSET
    allocatable: CPUs | UnsetType = UNSET
    offline: CPUs | UnsetType = UNSET
    unhealthy_in_use: Mapping[str, Mapping[str, int]] | UnsetType = UNSET
    move: MovePlan | UnsetType | None = UNSET
    quotas: Sequence[QuotaUse] | UnsetType = UNSET
    node: Node | UnsetType = UNSET
    """As ``GET /v1/node``, where that is otherwise."""


class Event(Document, frozen=True, kw_only=True):
    """One event; of the three fields that are named like kinds there is that of its ``kind``."""

    id: str
    """Also the ``id`` of the stream, from which ``Last-Event-ID`` goes on.  From ``pinfold serve``
    it is that of the scene; what it tells beside that has the same one."""
    at: float
    """Seconds since the epoch."""
    kind: EventKind
    """``whole``: forget what was before, such as after a restart of the agent; ``changed``;
    ``observed``: what containers and CPUs did in the last interval.

    Only from ``pinfold serve``: ``away``, the agent does not answer, and what was told last may not
    be so any more; until the next event of any other kind."""
    whole: Whole | UnsetType = UNSET
    changed: Changed | UnsetType = UNSET
    observed: Observation | UnsetType = UNSET
    scene: Scene | UnsetType = UNSET
    """How the node is drawn from now on; only from ``pinfold serve``, with ``whole`` and
    ``changed``, which have nothing else there."""
    problem: str | UnsetType = UNSET
    """Of ``away``: what is wrong and what helps, in words."""
