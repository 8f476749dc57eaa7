"""Parts of the caches and of the memory bandwidth, in the status of an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinfold.documents.records import CPUs, Record


class CacheGroup(Record, frozen=True, kw_only=True):
    """A group of resctrl that the agent has made."""

    name: str
    cpus: CPUs
    schemata: str
    """What it has, as the kernel writes it: ``L3:0=f;1=ff0 MB:0=50;1=50``."""
    containers: Sequence[str]
    """As ``UID/CONTAINER``."""


class CacheRefusal(Record, frozen=True, kw_only=True):
    """Why a container shares what all others have, although it has a class."""

    reason: str
    """One word, such as ``OutOfCacheWays``."""
    message: str


class CacheClasses(Record, frozen=True, kw_only=True):
    """Parts of the caches, and of the memory bandwidth."""

    ids: int
    """How many groups there can be, that of all others included; 0 where nothing can be divided."""
    groups: Sequence[CacheGroup]
    others: str
    """What all others have, as the kernel writes it."""
    foreign: Sequence[str]
    """Groups of other tools, which are left alone."""
    refused: Mapping[str, CacheRefusal]
    """By container, as ``UID/CONTAINER``."""
    problem: str
    """Why nothing is divided; empty while it is."""
