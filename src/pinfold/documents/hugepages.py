"""The kernel's pools of huge pages: what ``pinfold hugepages ... -o json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pinfold.documents.records import Document, Record


class HugepagePool(Record, frozen=True, kw_only=True):
    """The pages of one size on one NUMA node."""

    node: int | None
    """Null where the machine tells no NUMA nodes."""
    size: int
    """Bytes of a page."""
    resource: str
    """As pods call it: ``hugepages-2Mi``."""
    total: int
    free: int
    surplus: int | None
    """Null where the source does not tell."""


class HugepagePools(Document, frozen=True, kw_only=True):
    """What ``pinfold hugepages show`` prints."""

    kind: Literal["HugepagePools"] = "HugepagePools"
    pools: Sequence[HugepagePool]


class NodeChange(Record, frozen=True, kw_only=True):
    """What became of the pages of one NUMA node."""

    node: int | None
    before: int
    after: int


class HugepageChange(Document, frozen=True, kw_only=True):
    """What ``pinfold hugepages allocate`` and ``release`` print."""

    kind: Literal["HugepageChange"] = "HugepageChange"
    size: int
    """Bytes of a page."""
    resource: str
    asked: int
    """Pages."""
    changed: int
    """Pages that came; those that went are negative."""
    nodes: Sequence[NodeChange]
