"""How a machine compares with a profile: what ``pinfold profile check -o json`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from pinfold.documents.records import CPUs, Document, Record


class ProfileFinding(Record, frozen=True, kw_only=True):
    """A row of the profile, and how the machine compares."""

    name: str
    state: Annotated[str, Meta(extra_json_schema={"enum": ["fits", "differs", "unknown"]})]
    severity: Annotated[str, Meta(extra_json_schema={"enum": ["error", "warning", "info"]})]
    what: str
    """What is to be so."""
    read: str
    """Where that was looked for."""
    found: str | None
    """What is there; null where nothing is, or nobody knows."""
    expected: str
    remark: str | None
    """Why it is not known."""
    why: str
    """Why it matters."""
    source: str
    """Where that is said."""
    change: str
    """The line that changes it."""


class ProfileCheck(Document, frozen=True, kw_only=True):
    """How a machine compares with a profile."""

    kind: Literal["ProfileCheck"] = "ProfileCheck"
    profile: str
    machine: str
    verdict: Annotated[str, Meta(extra_json_schema={"enum": ["fits", "differs"]})]
    """``fits``: no row of severity error or warning (with ``--strict``: no row) differs or is
    unknown."""
    online: CPUs
    exclusive: CPUs | None
    """The CPUs that containers may own; null where that is not known."""
    counts: Mapping[str, int]
    """How many rows fit, differ and are unknown."""
    rows: Sequence[ProfileFinding]
    """In the order of the profile."""
    notes: Sequence[str]
