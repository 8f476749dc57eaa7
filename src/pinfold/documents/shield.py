"""A shield around CPUs: what ``pinfold shield -o json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.records import CPUs, Document


class Shield(Document, frozen=True, kw_only=True):
    """Whether CPUs are shielded, and what was done about it."""

    kind: Literal["Shield"] = "Shield"
    state: Annotated[
        str, Meta(extra_json_schema={"enum": ["none", "up", "unfinished", "raised", "lowered"]})
    ]
    cpus: CPUs | UnsetType = UNSET
    """Those that are shielded."""
    others: CPUs | UnsetType = UNSET
    """Where everything else runs."""
    method: (
        Annotated[str, Meta(extra_json_schema={"enum": ["systemd", "cgroup2", "cgroup1"]})]
        | UnsetType
    ) = UNSET
    keep: Sequence[str] | UnsetType = UNSET
    """Cgroups that are left alone."""
    irqs: bool | UnsetType = UNSET
    """Whether interrupts were moved, too."""
    moved: int | UnsetType = UNSET
    """Tasks."""
    bound: int | UnsetType = UNSET
    """Kernel threads that cannot leave their CPU."""
    left: Sequence[str] | UnsetType = UNSET
    """What stayed, and why."""
    irqs_moved: int | UnsetType = UNSET
    irqs_fixed: Sequence[str] | UnsetType = UNSET
    """Interrupts that cannot be moved."""
    notes: Sequence[str] | UnsetType = UNSET
    strangers: Sequence[str] | UnsetType = UNSET
    """Foreign tasks that may run on the shielded CPUs."""
