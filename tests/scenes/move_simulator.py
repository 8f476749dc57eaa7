"""A node that carries out moves, effect by effect, and looks at itself after each of them.

It knows nothing of how plans are made: sets of numbers, a record, a kernel, a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import (
    Announce,
    GiveBack,
    MigrateMemory,
    MovePlan,
    Narrow,
    ShrinkPool,
    Wait,
    Widen,
    after,
)

CPUs = frozenset[int]


class Node:
    """Record and kernel of one node.

    Args:
        owners: who has what at first.
        pool: the shared pool.
        friends: pairs that may have CPUs in common.
        mixed: owners that run on the pool besides.
        least: owner -> CPUs that it must always have, and how many at least.
        cores: groups of CPUs that nobody may share, if that is asked for.
    """

    def __init__(  # noqa: PLR0917 - a scene is these things
        self,
        owners: Mapping[Owner, CPUs],
        pool: CPUs,
        friends: Iterable[frozenset[Owner]] = (),
        mixed: Iterable[Owner] = (),
        least: Mapping[Owner, tuple[CPUs, int]] | None = None,
        cores: Iterable[CPUs] = (),
    ) -> None:
        self.everything = frozenset().union(pool, *owners.values())
        self.claims = dict(owners)
        self.recorded_pool = pool
        self.kernel = dict(owners)
        self.pool = pool
        self.mems: dict[Owner, CPUs] = {}
        self.friends = set(friends)
        self.mixed = set(mixed)
        self.least = dict(least or {})
        self.cores = list(cores)
        self.now = 0.0
        self.told: dict[Owner, tuple[CPUs, float]] = {}
        self.delays: Mapping[Owner, float] = {}
        self.effects = 0
        self.look()

    def look(self) -> None:
        """Everything that must hold at every instant."""
        self.effects += 1
        self._disjoint(self.claims, "on record")
        self._disjoint(self.kernel, "in the kernel")
        assert self.recorded_pool.isdisjoint(frozenset().union(*self.claims.values()))
        assert self.recorded_pool.union(*self.claims.values()) == self.everything, "leaked"
        for owner, cpus in self.kernel.items():
            assert cpus <= self.claims[owner], f"{owner} runs on what it does not own"
            runs_on = cpus | self.pool if owner in self.mixed else cpus
            for other, theirs in self.kernel.items():
                if other != owner and frozenset((owner, other)) not in self.friends:
                    assert runs_on.isdisjoint(theirs), f"{owner} runs on CPUs of {other}"
            assert cpus.isdisjoint(self.pool), f"{owner} shares"
            always, number = self.least.get(owner, (frozenset(), 1))
            assert always <= cpus, f"{owner} has lost what it keeps"
            assert len(cpus) >= number, f"{owner} has too few"
        for core in self.cores:
            on_it = {owner for owner, cpus in self.kernel.items() if cpus & core}
            assert len(on_it) <= 1, f"{on_it} share core {sorted(core)}"

    def _disjoint(self, sets: Mapping[Owner, CPUs], where: str) -> None:
        seen: dict[int, Owner] = {}
        for owner, cpus in sets.items():
            for cpu in cpus:
                other = seen.get(cpu)
                if other is not None:
                    assert frozenset((owner, other)) in self.friends, f"{cpu} twice {where}"
                seen[cpu] = owner

    # ------------------------------------------------------------------------------------ effects

    def write(self, plan: MovePlan, count: int) -> None:
        """Put on record what holds once ``count`` steps are made."""
        state = after(plan, count)
        for owner, cpus in state.claims.items():
            self.claims[owner] = frozenset(cpus)
        self.recorded_pool = frozenset(state.pool)
        self.look()

    def make(self, plan: MovePlan, index: int) -> None:
        """Make a step in the kernel, which may have been made before."""
        step = plan.steps[index]
        match step:
            case ShrinkPool():
                self.pool -= frozenset(step.cpus)
            case GiveBack(cpus):
                self.pool |= frozenset(cpus)
            case Widen(owner, was, now):
                assert was <= now
                self.kernel[owner] = frozenset(now)
                if step.mems is not None:
                    self.mems[owner] = frozenset(step.mems)
            case Narrow(owner, was, now):
                assert now < was
                if self.delays.get(owner) and self.kernel[owner] != frozenset(now):
                    coming, at = self.told[owner]
                    assert coming == frozenset(now), "it was told something else"
                    assert self.now >= at + self.delays[owner], "taken before the deadline"
                self.kernel[owner] = frozenset(now)
            case MigrateMemory(owner, _, now):
                self.mems[owner] = frozenset(now)
            case Announce(owner, _, coming):
                self.told[owner] = (frozenset(coming), self.now)
            case Wait(owner, seconds):
                self.now = max(self.now, self.told[owner][1] + seconds)
        self.look()

    def restart(self, plan: MovePlan, written: int) -> None:
        """What an agent does first that finds a record: the pool, then everybody in his place."""
        self.pool &= self.recorded_pool
        self.look()
        places = after(plan, written).placed
        for owner, claimed in self.claims.items():
            self.kernel[owner] = frozenset(places.get(owner, claimed))
            self.look()
        self.pool = self.recorded_pool
        self.look()

    def run(self, plan: MovePlan, stop: int | None = None, *, written: int = 0) -> None:
        """Carry out a plan of which so much is on record, up to ``stop`` steps."""
        # The last one that is on record may have been made, and is made again.
        for index in range(max(written - 1, 0), len(plan.steps)):
            if stop is None or index < stop:
                self.write(plan, index + 1)
                self.make(plan, index)
