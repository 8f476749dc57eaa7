"""The runtime's record follows the kernel, and never while the runtime is at work on an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.recorded_cpusets import ANSWERED, PATIENCE, SETTLED, RecordedCpusets
from pinfold.planning.fake_nri import FakeNode
from pinfold.planning.fake_runtime_cgroups import FakeRuntimeCgroups
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.nri import ContainerUpdate
from tests.scenes.manager_harness import run_virtually


class Told:
    """A runtime's record that notes when it was told what."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, list[str]]] = []

    async def update(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        now = asyncio.get_running_loop().time()
        self.calls.append((now, [one.container_id for one in updates]))
        return ()


def some_on_record(containers: int) -> RecordedCpusets:
    """One whose containers are on record with more CPUs than they have."""
    machine = CPUSet([0, 1])
    cgroups = FakeRuntimeCgroups(FakeNode(machine))
    on_record = RecordedCpusets(cgroups, lambda *_: None, batch=100)
    for number in range(containers):
        on_record.put(
            ContainerKey(f"uid-{number}", "main"), f"id-{number}", Placement(), str(machine)
        )
    on_record.follow(CPUSet([0]))
    return on_record


def play(
    on_record: RecordedCpusets, answers: int, pause: float, seconds: float
) -> list[Sequence[str]]:
    """Answer some times, then wait; what was told unasked, and none of it too early."""

    async def run() -> list[Sequence[str]]:
        told, last = Told(), None
        task = asyncio.create_task(on_record.run(told))
        for _ in range(answers):
            on_record.answer()
            last = asyncio.get_running_loop().time()
            await asyncio.sleep(pause)
        await asyncio.sleep(seconds)
        task.cancel()
        assert all(last is None or at - last >= SETTLED for at, _ in told.calls)
        return [ids for _, ids in told.calls]

    return run_virtually(run())


def test_without_an_answer_it_is_told_at_once() -> None:
    on_record = some_on_record(3)
    assert play(on_record, 0, 0, 0.1) == [["id-0", "id-1", "id-2"]]
    assert on_record.behind == 0


def test_it_is_told_of_nobody_who_has_yet_to_be_placed() -> None:
    on_record, key = some_on_record(1), ContainerKey("uid-new", "main")
    on_record.put(key, "id-new", None, "0-1")
    assert play(on_record, 0, 0, 0.1) == [["id-0"]]
    on_record.move(key, Placement())
    assert play(on_record, 0, 0, 0.1) == [["id-new"]]


def test_it_is_not_told_while_it_may_be_at_work_on_an_answer() -> None:
    on_record = some_on_record(ANSWERED + 2)
    assert play(on_record, 1, 0, SETTLED - 0.1) == []
    assert on_record.behind == 2
    on_record = some_on_record(ANSWERED + 2)
    assert play(on_record, 1, 0, SETTLED + 0.1) == [[f"id-{ANSWERED}", f"id-{ANSWERED + 1}"]]
    assert on_record.behind == 0


def test_each_answer_puts_it_off_again() -> None:
    on_record = some_on_record(5 * ANSWERED)
    assert play(on_record, 4, SETTLED * 0.7, 0) == []
    assert on_record.behind == ANSWERED, "the answers told the others"


@pytest.mark.parametrize("fails", [True, False])
def test_the_kernel_is_made_right_after_the_runtime_has_written(fails: bool) -> None:
    """It may have written what held before, also where it says that it failed."""
    placed: list[tuple[ContainerKey, Placement]] = []
    key, later = ContainerKey("uid", "main"), Placement(cpus=CPUSet([1]))

    class Cgroups(FakeRuntimeCgroups):
        async def place(self, key: ContainerKey, placement: Placement) -> str:
            placed.append((key, placement))
            return await super().place(key, placement)

    class Record(Told):
        async def update(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
            if not self.calls:
                on_record.move(key, later)
            await super().update(updates)
            if fails and len(self.calls) == 1:
                raise PortError("the runtime does not answer")
            return ()

    on_record = RecordedCpusets(Cgroups(FakeNode(CPUSet([0, 1]))), lambda *_: None, batch=100)
    on_record.put(key, "id", Placement(CPUSet([0])), "0-1")

    async def run() -> None:
        told = Record()
        task = asyncio.create_task(on_record.run(told))
        await asyncio.sleep(2 * PATIENCE)
        task.cancel()
        assert [ids for _, ids in told.calls] == [["id"], ["id"]]

    run_virtually(run())
    assert placed == [(key, later), (key, later)]
    assert on_record.behind == 0
