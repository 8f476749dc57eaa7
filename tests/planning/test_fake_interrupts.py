"""The interrupts in memory fulfil the same contract as the kernel's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_interrupts import FakeInterrupts, FakeMachine
from tests.scenes.interrupts_contract import check_interrupts


class InMemory:
    online = CPUSet.parse("0-3")

    def __init__(self) -> None:
        self.machine = FakeMachine(
            {
                "1": CPUSet([0]),
                "24": self.online,
                "25": CPUSet([3]),
                "26": CPUSet.parse("2-3"),
                "36": self.online,
                "default": self.online,
            },
            fixed=("36",),
        )

    def agent(self) -> FakeInterrupts:
        return FakeInterrupts(self.machine)

    def affinities(self) -> Mapping[str, CPUSet]:
        return dict(self.machine.affinities)

    def write(self, number: str, cpus: CPUSet) -> None:
        self.machine.affinities[number] = cpus


def test_the_contract() -> None:
    asyncio.run(check_interrupts(InMemory()))
