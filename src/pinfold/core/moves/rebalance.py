"""Better places for those who run, and room for somebody who is to run.

Containers of one pod that have CPUs in common move as one, and each keeps its part; so do all
containers of a pod that is judged as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.objective import LEVELS, Objective, Score, pack, price
from pinfold.core.moves.owners import Holdings, MoveError, MoveOptions, Owner, Refusal, Wish
from pinfold.core.moves.places import Room, Seat
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.solver import solve
from pinfold.core.moves.steps import MovePlan
from pinfold.core.topology_manager.hints import NUMAInfo
from pinfold.core.values.cpuset import CPUSet

_ANYWHERE: Final = -1
_NO_CPU: Final = CPUSet()
_NOTHING: Final = tuple(0 for _ in LEVELS)
_PERFECT: Final = pack((*_NOTHING[1:], 1, 0, 0, 0))


class RebalanceOptions(Struct, frozen=True):
    """What may move, and what is known of it.

    Attributes:
        moves: how moves are made; its topology is the one that is asked about.
        levels: what of :data:`~.objective.LEVELS` counts.
        numa: distances between NUMA nodes.
        fixed: owners that stay (opted out, starting, or ending), and why.
        near: owner -> bitmask of the NUMA nodes of its devices, and of memory that stays there.
        within: owner -> the CPUs that it may have at all (where its memory has room).
        memory: owner -> bytes that have to be moved with it.
        mems: owner -> NUMA nodes of its memory, for those whose memory goes where its CPUs go.
        delays: owner -> seconds for which it is told beforehand.
        most_moved: how many owners may move at most; None for any number.
        strict: nobody may be in more NUMA nodes than now (a strict topology manager's policy).
        whole_pods: a pod is judged as a whole (its scope ``pod``), and moves as one.
        gather: CPUs that owners are gathered on, where they are as well off there; none: anywhere.
    """

    moves: MoveOptions = MoveOptions()
    levels: tuple[str, ...] = LEVELS
    numa: NUMAInfo | None = None
    fixed: Mapping[Owner, str] = field(default_factory=dict)
    near: Mapping[Owner, int] = field(default_factory=dict)
    within: Mapping[Owner, CPUSet] = field(default_factory=dict)
    memory: Mapping[Owner, int] = field(default_factory=dict)
    mems: Mapping[Owner, CPUSet] = field(default_factory=dict)
    delays: Mapping[Owner, float] = field(default_factory=dict)
    most_moved: int | None = None
    strict: bool = False
    whole_pods: bool = False
    gather: CPUSet = _NO_CPU


class Rebalance(Struct, frozen=True):
    """What to move: the wishes, the steps, and how good all placements are before and after.

    ``room`` are the CPUs that are free then for whom room was made; none where none was asked for.
    ``stays`` is who may not move, and why, of those whose place could be better.
    """

    wishes: tuple[Wish, ...]
    plan: MovePlan
    before: Score
    after: Score
    room: CPUSet = CPUSet()
    stays: Mapping[Owner, str] = field(default_factory=dict)


class _Unit(Struct, frozen=True):
    """Owners that move as one, and all their CPUs together (a bitmask)."""

    owners: tuple[Owner, ...]
    cpus: int


def plan_rebalance(
    ledger: Holdings, topology: CPUTopology, options: RebalanceOptions | None = None
) -> Rebalance:
    """The best placements that can be had, with the fewest moves; no moves where nothing is better.

    Exact on small machines (:data:`~.solver.EXACT_UP_TO`).

    Raises:
        MoveError: the moves need a free CPU, and there is none.
    """
    scene = _Scene(ledger, topology, options or RebalanceOptions())
    places = [unit.cpus for unit in scene.units]
    if scene.passable:
        # Where nothing is free nobody can move.
        places = solve(scene.room, [scene.seat(unit) for unit in scene.units]) or places
    return scene.result(places)


def make_room(
    ledger: Holdings,
    topology: CPUTopology,
    count: int,
    among: Sequence[CPUSet],
    options: RebalanceOptions | None = None,
) -> Rebalance:
    """The fewest moves after which ``count`` CPUs of one of these sets are free together.

    Nobody who moves is worse off than before.

    Args:
        ledger: who has what.
        topology: the kubelet's view of the machine.
        count: how many CPUs are needed.
        among: the sets that would do, the better ones first: such as those of each NUMA node.
        options: what may move.

    Raises:
        MoveError: no moves lead there.
    """
    scene = _Scene(ledger, topology, options or RebalanceOptions())
    best: tuple[Score, list[int]] | None = None
    for region in among:
        seats = [
            Seat(count, 0, region.mask, scene.newcomer),
            *(scene.seat_aside(unit) for unit in scene.units),
        ]
        places = solve(scene.room, seats)
        if places is not None:
            paid = scene.price(places[1:])
            if best is None or paid < best[0]:
                best = paid, places
    if best is None:
        raise MoveError(
            Refusal.NO_FREE_CPU,
            f"no moves make room for {count} CPUs in {' or '.join(map(str, among)) or 'nothing'}",
            "end or shrink something there, or ask for fewer CPUs",
        )
    room, *places = best[1]
    return scene.result(places, CPUSet.from_mask(room))


def carried(topology: CPUTopology, old: CPUSet, new: CPUSet, part: CPUSet) -> CPUSet:
    """What becomes of a part of somebody's CPUs that moves from ``old`` to ``new``.

    What is in both stays; the rest goes over in the order of NUMA nodes, caches and cores, so that
    cores stay whole where they can.  A baseline or a container's share of a pod moves so.

    Args:
        topology: the machine.
        old: all CPUs before.
        new: all CPUs afterwards, as many as before.
        part: some of ``old``.
    """
    rows = topology.by_cpu

    def order(cpu: int) -> tuple[int, ...]:
        row = rows[cpu]
        return row.numa_node, row.socket, row.uncore_cache, row.core, cpu

    goes = dict(
        zip(sorted(old - new, key=order), sorted(new - old, key=order), strict=True),
    )
    return CPUSet(goes.get(cpu, cpu) for cpu in part)


class _Scene:
    """A node whose placements are to be judged."""

    def __init__(self, ledger: Holdings, topology: CPUTopology, options: RebalanceOptions) -> None:
        self.ledger = ledger
        self.topology = topology
        self.options = options
        self.objective = Objective(topology, options.levels, options.numa, options.gather.mask)
        self.held = {
            Owner(uid, name): cpus.mask
            for uid, containers in ledger.assignments.items()
            for name, cpus in containers.items()
        }
        self.units = _units(self.held, whole_pods=options.whole_pods)
        avoid = ledger.limits.reserved | options.moves.avoid
        whole = options.moves.whole_cores
        free = (ledger.default - avoid).mask & topology.all
        if not options.moves.pool_may_be_empty and not ledger.default.mask & ~free:
            # The last CPU of the pool stays there; of a core that nobody can have, if there is one.
            spare = (free & ~_whole(topology, free) if whole else 0) or free
            free &= ~(spare & -spare)
        self.room = Room(topology, free, whole, options.most_moved)
        self.passable = _whole(topology, free) if whole else free
        self.movable = topology.all & ~avoid.mask

    def _is_fixed(self, unit: _Unit) -> bool:
        if unit.cpus & ~self.movable:
            return True
        return any(one in self.options.fixed for one in unit.owners)

    def _near(self, unit: _Unit) -> int:
        near = 0
        for owner in unit.owners:
            near |= self.options.near.get(owner, 0)
        return near

    def _within(self, unit: _Unit) -> int:
        within = _ANYWHERE
        for owner in unit.owners:
            allowed = self.options.within.get(owner)
            within &= _ANYWHERE if allowed is None else allowed.mask
        return within & self.topology.all

    def _price(self, unit: _Unit, cpus: int) -> Score:
        memory = sum(self.options.memory.get(owner, 0) for owner in unit.owners)
        return price(unit.cpus, cpus, memory, len(unit.owners))

    def seat(self, unit: _Unit) -> Seat:
        """A seat that is to be as good as can be, and as cheap."""
        near = self._near(unit)
        nodes = self.topology.numa_nodes.values()
        most = sum(bool(members & unit.cpus) for members in nodes)

        def cost(cpus: int) -> int | None:
            if self.options.strict and sum(bool(members & cpus) for members in nodes) > most:
                return None
            return pack((*self.objective.score(cpus, near), *self._price(unit, cpus)))

        return self._seat(unit, cost, near, _PERFECT)

    def seat_aside(self, unit: _Unit) -> Seat:
        """A seat that is as cheap as can be, and no worse than before."""
        near = self._near(unit)
        now = self.objective.score(unit.cpus, near)

        def cost(cpus: int) -> int | None:
            if cpus != unit.cpus and self.objective.score(cpus, near) > now:
                return None
            return pack((*self._price(unit, cpus), *_NOTHING))

        return self._seat(unit, cost, near, 1)

    def _seat(self, unit: _Unit, cost: Callable[[int], int | None], near: int, enough: int) -> Seat:
        known: dict[int, int | None] = {}

        def remembered(cpus: int) -> int | None:
            if cpus not in known:
                known[cpus] = cost(cpus)
            return known[cpus]

        within = self._within(unit)
        return Seat(
            unit.cpus.bit_count(),
            unit.cpus,
            within,
            remembered,
            self._is_fixed(unit),
            self.objective.near_cpus(near),
            enough,
            len(unit.owners),
        )

    def newcomer(self, cpus: int) -> int:
        """How good CPUs are for somebody who comes."""
        return pack(self.objective.score(cpus))

    def price(self, places: Sequence[int]) -> Score:
        """What it costs to go there."""
        units = zip(self.units, places, strict=True)
        return _sum((0, 0, 0), (self._price(unit, cpus) for unit, cpus in units))

    def _score(self, places: Iterable[int]) -> Score:
        units = zip(self.units, places, strict=True)
        judged = (self.objective.score(cpus, self._near(unit)) for unit, cpus in units)
        return _sum(_NOTHING, judged)

    def result(self, places: Sequence[int], room: CPUSet = _NO_CPU) -> Rebalance:
        """The moves that lead to some places."""
        wishes = [
            wish
            for unit, cpus in zip(self.units, places, strict=True)
            for owner in (unit.owners if cpus != unit.cpus else ())
            if (wish := self._wish(unit, owner, cpus)).cpus.mask != self.held[owner]
        ]
        options = replace(self.options.moves, topology=self.topology)
        plan = plan_moves(self.ledger, wishes, options)
        before = self._score(unit.cpus for unit in self.units)
        stays = {
            owner: why
            for unit in self.units
            if any(self.objective.score(unit.cpus, self._near(unit)))
            for owner in unit.owners
            if (why := self.options.fixed.get(owner)) is not None
        }
        return Rebalance(tuple(wishes), plan, before, self._score(places), room, stays)

    def _wish(self, unit: _Unit, owner: Owner, cpus: int) -> Wish:
        old, new = CPUSet.from_mask(unit.cpus), CPUSet.from_mask(cpus)
        held = CPUSet.from_mask(self.held[owner])
        then = new if held == old else carried(self.topology, old, new, held)
        delay = self.options.delays.get(owner, 0.0)
        mems = self.options.mems.get(owner)
        if mems is None:
            return Wish(owner, then, delay=delay)
        nodes = self.topology.numa_nodes.items()
        there = CPUSet(node for node, members in nodes if members & then.mask)
        return Wish(owner, then, mems=there, mems_before=mems, migrate=True, delay=delay)


def _whole(topology: CPUTopology, cpus: int) -> int:
    """Those of some CPUs (a bitmask) that are cores as a whole."""
    return sum(core for core in topology.cores.values() if core & ~cpus == 0)


def _units(held: Mapping[Owner, int], *, whole_pods: bool) -> list[_Unit]:
    units: list[_Unit] = []
    for owner, cpus in held.items():
        owners: tuple[Owner, ...] = (owner,)
        mask = cpus
        for unit in [u for u in units if u.owners[0].pod_uid == owner.pod_uid]:
            if not (whole_pods or unit.cpus & mask):
                continue
            units.remove(unit)
            owners, mask = (*unit.owners, *owners), mask | unit.cpus
        units.append(_Unit(owners, mask))
    return units


def _sum(first: Score, scores: Iterable[Score]) -> Score:
    return tuple(map(sum, zip(first, *scores, strict=True)))
