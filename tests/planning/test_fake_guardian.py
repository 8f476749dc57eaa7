"""The guardian in memory meets the contract of the real one."""

from __future__ import annotations

import asyncio

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_guardian import FakeGuardian
from pinfold.ports.guardian import LOOK, LeaseError
from tests.scenes.guardian_contract import check_ends, check_guarding


class Place:
    """An idle side in memory, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lent, self.capped = CPUSet(), False
        self.guardian = FakeGuardian(self.undo, lambda: self.now)

    def undo(self) -> tuple[CPUSet, bool]:
        done = self.lent, self.capped
        self.lent, self.capped = CPUSet(), False
        return done

    def another(self) -> FakeGuardian:
        return self.guardian

    def lend(self, cpus: CPUSet) -> None:
        self.lent = cpus

    def cap(self) -> None:
        self.capped = True

    def in_force(self) -> tuple[CPUSet, bool]:
        return self.lent, self.capped

    async def sleep(self) -> None:
        for _ in range(8):
            await self.work()

    async def work(self) -> None:
        self.now += LOOK
        self.guardian.look()


def test_it_meets_the_contract() -> None:
    asyncio.run(check_guarding(Place()))
    asyncio.run(check_ends(Place()))


def test_one_that_is_killed_undoes_nothing_and_the_agent_knows() -> None:
    place = Place()
    asyncio.run(place.guardian.begin())
    place.lend(CPUSet([1]))
    place.guardian.lives = False
    with pytest.raises(LeaseError):
        place.guardian.renew()
    place.guardian.look(closed=True)
    assert place.in_force() == (CPUSet([1]), False)


def test_it_can_be_refused() -> None:
    place = Place()
    place.guardian.refuses = "no process can be started"
    with pytest.raises(LeaseError, match="no process"):
        asyncio.run(place.guardian.begin())
