"""A place for one: where somebody could sit, and the best of that; not all places are tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from pinfold.core.cpu.allocation import lowest_bits, take_packed
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.topology import CPUTopology

REGIONS: Final = 2
"""Most regions of a kind that are looked at for one seat."""


class Seat(Struct, frozen=True):
    """Somebody who is to have a place; sets are bitmasks.

    Attributes:
        count: how many CPUs.
        now: the CPUs of now; 0 for somebody who has none yet.
        within: the CPUs that it may have.
        cost: what a place costs; additive, less is better, and never below 0.  None: not there.
        fixed: it stays.
        near: CPUs that are near to what it works with; 0 for no matter.
        enough: a place that costs less is not looked at again.
        owners: how many move with it.
    """

    count: int
    now: int
    within: int
    cost: Callable[[int], int | None]
    fixed: bool = False
    near: int = 0
    enough: int = 1
    owners: int = 1


class Room(Struct, frozen=True):
    """Where seats are looked for.

    Attributes:
        topology: the machine.
        free: CPUs that nobody has, a bitmask.
        whole_cores: nobody shares a core.
        most_moved: how many owners may move at most; None for any number.
    """

    topology: CPUTopology
    free: int
    whole_cores: bool = False
    most_moved: int | None = None


class Places:
    """The places of a room; sets of CPUs are bitmasks.

    Attributes:
        regions: what it is made of, by kind: caches, NUMA nodes, sockets, and all of it.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.topology = topology = room.topology
        groups = (topology.uncore_caches, topology.numa_nodes, topology.sockets)
        kinds = [sorted(set(group.values())) for group in groups]
        # The smallest first: on some machines a cache is of several NUMA nodes.
        kinds.sort(key=len, reverse=True)
        self.regions = [*kinds, [topology.all]]

    def best(self, seat: Seat, free: int) -> tuple[int, int] | None:
        """Cost and place of somebody, by the CPUs that it could have now; None for none."""
        there = free
        free &= seat.within | seat.now
        full = self.full_cores(free)
        if self.room.whole_cores:
            free = full
        best: tuple[int, int] | None = None
        smaller: Sequence[int] = ()
        for regions in self.regions:
            fitting = self._fitting(seat, regions, free, full)
            joined = [self._joined(seat, smaller, free & region) for region in fitting]
            smaller = () if fitting else regions
            for region in dict.fromkeys((*fitting, *joined)):
                for place in self.picks(seat, free & region, full & region):
                    cost = seat.cost(place)
                    if cost is not None and (best is None or (cost, place) < best):
                        best = cost, place
            if best is not None and best[0] < seat.enough:
                break
        if seat.now and seat.now & ~there == 0:
            cost = seat.cost(seat.now)
            if cost is not None and (best is None or cost <= best[0]):
                best = cost, seat.now
        return best

    def _fitting(self, seat: Seat, regions: Sequence[int], free: int, full: int) -> list[int]:
        """Regions with room: with whole cores, near, where it is already, with little left over."""
        count, now, near = seat.count, seat.now, seat.near
        cores = count - count % self.topology.largest_core
        ranked = []
        for region in regions:
            left = (region & free).bit_count() - count
            if left >= 0:
                missing = max(cores - (region & full).bit_count(), 0)
                away = -(region & near).bit_count() if near else 0
                ranked.append((missing, away, -(region & now).bit_count(), left, region))
        ranked.sort()
        return [row[-1] for row in ranked[:REGIONS]]

    def _joined(self, seat: Seat, regions: Sequence[int], free: int) -> int:
        """What is free in as many regions as it needs, those first in which it is already."""
        found = 0
        parts = [region & free for region in regions]
        for part in sorted(
            parts, key=lambda part: (-(part & seat.now).bit_count(), -part.bit_count())
        ):
            found |= part
            if found.bit_count() >= seat.count:
                return found
        return free

    def picks(self, seat: Seat, free: int, full: int) -> list[int]:
        """Places in a region: of whole cores as far as can be, and one that keeps all it can.

        There are none where fewer CPUs are free than it has to have.
        """
        if free.bit_count() < seat.count:
            return []
        found = [self._pick(free, full, seat.count, seat.now)]
        kept = seat.now & free
        if 0 < kept.bit_count() < seat.count:
            # Cores that it is in already come first.
            missing = seat.count - kept.bit_count()
            kept |= lowest_bits(self._of_cores(kept) & free & ~kept, missing)
            rest = free & ~kept
            found.append(
                kept | self._pick(rest, self.full_cores(rest), seat.count - kept.bit_count())
            )
        if self.room.whole_cores:
            found = [place for place in found if place == self.full_cores(place)]
        return found

    def _pick(self, free: int, full: int, count: int, now: int = 0) -> int:
        """CPUs of whole free cores, its own before others; for the rest, single ones."""
        topology = self.topology
        if not topology.cores_alike or count > topology.cpus_per_uncore_cache:
            return take_packed(topology, free, count, align_uncore=True, rules=SOUND)
        cores = count // topology.largest_core
        taken = 0
        for offsets, firsts in topology.core_patterns if cores else ():
            whole, some, every = firsts, 0, -1
            for offset in offsets:
                whole &= full >> offset
                some |= now >> offset
                every &= now >> offset
            chosen = 0
            for own in (every, some, -1):
                chosen |= lowest_bits(whole & own & ~chosen, cores - chosen.bit_count())
            cores -= chosen.bit_count()
            for offset in offsets:
                taken |= chosen << offset
        for some in (now & free & ~full, free & ~full, now & full, full):
            if not (missing := count - taken.bit_count()):
                break
            taken |= lowest_bits(some & ~taken, missing)
        return taken

    def full_cores(self, free: int) -> int:
        """The CPUs of the cores that are free as a whole."""
        found = 0
        for offsets, firsts in self.topology.core_patterns:
            whole = firsts
            for offset in offsets:
                whole &= free >> offset
            for offset in offsets:
                found |= whole << offset
        return found

    def _of_cores(self, some: int) -> int:
        """The CPUs of the cores of some CPUs."""
        found = 0
        for offsets, firsts in self.topology.core_patterns:
            touched = 0
            for offset in offsets:
                touched |= firsts & (some >> offset)
            for offset in offsets:
                found |= touched << offset
        return found
