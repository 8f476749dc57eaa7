"""Who sits where: the cheapest disjoint places for all.

On small machines the answer is exact: all places are looked at, and what cannot be better than
what is known is left out.  On others it is found by taking from their places those
who could sit better, with those who are in their way, seating them anew, the largest first, and
keeping that if the whole is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.cpu.allocation import lowest_bits, take_packed
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import iter_bits

EXACT_UP_TO: Final = 12
"""CPUs up to which every placement is looked at."""

_REGIONS: Final = 2
_TRIES: Final = 24
_TOGETHER: Final = 40
"""Most regions of a kind that are looked at for one seat, seats that are tried one by one, and
seats that are seated anew together."""


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
    """

    count: int
    now: int
    within: int
    cost: Callable[[int], int | None]
    fixed: bool = False
    near: int = 0
    enough: int = 1


class Room(Struct, frozen=True):
    """Where seats are looked for.

    Attributes:
        topology: the machine.
        free: CPUs that nobody has, a bitmask.
        whole_cores: nobody shares a core.
        most_moved: how many seats may change at most; None for any number.
    """

    topology: CPUTopology
    free: int
    whole_cores: bool = False
    most_moved: int | None = None


def solve(room: Room, seats: Sequence[Seat]) -> list[int] | None:
    """The places of all seats, in their order; None where somebody cannot be seated at all."""
    every = room.free
    for seat in seats:
        every |= 0 if seat.fixed else seat.now
    if every.bit_count() <= EXACT_UP_TO:
        return _exact(room, seats, every)
    return _Search(room, seats).run()


# ------------------------------------------------------------------------------------------- exact


def _exact(room: Room, seats: Sequence[Seat], every: int) -> list[int] | None:
    """The best of all placements."""
    choices = [
        sorted(
            (cost, bool(seat.now) and place != seat.now, place)
            for place in _places(room, seat, every)
            if (cost := seat.cost(place)) is not None
        )
        for seat in seats
    ]
    if not all(choices):
        return None
    least = [0] * (len(seats) + 1)
    for at in reversed(range(len(seats))):
        least[at] = least[at + 1] + choices[at][0][0]
    known: dict[tuple[int, int, int], tuple[int, tuple[int, ...]] | None] = {}

    def best(at: int, used: int, left: int) -> tuple[int, tuple[int, ...]] | None:
        if at == len(seats):
            return 0, ()
        key = at, used, left
        if key in known:
            return known[key]
        found: tuple[int, tuple[int, ...]] | None = None
        for cost, moves, place in choices[at]:
            if found is not None and cost + least[at + 1] >= found[0]:
                break
            if place & used or (moves and not left):
                continue
            rest = best(at + 1, used | place, left - moves)
            if rest is not None and (found is None or cost + rest[0] < found[0]):
                found = cost + rest[0], (place, *rest[1])
        known[key] = found
        return found

    limit = len(seats) if room.most_moved is None else room.most_moved
    found = best(0, 0, limit)
    return None if found is None else list(found[1])


def _places(room: Room, seat: Seat, every: int) -> Iterator[int]:
    """All places that a seat could have."""
    if seat.fixed:
        yield seat.now
        return
    allowed = every & seat.within | seat.now
    atoms = [1 << cpu for cpu in iter_bits(allowed)]
    if room.whole_cores:
        atoms = [core for core in room.topology.cores.values() if core & ~allowed == 0]
    largest = max((atom.bit_count() for atom in atoms), default=1)
    for count in range(-(-seat.count // largest), min(seat.count, len(atoms)) + 1):
        for chosen in combinations(atoms, count):
            place = sum(chosen)
            if place.bit_count() == seat.count:
                yield place


# ------------------------------------------------------------------------------------------ search


class _Search:
    """Take some from their places, seat them anew, and keep that if the whole is better."""

    def __init__(self, room: Room, seats: Sequence[Seat]) -> None:
        self.room = room
        self.seats = seats
        self.topology = room.topology
        self.place = [seat.now for seat in seats]
        self.cost = [(seat.now and seat.cost(seat.now)) or 0 for seat in seats]
        self.free = room.free
        topology = room.topology
        groups = (topology.uncore_caches, topology.numa_nodes, topology.sockets)
        self.regions = [sorted(set(group.values())) for group in groups] + [[topology.all]]

    def run(self) -> list[int] | None:
        """Seat who has no place, then make it better as long as that goes."""
        for at, seat in enumerate(self.seats):
            if not seat.now and not (self._again([at]) or self._make_way(at)):
                return None
        if self.room.most_moved is None:
            self._again(self._unhappy())
        for at in self._unhappy()[:_TRIES]:
            if self._may_gain(at) and not self._again([at]):
                self._with_others(at)
        self._move_back()
        return self.place

    def _may_gain(self, at: int) -> bool:
        seat = self.seats[at]
        return bool(seat.now) and not seat.fixed and self.cost[at] >= seat.enough

    def _unhappy(self) -> list[int]:
        """Who could sit better, the worst first."""
        found = [at for at in range(len(self.seats)) if self._may_gain(at)]
        return sorted(found, key=lambda at: (-self.cost[at], at))

    def _with_others(self, at: int) -> None:
        """Seat one anew together with those who are where it could be."""
        count = self.seats[at].count
        others = self._unhappy()
        for regions in self.regions[:-1]:
            here = [r for r in regions if r.bit_count() >= count]
            here.sort(key=lambda r: -(r & (self.free | self.place[at])).bit_count())
            for region in here[:_REGIONS]:
                inside = [
                    other
                    for other, place in enumerate(self.place)
                    if place & region and not self.seats[other].fixed
                ]
                together = list(dict.fromkeys((at, *inside, *others)))
                if len(together) <= _TOGETHER and self._again(together):
                    return

    def _again(self, ats: Sequence[int]) -> bool:
        """Seat these anew, the largest first; nothing is changed where it is not better."""
        before = self.free, list(self.place), list(self.cost)
        standing = any(not self.place[at] for at in ats)
        was = sum(self.cost[at] for at in ats)
        for at in ats:
            self.free |= self.place[at]
        for at in sorted(ats, key=lambda at: (-self.seats[at].count, at)):
            found = self._best_place(at, self.free)
            if found is None:
                self.free, self.place, self.cost = before
                return False
            self.cost[at], self.place[at] = found
            self.free &= ~found[1]
        if (standing or sum(self.cost[at] for at in ats) < was) and self._in_budget():
            return True
        self.free, self.place, self.cost = before
        return False

    def _in_budget(self) -> bool:
        most = self.room.most_moved
        places = zip(self.seats, self.place, strict=True)
        return most is None or sum(bool(s.now) and p != s.now for s, p in places) <= most

    # ------------------------------------------------------------------------- a place for one

    def _best_place(self, at: int, free: int) -> tuple[int, int] | None:
        """Cost and place, by the CPUs that it could have now."""
        seat = self.seats[at]
        free &= seat.within | seat.now
        if self.room.whole_cores:
            free = self._full(free)
        best: tuple[int, int] | None = None
        full = self._full(free)
        for regions in self.regions:
            for region in self._fitting(seat, regions, free, full):
                for place in self._picks(seat, free & region, full & region):
                    cost = seat.cost(place)
                    if cost is not None and (best is None or (cost, place) < best):
                        best = cost, place
            if best is not None and best[0] < seat.enough:
                break
        if seat.now and seat.now & ~free == 0:
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
        return [row[-1] for row in ranked[:_REGIONS]]

    def _picks(self, seat: Seat, free: int, full: int) -> list[int]:
        """Places in a region: of whole cores as far as can be, and one that keeps all it can.

        There are none where fewer CPUs are free than it has to have.
        """
        if free.bit_count() < seat.count:
            return []
        found = [self._pick(free, full, seat.count, seat.now)]
        kept = seat.now & free
        if 0 < kept.bit_count() < seat.count:
            rest = free & ~kept
            found.append(kept | self._pick(rest, self._full(rest), seat.count - kept.bit_count()))
        return found

    def _pick(self, free: int, full: int, count: int, now: int = 0) -> int:
        """CPUs of whole free cores, its own before others; for the rest, single ones."""
        topology = self.topology
        if not topology.cores_alike or count > topology.cpus_per_uncore_cache:
            return take_packed(topology, free, count, align_uncore=True, rules=SOUND)
        cores = count // topology.largest_core
        taken = 0
        for offsets, firsts in topology.core_patterns:
            whole, own = firsts, 0
            for offset in offsets:
                whole &= full >> offset
                own |= firsts & (now >> offset)
            chosen = lowest_bits(whole & own, cores)
            chosen |= lowest_bits(whole & ~own, cores - chosen.bit_count())
            cores -= chosen.bit_count()
            for offset in offsets:
                taken |= chosen << offset
        for some in (now & free & ~full, free & ~full, now & full, full):
            taken |= lowest_bits(some & ~taken, count - taken.bit_count())
        return taken

    def _full(self, free: int) -> int:
        """The CPUs of the cores that are free as a whole."""
        found = 0
        for offsets, firsts in self.topology.core_patterns:
            whole = firsts
            for offset in offsets:
                whole &= free >> offset
            for offset in offsets:
                found |= whole << offset
        return found

    # ------------------------------------------------------------------------ room for somebody

    def _make_way(self, at: int) -> bool:
        """Find a place for one that others leave; nothing is changed where there is none."""
        best: tuple[int, int, list[int], list[int]] | None = None
        before = self.free, list(self.place), list(self.cost)
        within = self.seats[at].within
        for region in dict.fromkeys(r & within for regions in self.regions for r in regions):
            if region.bit_count() < self.seats[at].count:
                continue
            for way in (self._clear, self._rearrange, self._rearrange_all):
                if way(at, region) and self._in_budget():
                    total = sum(self.cost)
                    if best is None or total < best[0]:
                        best = total, self.free, self.place, self.cost
                self.free, self.place, self.cost = before[0], list(before[1]), list(before[2])
        if best is not None:
            _, self.free, self.place, self.cost = best
        return best is not None

    def _rearrange_all(self, at: int, region: int) -> bool:
        """Seat this one in a region, and all others around it, where they are not too many."""
        return len(self.seats) <= _TOGETHER and self._rearrange(at, region, self.topology.all)

    def _rearrange(self, at: int, region: int, near: int = 0) -> bool:
        """Seat this one in a region, and all that are there (or ``near``) around it."""
        empty = self.free & region
        others = [
            other
            for other, place in enumerate(self.place)
            if place & (near or region) and not self.seats[other].fixed
        ]
        for other in others:
            self.free |= self.place[other]
        seat = replace(self.seats[at], now=empty)
        room = self.free & region
        if self.room.whole_cores:
            room = self._full(room)
        places = self._picks(seat, room, self._full(room))
        if not places:
            return False
        place = max(places, key=lambda p: (p & empty).bit_count())
        cost = seat.cost(place)
        if cost is None:
            return False
        self.cost[at], self.place[at] = cost, place
        self.free &= ~place
        for other in sorted(others, key=lambda o: (-self.seats[o].count, o)):
            found = self._best_place(other, self.free)
            if found is None:
                return False
            self.cost[other], self.place[other] = found
            self.free &= ~found[1]
        return True

    def _clear(self, at: int, region: int) -> bool:
        """Let others leave a region until this one fits in."""
        for other in self._leavers(at, region):
            free = (self.free | self.place[other]) & ~region
            found = self._best_place(other, free)
            if found is not None:
                self.free = (self.free | self.place[other]) & ~found[1]
                self.cost[other], self.place[other] = found
                place = self._best_place(at, self.free & region)
                if place is not None:
                    self.cost[at], self.place[at] = place
                    self.free &= ~place[1]
                    return True
        return False

    def _leavers(self, at: int, region: int) -> list[int]:
        """Who could leave a region: the smallest that is enough first, then the largest."""
        missing = self.seats[at].count - (region & self.free).bit_count()
        found = [
            (other, (place & region).bit_count())
            for other, place in enumerate(self.place)
            if place & region and other != at and not self.seats[other].fixed
        ]
        enough = sorted((size, other) for other, size in found if size >= missing)
        small = sorted((-size, other) for other, size in found if size < missing)
        return [other for _, other in (*enough, *small)]

    def _move_back(self) -> None:
        """Take back moves that turn out to be worth nothing."""
        for at, seat in enumerate(self.seats):
            if seat.now and self.place[at] != seat.now:
                cost, there = seat.cost(seat.now), self.free | self.place[at]
                if cost is not None and cost <= self.cost[at] and seat.now & ~there == 0:
                    self.free = there & ~seat.now
                    self.cost[at], self.place[at] = cost, seat.now
