"""A node with a simulated load, under the controller that gives out CPUs by load.

In the shared pool everybody gets its part of the CPUs and waits for the rest, within its quota; on
CPUs of its own nobody waits.  As a record does, it keeps the usage with which each was promoted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from msgspec import Struct

from pinfold.core.controllers.load_driven import Demote, LoadDriven, Promote, Watches
from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.kubelet.own_policies import LoadDrivenOptions
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet


class Work(Struct, frozen=True):
    """A container of ``count`` CPUs that would use ``demand(seconds)``, give or take ``noise``."""

    count: int
    demand: Callable[[float], float]
    noise: float = 0.0


class SimulatedNode:
    """Time goes on in seconds; ``crowd`` is what others would use of the shared pool."""

    def __init__(self, options: LoadDrivenOptions, cpus: int, seed: int) -> None:
        self.controller = LoadDriven(options)
        self.cpus = CPUSet(range(cpus))
        self.crowd = 0.0
        self.works: dict[Owner, Work] = {}
        self.own: dict[Owner, CPUSet] = {}
        self.promoted_with: dict[Owner, float | None] = {}
        self.since: dict[Owner, float] = {}
        self.memory: Watches = {}
        self.moves: list[tuple[float, Owner, str]] = []
        self.no_fit = 0
        self._seconds = 0.0
        self._clock = 0.0
        self._chance = random.Random(seed)  # noqa: S311 - a simulation

    def start(self, owner: Owner, work: Work) -> None:
        """A container begins, in the shared pool."""
        self.works[owner] = work
        self.since[owner] = self._seconds

    def end(self, owner: Owner) -> None:
        """A container ends."""
        del self.works[owner]
        self.own.pop(owner, None)
        self.memory = {other: watch for other, watch in self.memory.items() if other != owner}

    def restart(self) -> None:
        """The controller begins anew, and knows what was kept."""
        self.memory = {}

    def forget(self) -> None:
        """It begins anew beside a record of before there was any of that in it."""
        self.promoted_with, self.since = {}, dict.fromkeys(self.works, math.inf)
        self.restart()

    def skip(self, seconds: float) -> None:
        """The clock jumps."""
        self._clock += seconds

    @property
    def seconds(self) -> float:
        """For how long it runs, by no clock that jumps."""
        return self._seconds

    @property
    def pool(self) -> CPUSet:
        """The CPUs that nobody owns."""
        return self.cpus - CPUSet.union_of(self.own.values())

    def run(self, seconds: int) -> None:
        """So many looks, one a second; what is wished is carried out at once."""
        for _ in range(seconds):
            self._seconds += 1
            self._clock += 1
            seen = Seen(self._clock, self.cpus, self.pool, containers=self._observed())
            self.memory, proposals = self.controller.step(self.memory, seen)
            for one in proposals:
                (owner,) = one.owners
                if isinstance(one, Demote):
                    del self.own[owner]
                elif isinstance(one, Promote):
                    free = sorted(self.pool)[1:]
                    if len(free) < one.count:
                        self.no_fit += 1
                        continue
                    self.own[owner] = CPUSet(free[: one.count])
                    self.promoted_with[owner] = one.used
                self.since[owner] = self._seconds
                self.moves.append((self._seconds, owner, type(one).__name__))

    def _observed(self) -> dict[Owner, SeenContainer]:
        wants = {
            owner: max(
                0.0,
                work.demand(self._seconds) * (1 + self._chance.uniform(-work.noise, work.noise)),
            )
            for owner, work in self.works.items()
        }
        sharing = [owner for owner in self.works if owner not in self.own]
        asked = sum(min(wants[owner], self.works[owner].count) for owner in sharing) + self.crowd
        part = min(1.0, len(self.pool) / asked) if asked else 1.0
        return {
            owner: SeenContainer(
                self.own.get(owner, CPUSet()),
                QOSClass.GUARANTEED,
                self._load(owner, wants[owner], part),
                load_driven=self.works[owner].count,
                promoted_with=self.promoted_with.get(owner) if owner in self.own else None,
                settled=max(0.0, self._seconds - self.since[owner]),
            )
            for owner in self.works
        }

    def _load(self, owner: Owner, want: float, part: float) -> Load:
        count = self.works[owner].count
        limited = min(want, count)
        if owner in self.own:
            return Load(1.0, usage=limited, wait=max(0.0, want - limited), throttled_periods=None)
        used = limited * part
        return Load(
            1.0, usage=used, wait=limited - used, throttled_periods=1.0 if want > count else 0.0
        )
