"""Who sits where: the cheapest disjoint places for all.

On small machines the answer is exact: all places are looked at, and what cannot be better than
what is known is left out.  On others it is found by taking from their places those
who could sit better, with those who are in their way, seating them anew, the largest first, and
keeping that if the whole is better.  At last those who move get more of their own CPUs where that
is as good: alone, or by an exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from msgspec.structs import replace

from pinfold.core.moves.places import REGIONS, Places, Room, Seat
from pinfold.core.values.cpuset import iter_bits

EXACT_UP_TO: Final = 12
"""CPUs up to which every placement is looked at."""

_TRIES: Final = 24
_TOGETHER: Final = 40
"""Most seats that are tried one by one, and that are seated anew together."""


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
            (cost, seat.owners if seat.now and place != seat.now else 0, place)
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
            if place & used or moves > left:
                continue
            rest = best(at + 1, used | place, left - moves)
            if rest is not None and (found is None or cost + rest[0] < found[0]):
                found = cost + rest[0], (place, *rest[1])
        known[key] = found
        return found

    every_owner = sum(seat.owners for seat in seats)
    limit = every_owner if room.most_moved is None else room.most_moved
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
        cores = room.topology.cores.values()
        atoms = [core for core in cores if core & ~allowed == 0]
        if any(core & seat.now not in {0, core} for core in cores):
            # It has parts of cores: nobody else gets such, and it may keep them.
            yield seat.now
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
        self.place = [seat.now for seat in seats]
        self.cost = [(seat.now and seat.cost(seat.now)) or 0 for seat in seats]
        self.free = room.free
        self.places = Places(room)
        self.regions = self.places.regions

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
        self._keep_more()
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
            for region in here[:REGIONS]:
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
        return self._reseat(sorted(ats, key=lambda at: (-self.seats[at].count, at)))

    def _reseat(self, ats: Sequence[int]) -> bool:
        """The same, in this order."""
        before = self.free, list(self.place), list(self.cost)
        standing = any(not self.place[at] for at in ats)
        was = sum(self.cost[at] for at in ats)
        for at in ats:
            self.free |= self.place[at]
        for at in ats:
            found = self.places.best(self.seats[at], self.free)
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
        return most is None or sum(s.owners for s, p in places if s.now and p != s.now) <= most

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
        return len(self.seats) <= _TOGETHER and self._rearrange(at, region, self.room.topology.all)

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
            room = self.places.full_cores(room)
        places = self.places.picks(seat, room, self.places.full_cores(room))
        if not places:
            return False
        place = max(places, key=lambda p: (p & empty).bit_count())
        cost = seat.cost(place)
        if cost is None:
            return False
        self.cost[at], self.place[at] = cost, place
        self.free &= ~place
        for other in sorted(others, key=lambda o: (-self.seats[o].count, o)):
            found = self.places.best(self.seats[other], self.free)
            if found is None:
                return False
            self.cost[other], self.place[other] = found
            self.free &= ~found[1]
        return True

    def _clear(self, at: int, region: int) -> bool:
        """Let others leave a region until this one fits in."""
        for other in self._leavers(at, region):
            free = (self.free | self.place[other]) & ~region
            found = self.places.best(self.seats[other], free)
            if found is not None:
                self.free = (self.free | self.place[other]) & ~found[1]
                self.cost[other], self.place[other] = found
                place = self.places.best(self.seats[at], self.free & region)
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

    # ------------------------------------------------------------------------- less to pay

    def _keep_more(self) -> None:
        """Let those who move keep more of their CPUs, where that is as good."""
        seats = self.seats
        moved = [at for at, seat in enumerate(seats) if seat.now and self.place[at] != seat.now]
        tries = _TRIES
        for at in moved:
            if seats[at].now & self.free and tries:
                tries -= 1
                self._again([at])
            for other in moved:
                if not seats[at].now & self.place[other] or other == at:
                    continue
                if not self._exchange(at, other) and tries:
                    tries -= 1
                    self._reseat((at, other))

    def _exchange(self, at: int, other: int) -> bool:
        """Let two have each other's places, where that is better."""
        one, two = self.seats[at], self.seats[other]
        mine, others = self.place[at], self.place[other]
        if one.count != two.count:
            return False
        if others & ~(one.within | one.now) or mine & ~(two.within | two.now):
            return False
        costs = one.cost(others), two.cost(mine)
        if costs[0] is None or costs[1] is None:
            return False
        if costs[0] + costs[1] >= self.cost[at] + self.cost[other]:
            return False
        self.place[at], self.place[other] = others, mine
        self.cost[at], self.cost[other] = costs[0], costs[1]
        return True
