"""What a machine offers of its caches and of its memory bandwidth, as resctrl tells it.

A cache is divided into ways; a mask of bits says which of them somebody may fill.  Source: the
kernel's ``Documentation/filesystems/resctrl.rst``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet

BANDWIDTH: Final = "MB"
CODE, DATA = "CODE", "DATA"

Schemata: TypeAlias = Mapping[str, Mapping[int, int]]
"""What a group has: by line (``L3``, ``L3CODE``, ``MB``) and domain a mask, or an amount."""


class Cache(Struct, frozen=True):
    """The caches of one level.

    Attributes:
        level: 2 or 3.
        lines: the lines of a schemata that are about it: one, or two with code and data apart.
        mask: every way.
        min_bits: how many a mask has at least.
        shareable: the ways that others than CPUs (as I/O) may fill as well.
        sparse: whether a mask may have holes.
        domains: the CPUs at each cache, by its id.
    """

    level: int
    lines: tuple[str, ...]
    mask: int
    min_bits: int
    shareable: int
    sparse: bool
    domains: Mapping[int, CPUSet]

    @property
    def name(self) -> str:
        """Such as ``L3``."""
        return f"L{self.level}"


class Bandwidth(Struct, frozen=True):
    """Memory bandwidth, which is a limit and nobody's own.

    Attributes:
        unit: ``%``; ``MBps`` (mounted with ``mba_MBps``); ``GBps/8`` (AMD: eighths of a GB/s).
        minimum: the least that may be asked for.
        step: amounts are rounded up to a multiple of it.
        domains: the CPUs at each level 3 cache, by its id.
    """

    unit: str
    minimum: int
    step: int
    domains: Mapping[int, CPUSet]


class Offer(Struct, frozen=True):
    """What there is; ``ids`` is how many groups there can be, the default one included."""

    ids: int
    caches: tuple[Cache, ...] = ()
    bandwidth: Bandwidth | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of a schemata that are known here; others are left alone."""
        caches = tuple(line for cache in self.caches for line in cache.lines)
        return caches if self.bandwidth is None else (*caches, BANDWIDTH)

    def slots(self) -> Iterator[Slot]:
        """Each cache of the machine."""
        for cache in self.caches:
            for domain, cpus in cache.domains.items():
                yield Slot(cache, domain, cpus)


class Slot(Struct, frozen=True):
    """One cache of the machine, and the CPUs at it."""

    cache: Cache
    domain: int
    cpus: CPUSet

    @property
    def key(self) -> tuple[int, int]:
        """Its level and id."""
        return self.cache.level, self.domain

    def masks(self, schemata: Schemata) -> tuple[int, ...]:
        """What a group has of it, line by line; every way where it does not say."""
        return tuple(
            schemata.get(line, {}).get(self.domain, self.cache.mask) for line in self.cache.lines
        )

    def said(self, schemata: Schemata) -> int:
        """The ways of it that a group names; none where it does not."""
        found = 0
        for line in self.cache.lines:
            found |= schemata.get(line, {}).get(self.domain, 0)
        return found

    def ways(self, schemata: Schemata) -> int:
        """The ways that a group may fill, with code or data."""
        found = 0
        for mask in self.masks(schemata):
            found |= mask
        return found


class Group(Struct, frozen=True):
    """A resource group of resctrl: whose CPUs have what; the default one has the name ""."""

    name: str
    cpus: CPUSet
    schemata: Schemata
