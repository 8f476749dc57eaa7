"""An audit: what ``pinfold audit -o json`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.records import CPUs, Document, Record


class AuditedRecord(Record, frozen=True, kw_only=True):
    """The record of exclusive CPUs."""

    source: str
    shared: CPUs | None
    """The shared pool; null where the record knows of none."""
    exclusive: CPUs


class AuditedKernel(Record, frozen=True, kw_only=True):
    """What was looked at."""

    online: CPUs
    isolated: CPUs
    nohz_full: CPUs
    rcu_nocbs: CPUs | UnsetType = UNSET
    """Only where there are some."""
    cgroup_version: int | None
    processes: int
    threads: int
    interrupts: int
    cgroups: int
    containers: int


class AuditedOwner(Record, frozen=True, kw_only=True):
    """An owner of CPUs."""

    pod: str
    uid: str | None
    container: str | None
    id: str | None
    """Of the container, the runtime's."""
    cpus: CPUs
    effective: CPUs | None
    """Where the kernel lets it run; null where it was not found."""
    lent: CPUs | UnsetType = UNSET
    """Those of its own on which others may run while it does not; they are no finding."""
    cgroups: Sequence[str]


class AuditFinding(Record, frozen=True, kw_only=True):
    """One thing that is out of order."""

    slug: str
    severity: Annotated[str, Meta(extra_json_schema={"enum": ["error", "warning", "info"]})]
    what: str
    where: str
    cpus: CPUs
    why: str
    """Why it matters."""
    remedy: str
    fix: Sequence[str]
    """The commands that mend it."""
    owners: Sequence[str]
    count: int
    examples: Sequence[str]


class Audit(Document, frozen=True, kw_only=True):
    """Whether the kernel agrees with what is recorded."""

    kind: Literal["Audit"] = "Audit"
    verdict: Annotated[str, Meta(extra_json_schema={"enum": ["clean", "findings"]})]
    record: AuditedRecord
    kernel: AuditedKernel
    counts: Mapping[str, int]
    """Findings by severity."""
    owners: Sequence[AuditedOwner]
    findings: Sequence[AuditFinding]
