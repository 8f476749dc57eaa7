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
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.quick_look import (
    Holding,
    QuickLook,
    has_siblings,
    remembered,
    used_there,
)
from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.kubelet.own_policies import LendingOptions, percent, seconds
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.annotations import LEND_CPUS
from pinfold.core.values.cpuset import CPUSet

LONGEST: Final = 32
"""How many times as long as at first a pause becomes."""

_OWN: Final = 60.0
"""Seconds of which is remembered what an owner waits for while nothing of it is lent."""

_CALM: Final = 0.5
"""The part of the bound of its waits up to which a container's CPUs are lent."""

UNKNOWN: Final = "nobody knows what it uses"

NOBODY: Final = "nobody borrows"
"""Why nothing is lent where no best-effort container runs."""

_PRESSURE: Final = "cpu.pressure"


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
        is_own: whether nothing of it has been lent since the last look.
        used: CPU seconds that it has used in the last minute or so while nothing of it was lent.
        waited: what its threads have waited for a CPU meanwhile, which is its own doing.
        why_not: why no more of its CPUs are lent; "" where they are about to be.
    """

    calm: Mapping[int, float] = field(default_factory=dict)
    lent_for: float = 0.0
    pause: float = 0.0
    strikes: int = 0
    is_own: bool = True
    used: float = 0.0
    waited: float = 0.0
    why_not: str = ""

    @property
    def own_waits(self) -> float:
        """What it waits for by itself, in seconds for each that it runs."""
        return self.waited / self.used if self.used else 0.0


class LendingMemory(Struct, frozen=True):
    """What is remembered, by owners that allow lending, and when that was."""

    at: float = -math.inf
    owners: Mapping[Owner, OwnerMemory] = field(default_factory=dict)


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
            if lent and (reason := self._why_back(one, now, seen)):
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
        below, is_lent = percent(self.options.lend_below), bool(one.cpus & seen.lent)
        usage = None if one.load is None else one.load.usage
        calm = {
            cpu: before.calm.get(cpu, 0.0) + passed if passed else 0.0
            for cpu in one.cpus - seen.lent
            # Of what others run there, interrupts and the like, the owner uses nothing.
            if usage is not None and min(usage, _busy(seen, cpu)) <= below
        }
        if not is_lent and before.lent_for:
            # Somebody else has taken it back: it was not its owner's alone since the last look.
            calm = dict.fromkeys(calm, 0.0)
        now = replace(
            before,
            calm=calm,
            lent_for=before.lent_for + passed if is_lent else 0.0,
            pause=max(0.0, before.pause - passed),
            is_own=not is_lent,
            why_not="",
        )
        wait = None if one.load is None else one.load.wait
        if is_lent or not before.is_own or usage is None or wait is None:
            return now
        kept = math.exp(-passed / _OWN)
        return replace(
            now, used=now.used * kept + usage * passed, waited=now.waited * kept + wait * passed
        )

    def _struck(self, now: OwnerMemory, why: str) -> OwnerMemory:
        """CPUs were taken back: a pause follows, a longer one where it is longer than the loan.

        That is compared with the first pause: with the last one, an owner of whom nothing is lent
        for long would never again have lent for long enough.
        """
        first = seconds(self.options.pause)
        strikes = now.strikes + 1 if now.lent_for < first else 0
        return replace(
            now,
            calm={},
            lent_for=0.0,
            pause=first * min(LONGEST, 2**strikes),
            strikes=strikes,
            is_own=False,
            why_not=why,
        )

    def taken_back(self, memory: LendingMemory, owner: Owner, why: str, at: float) -> LendingMemory:
        """The same once a quick look at that moment has taken CPUs back."""
        now = self._struck(memory.owners.get(owner, OwnerMemory()), why)
        # The next slow look takes all of the time since the last one off the pause.
        now = replace(now, pause=now.pause + max(0.0, at - memory.at))
        return replace(memory, owners={**memory.owners, owner: now})

    def _why_back(self, one: SeenContainer, now: OwnerMemory, seen: Seen) -> str:
        """Why the load of an owner asks for what it has lent; "" where that may stay lent."""
        if one.load is None or one.load.usage is None:
            return UNKNOWN
        if (problem := self._waits(one, now, seen, 1.0)) is not None:
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
            return CPUSet(), UNKNOWN
        if seen.topology is None:
            return CPUSet(), "nobody knows which CPUs are a core"
        if (problem := self._waits(one, now, seen, _CALM)) is not None:
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

    def _waits(self, one: SeenContainer, now: OwnerMemory, seen: Seen, part: float) -> str | None:
        """Why its waits are too long; None where they are not.

        Threads that are more than its CPUs wait for one another: what they do while nothing is
        lent is no borrower's fault, and is added to the bound, up to as much again.
        """
        wait = None if one.load is None else one.load.wait
        if wait is None or one.load is None:
            return "nobody knows how long it waits for a CPU"
        by_pressure = seen.wait_source == _PRESSURE
        options = self.options
        bound = percent(options.max_pressure) if by_pressure else seconds(options.max_wait)
        own = min(bound, now.own_waits * (one.load.usage or 0.0))
        if wait <= bound * part + own:
            return None
        said = (
            f"it waits for a CPU {wait:.0%} of the time"
            if by_pressure
            else f"its threads wait for a CPU {wait * 1000:.0f} ms in each second"
        )
        return f"{said}, of which {own / wait:.0%} are its own doing" if own else said

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

    def remembered(self, looks: Sequence[QuickLook], look: QuickLook) -> tuple[QuickLook, ...]:
        """The looks that are needed from now on."""
        return remembered(looks, look)

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
        used = used_there(owner, holding, looks, self.options.look_period)
        return UNKNOWN if used is None else self._too_much(used, holding.has_siblings)


def give_back(owner: Owner, lent: CPUSet, why: str) -> Return:
    """What an owner has lent is to be given back."""
    return Return.of(lent, f"{_whose(owner)}: {why}")


def owner_gone(cpus: CPUSet) -> Return:
    """These CPUs are to be given back although nobody runs whose they are."""
    return Return.of(cpus, "their owner does not run")


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
    if one.in_bubble:
        return "its CPUs are of its pod's bubble, which stays whole"
    return ""
