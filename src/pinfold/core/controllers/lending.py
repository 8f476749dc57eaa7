"""Idle CPUs of owners, lent to best-effort containers, and taken back at once.

Borrowers are pushed aside by the kernel as soon as an owner wants to run, so a lent CPU is still
its owner's; what a borrower costs him is caches, clock and the sibling thread.  What is measured
is therefore how much the owner uses of what is lent: his CPU time less the time for which his other
CPUs were busy, since nobody else runs there.  It is bounded for all CPUs together that he has lent,
because nobody can say on which of them he ran.

Two looks decide.  The slow one, on rates of an interval, lends and takes back.  The quick one, on
bare counters of some 50 ms, only takes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.kubelet.own_policies import LendingOptions, percent, seconds
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.annotations import LEND_CPUS
from pinfold.core.values.cpuset import CPUSet

LONGEST: Final = 32
"""How many times as long as at first a pause becomes."""

_SHORT: Final = 10.0
"""Pauses for which CPUs have to be lent so that the next pause is as long as the first."""

_CALM: Final = 0.5
"""The part of the bound of its waits up to which a container's CPUs are lent."""

_WINDOW: Final = 0.06
"""Seconds that the quick look judges by, or one interval where that is longer."""

NOBODY: Final = "nobody borrows"
"""Why nothing is lent where no best-effort container runs."""

_PRESSURE: Final = "cpu.pressure"
_MICRO: Final = 1e-6


class Lend(Proposal, frozen=True, kw_only=True):
    """The CPUs are to be lent besides those that are."""


class Return(Proposal, frozen=True, kw_only=True):
    """The CPUs are to be lent no more.

    It changes nobody's claim, so it names no owner: he may be moved at the same time.
    """

    @classmethod
    def of(cls, cpus: CPUSet, why: str) -> Return:
        """These CPUs, for this reason."""
        return cls(rank=Rank.RETURN, why=why, cpus=cpus)


class OwnerMemory(Struct, frozen=True):
    """What is remembered of an owner.

    Attributes:
        calm: for how many seconds each of its CPUs has been idle enough, without a break.
        lent_for: seconds for which CPUs of it have been lent.
        pause: seconds until CPUs of it may be lent again.
        strikes: how often in a row they had not been lent for long.
        why_not: why no more of its CPUs are lent; "" where they are about to be.
    """

    calm: Mapping[int, float] = field(default_factory=dict)
    lent_for: float = 0.0
    pause: float = 0.0
    strikes: int = 0
    why_not: str = ""


class LendingMemory(Struct, frozen=True):
    """What is remembered, by owners that allow lending, and when that was."""

    at: float = -math.inf
    owners: Mapping[Owner, OwnerMemory] = field(default_factory=dict)


class QuickLook(Struct, frozen=True):
    """Counters at one moment: microseconds of CPU time by owner, and of idle time by CPU.

    Who could not be read is left out.  ``busy``: see :meth:`Lending.remembered`.
    """

    at: float
    used: Mapping[Owner, int]
    idle: Mapping[int, int]
    busy: Mapping[int, float] = field(default_factory=dict)


class Holding(Struct, frozen=True):
    """What the quick look has to know of an owner: its CPUs, which are lent, if they are cores."""

    own: CPUSet
    lent: CPUSet
    has_siblings: bool = False


class Lending(Struct, frozen=True):
    """The controller."""

    options: LendingOptions

    # ------------------------------------------------------------------------------ the slow look

    def step(self, memory: LendingMemory, seen: Seen) -> tuple[LendingMemory, tuple[Proposal, ...]]:
        """See :class:`~.seen.Controller`."""
        passed = seen.since(memory.at) or 0.0
        somebody = any(one.borrows for one in seen.containers.values())
        owners: dict[Owner, OwnerMemory] = {}
        proposals: list[Proposal] = []
        unowned = seen.lent
        for owner, one in seen.containers.items():
            most = self._most(owner, one)
            if not most and not one.cpus & seen.lent:
                continue
            lent = one.cpus & seen.lent
            unowned -= lent
            before = memory.owners.get(owner, OwnerMemory())
            now = self._remember(before, one, seen, passed)
            if lent and (reason := NOBODY if not somebody else _unfit(one, most)):
                owners[owner] = replace(now, lent_for=0.0, why_not=reason)
                proposals.append(give_back(owner, lent, reason))
                continue
            if lent and (reason := self._why_back(one, seen)):
                owners[owner] = self._struck(now, reason)
                proposals.append(give_back(owner, lent, reason))
                continue
            if strangers := _strangers(lent, one, seen):
                reason = _not_its_own(strangers)
                owners[owner] = replace(now, why_not=reason)
                proposals.append(give_back(owner, lent & _whole(strangers, seen), reason))
                continue
            found, reason = self._more(one, now, seen, most) if somebody else (CPUSet(), NOBODY)
            owners[owner] = replace(now, why_not=reason)
            if found:
                why = f"{_whose(owner)} uses {_there(one, seen, found):.0%} of a CPU there"
                proposals.append(
                    Lend(rank=Rank.LENDING, why=why, owners=frozenset({owner}), cpus=found)
                )
        if unowned:
            proposals.append(Return(rank=Rank.RETURN, why="their owner does not run", cpus=unowned))
        return LendingMemory(seen.at, owners), tuple(proposals)

    def _most(self, owner: Owner, one: SeenContainer) -> int:
        """How many CPUs of an owner may be lent at all."""
        if not one.cpus or owner.is_pod:
            return 0
        said = LEND_CPUS.of(one.annotations, owner.container)
        return min(said, self.options.most_cpus, len(one.cpus))

    def _remember(
        self, before: OwnerMemory, one: SeenContainer, seen: Seen, passed: float
    ) -> OwnerMemory:
        below = percent(self.options.lend_below)
        usage = None if one.load is None else one.load.usage
        calm = {
            cpu: before.calm.get(cpu, 0.0) + passed if passed else 0.0
            for cpu in one.cpus - seen.lent
            # Of what others run there, interrupts and the like, the owner uses nothing.
            if usage is not None and min(usage, _busy(seen, cpu)) <= below
        }
        is_lent = bool(one.cpus & seen.lent)
        return OwnerMemory(
            calm,
            before.lent_for + passed if is_lent else 0.0,
            max(0.0, before.pause - passed),
            before.strikes,
        )

    def _struck(self, now: OwnerMemory, why: str) -> OwnerMemory:
        """CPUs were taken back: a pause follows, a longer one after a short time."""
        first = seconds(self.options.pause)
        strikes = now.strikes + 1 if now.lent_for < _SHORT * first else 0
        pause = first * min(LONGEST, 2**strikes)
        return replace(now, calm={}, lent_for=0.0, pause=pause, strikes=strikes, why_not=why)

    def taken_back(self, memory: LendingMemory, owner: Owner, why: str) -> LendingMemory:
        """The same once the quick look has taken CPUs back."""
        now = self._struck(memory.owners.get(owner, OwnerMemory()), why)
        return replace(memory, owners={**memory.owners, owner: now})

    def _why_back(self, one: SeenContainer, seen: Seen) -> str:
        """Why the load of an owner asks for what it has lent; "" where that may stay lent."""
        if one.load is None or one.load.usage is None:
            return "nobody knows what it uses"
        if (problem := self._waits(one, seen, 1.0)) is not None:
            return problem
        used = one.load.usage - _all_busy(seen, one.cpus - seen.lent)
        return self._too_much(used, has_siblings(one.cpus & seen.lent, seen.topology))

    def _more(
        self, one: SeenContainer, now: OwnerMemory, seen: Seen, most: int
    ) -> tuple[CPUSet, str]:
        """Which more CPUs of an owner can be lent, and why there are no others."""
        options, lent = self.options, one.cpus & seen.lent
        if reason := _unfit(one, most):
            return CPUSet(), reason
        if now.pause:
            return CPUSet(), f"for {now.pause:.0f} s nothing of it is lent again"
        if one.load is None or one.load.usage is None:
            return CPUSet(), "nobody knows what it uses"
        if seen.topology is None:
            return CPUSet(), "nobody knows which CPUs are a core"
        if (problem := self._waits(one, seen, _CALM)) is not None:
            return CPUSet(), problem
        usage = one.load.usage
        total = max(0.0, usage - _all_busy(seen, one.cpus - lent)) if lent else 0.0
        found, reason = CPUSet(), ""
        need = seconds(options.idle_for)
        for core in self._cores(one.cpus - lent, seen):
            below = self._below(has_siblings(core | lent, seen.topology))
            wanted = core & one.cpus - lent
            if len(lent | found | wanted) > most:
                reason = reason or f"no more than {most} are lent"
            elif strangers := _strangers(core, one, seen):
                reason = reason or _not_its_own(strangers)
            elif any(cpu not in now.calm or now.calm[cpu] < need for cpu in wanted):
                reason = reason or f"CPUs {wanted} have not been idle for {options.idle_for}"
            elif min(usage, total + _all_busy(seen, wanted)) > below:
                reason = reason or f"it uses more than {below:.0%} of a CPU there"
            else:
                found |= wanted
                total += _all_busy(seen, wanted)
        return found, reason

    def _cores(self, cpus: CPUSet, seen: Seen) -> list[CPUSet]:
        """The cores of these CPUs as far as they are online, whole, the idlest first."""
        whole = {_whole(CPUSet([cpu]), seen) for cpu in cpus & seen.online}
        return sorted(whole, key=lambda core: (_all_busy(seen, core), min(core)))

    def _waits(self, one: SeenContainer, seen: Seen, part: float) -> str | None:
        """Why its waits are too long; None where they are not."""
        options = self.options
        wait = None if one.load is None else one.load.wait
        if wait is None:
            return "nobody knows how long it waits for a CPU"
        if seen.wait_source == _PRESSURE:
            if wait > percent(options.max_pressure) * part:
                return f"it waits for a CPU {wait:.0%} of the time"
            return None
        if wait > seconds(options.max_wait) * part:
            return f"its threads wait for a CPU {wait * 1000:.0f} ms in each second"
        return None

    def _below(self, siblings: bool) -> float:  # noqa: FBT001 - one bound of two
        return percent(self.options.siblings_below if siblings else self.options.lend_below)

    def _too_much(self, used: float, siblings: bool) -> str:  # noqa: FBT001 - one bound of two
        """Why so much use of what is lent is too much; "" where it is not."""
        options = self.options
        bound = percent(options.return_above)
        if siblings:
            # The dead band is as wide as without siblings.
            bound += percent(options.siblings_below) - percent(options.lend_below)
        return f"it uses {used:.0%} of a CPU there" if used > bound else ""

    # ----------------------------------------------------------------------------- the quick look

    @property
    def window(self) -> float:
        """Seconds between the two readings that the quick look compares."""
        period = self.options.look_period
        return period * max(1, math.floor(_WINDOW / period + _MICRO))

    def remembered(self, looks: Sequence[QuickLook], look: QuickLook) -> tuple[QuickLook, ...]:
        """The looks that are needed from now on; all before one of an earlier clock are not.

        Idle time is counted in whole ticks (10 ms): between two looks it errs by one for each CPU,
        which would hide what is used of a lent one where there are many.  So of each CPU the most
        is kept that it was busy for until now.  That stands still while the CPU is idle, goes with
        the time while it is busy, and errs by less than a tick else; where many are busy at times,
        what is lent is rather taken back too early than too late.
        """
        looks = () if looks and look.at <= looks[-1].at else looks
        before, busy = looks[-1].busy if looks else {}, {}
        for cpu, idle in look.idle.items():
            busy[cpu] = max(look.at - idle * _MICRO, before.get(cpu, -math.inf))
        look = replace(look, busy=busy)
        if not looks:
            return (look,)
        # A timer is late now and then, never early.
        oldest = look.at - self.window - self.options.look_period / 2
        later = [one for one in looks if one.at >= oldest]
        return (*(later or looks[-1:]), look)

    def returns(
        self, looks: Sequence[QuickLook], holdings: Mapping[Owner, Holding]
    ) -> tuple[Return, ...]:
        """What is to be taken back by these looks, of which the last is the newest."""
        return tuple(
            give_back(owner, holding.lent, reason)
            for owner, holding in holdings.items()
            if holding.lent and (reason := self._quickly(owner, holding, looks))
        )

    def _quickly(self, owner: Owner, holding: Holding, looks: Sequence[QuickLook]) -> str:
        newest = looks[-1]
        if owner not in newest.used:
            return "nobody knows what it uses"
        before = next((one for one in looks[:-1] if owner in one.used), None)
        if before is None:
            return ""
        passed = newest.at - before.at
        used = (newest.used[owner] - before.used[owner]) * _MICRO
        if used < 0:
            return "nobody knows what it uses"
        # So busy were its other CPUs: what is more, it has used of those that are lent.
        for cpu in holding.own - holding.lent:
            if cpu in before.busy and cpu in newest.busy:
                used -= min(passed, newest.busy[cpu] - before.busy[cpu])
        return self._too_much(used / passed, holding.has_siblings)


def give_back(owner: Owner, lent: CPUSet, why: str) -> Return:
    """What an owner has lent is to be given back."""
    return Return.of(lent, f"{_whose(owner)}: {why}")


def owner_gone(cpus: CPUSet) -> Return:
    """These CPUs are to be given back although nobody runs whose they are."""
    return Return.of(cpus, "their owner does not run")


def has_siblings(cpus: CPUSet, topology: CPUTopology | None) -> bool:
    """Whether any of these CPUs is one of several threads of a core."""
    return topology is not None and any(
        len(topology.whole_cores(CPUSet([cpu]))) > 1 for cpu in cpus
    )


def holdings(
    owners: Iterable[tuple[Owner, CPUSet]], lent: CPUSet, topology: CPUTopology | None
) -> dict[Owner, Holding]:
    """Those of the owners who have lent something."""
    return {
        owner: Holding(own, own & lent, has_siblings(own & lent, topology))
        for owner, own in owners
        if own & lent
    }


def _whose(owner: Owner) -> str:
    return f"container {owner.container}" if owner.container else "pod"


def _busy(seen: Seen, cpu: int) -> float:
    """How much a CPU is used; all of it where nobody knows."""
    return 1.0 - seen.idle.get(cpu, 0.0)


def _all_busy(seen: Seen, cpus: CPUSet) -> float:
    return sum(_busy(seen, cpu) for cpu in cpus)


def _there(one: SeenContainer, seen: Seen, cpus: CPUSet) -> float:
    """What an owner uses of some of its CPUs, at most."""
    busy = _all_busy(seen, cpus)
    return busy if one.load is None or one.load.usage is None else min(one.load.usage, busy)


def _whole(cpus: CPUSet, seen: Seen) -> CPUSet:
    """These CPUs with the sibling threads that are online."""
    return cpus if seen.topology is None else seen.topology.whole_cores(cpus) & seen.online


def _strangers(cpus: CPUSet, one: SeenContainer, seen: Seen) -> CPUSet:
    """What of these cores somebody else may own; what is parked was the pool's."""
    return _whole(cpus, seen) - one.cpus - seen.pool - seen.parked


def _not_its_own(strangers: CPUSet) -> str:
    return f"CPUs {strangers} of the same core are not its own"


def _unfit(one: SeenContainer, most: int) -> str:
    """Why the CPUs of an owner are never lent, whatever it does."""
    if not most:
        return "it does not allow it any more"
    if one.mixed:
        return "it is mixed: what it uses in the shared pool cannot be told from its own CPUs"
    if one.partition:
        return "its CPUs are to be a partition of the kernel's, in which nobody else can run"
    return ""
