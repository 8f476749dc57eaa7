"""From wishes to steps: who moves first, and where a detour over free CPUs is needed.

Moves are made in legs.  In a round everybody whose new CPUs are free goes there; what they leave
is free for the next round.  Where nobody can go, somebody who is in the way goes aside to CPUs that
nobody wants: all at once if there are enough of them, else by parts.  A CPU that is vacated so is
only ever taken by who wants it, so that this ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.cpu.allocation import lowest_bits
from pinfold.core.moves.owners import Holdings, MoveError, MoveOptions, Owner, Refusal, Wish
from pinfold.core.moves.steps import (
    Announce,
    GiveBack,
    MigrateMemory,
    MovePlan,
    MoveState,
    Narrow,
    ShrinkPool,
    Step,
    Wait,
    Widen,
)
from pinfold.core.values.cpuset import CPUSet

_CHOOSE_OTHERS: Final = "wish for other CPUs"


class _Leg(Struct, frozen=True):
    """One owner's part of a round: from ``was`` over ``wide`` to ``now`` (bitmasks)."""

    owner: Owner
    was: int
    wide: int
    now: int


def plan_moves(
    ledger: Holdings, wishes: Sequence[Wish], options: MoveOptions | None = None
) -> MovePlan:
    """The steps that fulfil all ``wishes``; none where everybody has what he wishes for.

    An owner never has fewer CPUs than the smaller of its old and its new number, and always those
    that it keeps.  Owners that are not named stay where they are.

    Args:
        ledger: who has what now.
        wishes: one for each owner that is to move.
        options: how moves are made.

    Raises:
        MoveError: they cannot be made; nothing is planned.
    """
    options = options or MoveOptions()
    scene = _Scene(ledger, wishes, options)
    scene.check()
    rounds: list[list[_Leg]] = []
    while legs := scene.round():
        rounds.append(legs)
    placed = {owner: _set(scene.old[owner]) for owner in scene.wishes}
    mems = {wish.owner: wish.mems_before for wish in wishes if wish.mems is not None}
    plan = MovePlan(
        MoveState(placed, placed, ledger.default, mems),
        tuple(_steps(scene, rounds)),
        options.mixed,
        {wish.owner: wish.delay for wish in wishes if wish.delay},
    )
    end = plan.end
    if end.is_settled:
        return plan
    left = 0
    for cpus in end.claims.values():
        left |= cpus.mask
    back = GiveBack(_set(left & ~scene.everybody_has()))
    return replace(plan, steps=(*plan.steps, back))


class _Scene:
    """Who has what, and wants what, while rounds are made up; sets are bitmasks."""

    def __init__(self, ledger: Holdings, wishes: Sequence[Wish], options: MoveOptions) -> None:
        self.options = options
        self.wishes = {wish.owner: wish for wish in wishes}
        self.held = {
            Owner(uid, name): cpus.mask
            for uid, containers in ledger.assignments.items()
            for name, cpus in containers.items()
        }
        _check_names(self.held, wishes)
        self.old = dict(self.held)
        self.goal = {owner: wish.cpus.mask for owner, wish in self.wishes.items()}
        self.pool = ledger.default.mask
        self.free = self.pool & ~ledger.limits.reserved.mask & ~options.avoid.mask
        self.parked = 0
        """What somebody left within the plan, and nobody has yet."""
        self.taken: dict[Owner, int] = {}
        """What each was the first to take out of the pool."""
        self.remote = {w.owner for w in wishes if w.mems is not None and w.mems != w.mems_before}
        """Whose memory is still to be looked at."""
        topology = options.topology
        self.cores = tuple(topology.cores.values()) if topology and options.whole_cores else None
        self.friends = {owner: self._friends(owner) for owner in self.wishes}

    def _friends(self, owner: Owner) -> frozenset[Owner]:
        """Those with whom it may share CPUs.

        Its whole pod, and containers of it with which it shares some already (as those do that
        run one after the other).
        """
        mine = self.held[owner]
        return frozenset(
            other
            for other, cpus in self.held.items()
            if other.pod_uid == owner.pod_uid
            and other != owner
            and (owner.is_pod or other.is_pod or cpus & mine)
        )

    # ------------------------------------------------------------------------------------ checks

    def check(self) -> None:
        """Refuse what can never be.

        Raises:
            MoveError: naming the first such wish.
        """
        reachable = self.free
        for owner in self.wishes:
            reachable |= self.held[owner]
        last = {**self.held, **self.goal}
        for owner, wish in self.wishes.items():
            goal, old = self.goal[owner], self.held[owner]
            if not goal:
                raise MoveError(
                    Refusal.NO_CPU, f"{owner} would have no CPU", "leave it one, or end it"
                )
            if lost := wish.keep.mask & ~(goal & old):
                raise MoveError(
                    Refusal.NOT_KEPT,
                    f"{owner} has to keep CPUs {_set(lost)}, which are not among both its old and "
                    "its new ones",
                    "wish for a set that has them",
                )
            for other, cpus in last.items():
                if cpus & goal and other != owner and other not in self.friends[owner]:
                    raise MoveError(
                        Refusal.TAKEN,
                        f"{owner} is to get CPUs {_set(cpus & goal)}, which {other} has",
                        f"{_CHOOSE_OTHERS}, or wish for that owner to move, too",
                    )
            if outside := goal & ~old & ~reachable & ~self._union(self.friends[owner]):
                raise MoveError(
                    Refusal.OUTSIDE,
                    f"{owner} is to get CPUs {_set(outside)}, which are reserved, offline, or not "
                    "in the shared pool",
                    _CHOOSE_OTHERS,
                )
            for other in self.friends[owner]:
                inner, outer = (other, owner) if owner.is_pod else (owner, other)
                if outer.is_pod and (outside := last[inner] & ~last[outer]):
                    raise MoveError(
                        Refusal.OUTSIDE,
                        f"{inner} is to have CPUs {_set(outside)}, and its whole pod is not",
                        "wish for both to have them",
                    )

    def everybody_has(self) -> int:
        """All that is owned now."""
        return self._union(self.held)

    def _union(self, owners: Iterable[Owner]) -> int:
        mask = 0
        for owner in owners:
            mask |= self.held[owner]
        return mask

    # ------------------------------------------------------------------------------------ rounds

    def round(self) -> list[_Leg]:
        """The legs of the next round; none once everybody is where he wants to be.

        Raises:
            MoveError: nobody can make way.
        """
        pending = [o for o in self.wishes if self.held[o] != self.goal[o] or o in self.remote]
        if not pending:
            return []
        legs = []
        for owner in pending:
            goal, held = self.goal[owner], self.held[owner]
            if goal & ~held & ~self._available(owner) == 0:
                wide, now = held | goal, goal | (held & self._inner(owner))
                if wide != held or now != held or owner in self.remote:
                    legs.append(_Leg(owner, held, wide, now))
        legs = legs or [self._aside(pending)]
        for leg in legs:
            self._make(leg)
        return legs

    def _make(self, leg: _Leg) -> None:
        gained, left = leg.wide & ~leg.was, leg.wide & ~leg.now
        if fresh := gained & self.pool:
            self.taken[leg.owner] = self.taken.get(leg.owner, 0) | fresh
            self.pool &= ~fresh
        self.held[leg.owner] = leg.now
        self.parked = (self.parked & ~gained) | (left & ~self._union(self.friends[leg.owner]))
        self.free &= ~gained
        self.remote.discard(leg.owner)

    def _available(self, owner: Owner) -> int:
        """What it could go to now."""
        mask = self.free | self.parked
        friends = self.friends[owner]
        if not friends:
            return mask
        mask |= self._union(friends) & ~self._union(self.held.keys() - friends - {owner})
        pod = Owner(owner.pod_uid)
        return mask if owner.is_pod or pod not in self.held else mask & self.held[pod]

    def _inner(self, owner: Owner) -> int:
        """What a whole pod cannot leave yet, since its containers have it."""
        return self._union(self.friends[owner]) if owner.is_pod else 0

    def _aside(self, pending: Sequence[Owner]) -> _Leg:
        """Somebody who is in the way goes aside, or who is in nobody's way makes room for that."""
        wanted = 0
        for owner in pending:
            wanted |= self.goal[owner] & ~self.held[owner]
        goals = self._wanted_by(self.wishes)
        spare = (self.free | self.parked) & ~goals
        if not self.options.pool_may_be_empty and not self.pool & ~spare & ~goals:
            # The last CPU of the pool is no way round.
            spare &= ~lowest_bits(spare & self.pool, 1)
        for of in (wanted, -1):
            best: tuple[tuple[bool, bool, int, int], _Leg] | None = None
            for owner in pending:
                vacate = self.held[owner] & ~self.goal[owner] & of & ~self._inner(owner)
                leg = self._leg_aside(owner, vacate, spare) if vacate else None
                if leg is not None:
                    detour = leg.now & ~leg.was & ~self.goal[owner]
                    vacated = leg.wide & ~leg.now
                    freed = vacated & ~self._union(self.friends[owner])
                    rank = (not freed, vacated != vacate, detour.bit_count(), -freed.bit_count())
                    if best is None or rank < best[0]:
                        best = (rank, leg)
            if best is not None:
                return best[1]
        raise MoveError(
            Refusal.NO_FREE_CPU,
            f"{', '.join(map(str, pending[:3]))} wait for one another's CPUs, and no CPU is free "
            "to go aside to",
            "end or shrink something first, or wish for a move that needs no exchange",
        )

    def _wanted_by(self, owners: Iterable[Owner]) -> int:
        mask = 0
        for owner in owners:
            mask |= self.goal[owner]
        return mask

    def _leg_aside(self, owner: Owner, vacate: int, spare: int) -> _Leg | None:
        """The most that this owner can leave of ``vacate``; None where that is nothing."""
        held, goal = self.held[owner], self.goal[owner]
        available = self._available(owner)
        gains = self._whole(goal & ~held & available, None)
        slack = held.bit_count() - min(self.old[owner].bit_count(), goal.bit_count())
        have = gains.bit_count() + slack
        detour = self._near(spare & available, held | goal, vacate.bit_count() - have)
        most = have + detour.bit_count()
        # What a friend still has is nobody's to take.
        alone = vacate & ~self._union(self.friends[owner])
        vacated = self._whole(alone, most) or self._whole(vacate, most)
        if not vacated:
            return None
        detour = self._whole(detour, vacated.bit_count() - have)
        return _Leg(owner, held, held | gains | detour, (held | gains | detour) & ~vacated)

    def _near(self, spare: int, where: int, count: int) -> int:
        """So many spare CPUs, if they can be had of the NUMA nodes where the owner is or goes."""
        if self.options.topology is not None:
            near = 0
            for cpus in self.options.topology.numa_nodes.values():
                near |= cpus if cpus & where else 0
            close = self._whole(spare & near, count)
            if close.bit_count() >= count:
                return close
        return self._whole(spare, count)

    def _whole(self, cpus: int, most: int | None) -> int:
        """Some CPUs, all for None; by whole cores where nobody may share one."""
        most = cpus.bit_count() if most is None else max(most, 0)
        if self.cores is None:
            return lowest_bits(cpus, most)
        found = 0
        for core in self.cores:
            if core & ~cpus == 0 and (found | core).bit_count() <= most:
                found |= core
        return found


def _check_names(held: Mapping[Owner, int], wishes: Sequence[Wish]) -> None:
    seen: set[Owner] = set()
    for wish in wishes:
        if wish.owner not in held:
            raise MoveError(
                Refusal.UNKNOWN_OWNER,
                f"{wish.owner} has no CPUs of its own",
                "only who has some can be moved; admit it first",
            )
        if wish.owner in seen:
            raise MoveError(
                Refusal.TWICE, f"{wish.owner} has two wishes", "say one set of CPUs for each owner"
            )
        seen.add(wish.owner)


def _steps(scene: _Scene, rounds: Iterable[Sequence[_Leg]]) -> list[Step]:
    steps: list[Step] = []
    if scene.taken:
        if not scene.pool and not scene.options.pool_may_be_empty:
            raise MoveError(
                Refusal.POOL_EMPTY,
                "no CPU would be left for the containers that share CPUs",
                "move fewer containers at a time, or give up strict-cpu-reservation",
            )
        steps.append(ShrinkPool({owner: _set(cpus) for owner, cpus in scene.taken.items()}))
    seen: set[Owner] = set()
    for legs in rounds:
        steps += _on(scene, legs, seen)
        steps += _off(scene, legs)
    return steps


def _on(scene: _Scene, legs: Sequence[_Leg], seen: set[Owner]) -> Iterator[Step]:
    for leg in legs:
        wish, mems = scene.wishes[leg.owner], None
        if leg.owner not in seen and wish.mems not in {None, wish.mems_before}:
            mems = wish.mems
        seen.add(leg.owner)
        was, wide = _set(leg.was), _set(leg.wide)
        if mems is not None:
            yield Widen(leg.owner, was, wide, wish.mems_before, wish.mems_before | mems)
        elif wide != was:
            yield Widen(leg.owner, was, wide)
    for leg in legs:
        delay = scene.wishes[leg.owner].delay if leg.wide != leg.now else 0.0
        yield Announce(leg.owner, _set(leg.was), _set(leg.now), delay)


def _off(scene: _Scene, legs: Sequence[_Leg]) -> Iterator[Step]:
    for leg in legs:
        delay = scene.wishes[leg.owner].delay
        if delay and leg.wide != leg.now:
            yield Wait(leg.owner, delay)
    for leg in legs:
        if leg.wide != leg.now:
            yield Narrow(leg.owner, _set(leg.wide), _set(leg.now))
    for leg in legs:
        wish = scene.wishes[leg.owner]
        if wish.migrate and wish.mems is not None and leg.now == scene.goal[leg.owner]:
            wide = wish.mems_before | wish.mems
            if wide != wish.mems:
                yield MigrateMemory(leg.owner, wide, wish.mems)


def _set(mask: int) -> CPUSet:
    return CPUSet.from_mask(mask)
