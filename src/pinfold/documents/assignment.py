"""What a container with exclusive CPUs is told of them: ``assignment.json``."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from pinfold.documents.move_plan import WHY, NUMANodes
from pinfold.documents.records import CPUs, Document, Record

ADMISSION: Final = "admission"
OFFLINE: Final = "offline"
ONLINE: Final = "online"
"""Why somebody was told, beside plans of moves."""


class Assigned(Record, frozen=True, kw_only=True):
    """CPUs and memory."""

    cpus: CPUs
    """Exclusive ones; empty while it runs on the shared pool: all of them are offline, or its load
    does not ask for any."""
    mems: NUMANodes
    """The NUMA nodes that the memory manager gave to it; empty where it gave none."""


class Assignment(Document, frozen=True, kw_only=True):
    """What a container with exclusive CPUs has, and what is coming."""

    generation: int
    """Grows by one with each news, also over restarts; what `ack/generation` is compared with."""
    current: Assigned
    """Where it may run now.  On the way to other CPUs these are the old and the new ones."""
    coming: Assigned
    """What it will have; the same as `current` where nothing is under way."""
    previous: Assigned | None
    """What it had before it was moved the last time, or is; null: it never was."""
    reason: Annotated[str, Meta(extra_json_schema={"enum": [ADMISSION, *WHY, OFFLINE, ONLINE]})]
    """Why it was told."""
    deadline: Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None
    """RFC 3339, in UTC: no sooner is anything of `current` taken, unless this generation is
    acknowledged.  Null where nothing is to be taken."""
