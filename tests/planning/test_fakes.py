"""The fakes of the ports keep the same contracts as the adapters for the real world."""

from __future__ import annotations

import asyncio

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.planning.fakes import MemoryTeller
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError
from pinfold.ports.tellers import TellingError
from tests.scenes.cgroups_contract import check_contract, check_memory, check_offline
from tests.scenes.teller_contract import FIRST, OWNER, check_acknowledgements, check_telling


class FakeNode:
    """Cgroups and processes that are rows."""

    def __init__(self, version: int = 2) -> None:
        self.cpus = CPUSet.parse("0-7")
        self.cgroups = FakeCgroups(self.cpus, version)

    def start(self) -> int:
        pid = 100 + len(self.cgroups.processes)
        self.cgroups.processes[pid] = None
        return pid

    def allowed(self, pid: int) -> CPUSet:
        return self.cgroups.allowed(pid)

    def alive(self, pid: int) -> bool:
        return pid in self.cgroups.processes

    def memory_nodes(self, pid: int) -> CPUSet:
        key = self.cgroups.processes[pid]
        assert key is not None
        return self.cgroups.groups[key].placement.mems or CPUSet()


def test_fake_cgroups_meet_the_contract() -> None:
    asyncio.run(check_contract(FakeNode()))


def test_fake_cgroups_move_memory() -> None:
    node = FakeNode()
    asyncio.run(check_memory(node, CPUSet([0, 1])))


def test_the_memory_of_fake_cgroups() -> None:
    """Of which a part cannot be moved, or that has no room."""

    async def scenario() -> None:
        cgroups = FakeNode().cgroups
        both, last = CPUSet([0, 1]), CPUSet([1])
        await cgroups.place(OWNER, Placement(cpus=CPUSet([1]), mems=both))
        cgroups.memory[OWNER] = {0: 100, 1: 5}
        cgroups.stuck[OWNER] = 30
        cgroups.room[1] = 99
        for refused in (cgroups.weigh, cgroups.migrate):
            with pytest.raises(CgroupError, match="no room"):
                await refused(OWNER, last)
        assert cgroups.memory[OWNER] == {0: 100, 1: 5}
        assert cgroups.groups[OWNER].placement.mems == both
        cgroups.room[1] = 100
        assert await cgroups.weigh(OWNER, last) == 100
        told = await cgroups.migrate(OWNER, last)
        assert (told.moved, told.stayed) == (70, 30)
        assert cgroups.memory[OWNER] == {0: 30, 1: 75}
        assert [(one.node, one.before, one.after) for one in told.nodes] == [
            (0, 100, 30),
            (1, 5, 75),
        ]

    asyncio.run(scenario())


@pytest.mark.parametrize("version", [1, 2])
def test_fake_cgroups_do_what_kernels_do_when_cpus_go_offline(version: int) -> None:
    node = FakeNode(version)

    def switch(online: CPUSet) -> None:
        node.cgroups.online = online

    asyncio.run(check_offline(node, switch))


def test_a_fake_teller_meets_the_contract() -> None:
    teller = MemoryTeller()
    asyncio.run(check_telling(teller, lambda: teller))
    asyncio.run(check_acknowledgements(teller, teller.acknowledge))


def test_what_a_fake_teller_cannot_tell_is_not_told() -> None:
    async def scene() -> None:
        teller = MemoryTeller()
        teller.faults.fail_all = True
        with pytest.raises(TellingError):
            await teller.tell(OWNER, FIRST)
        assert await teller.told(OWNER) is None
        assert teller.history == []

    asyncio.run(scene())
