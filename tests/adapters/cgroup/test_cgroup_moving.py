"""Moving and ending processes on this machine's kernel, where time says nothing about progress."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.cgroup import CgroupError
from pinfold.adapters.cgroup.folders import members
from pinfold.adapters.cgroup.moving import gather
from pinfold.ports.cgroups import Placement
from tests.scenes.cgroup_kernel import Kernel, a_kernel, only_cpusets
from tests.scenes.cgroups_contract import FORKER
from tests.scenes.contract_node import OWNER, SHARED
from tests.scenes.manager_harness import run_virtually
from tests.scenes.waiting import wait_until

kernel = pytest.fixture(a_kernel)
cpuset_only = pytest.fixture(only_cpusets)


class Leaping(asyncio.SelectorEventLoop):
    """A loop whose clock leaps, as if its process were stopped between any two instructions."""

    def __init__(self) -> None:
        super().__init__()
        self._leapt = 0.0

    def time(self) -> float:
        self._leapt += 11.0
        return super().time() + self._leapt


def run_leaping(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=Leaping) as runner:
        runner.run(work)


def not_frozen(*, frozen: bool) -> None:
    """There is no freezer."""
    del frozen


class Births:
    """Processes of which one more is there at each look, until there are enough."""

    def __init__(self, kernel: Kernel, enough: int) -> None:
        self._kernel = kernel
        self._enough = enough
        self.pids: list[int] = []

    def __call__(self) -> list[int]:
        if len(self.pids) < self._enough:
            self.pids.append(self._kernel.start())
        return list(self.pids)


async def a_folder(kernel: Kernel) -> Path:
    await kernel.cgroups.open(kernel.cpus)
    await kernel.cgroups.place(OWNER, Placement(cpus=kernel.cpus))
    return next(file.parent for file in kernel.files("cpuset.cpus") if OWNER.name in file.parts)


def test_a_mover_that_is_stopped_calls_nobody_a_fork_bomb(kernel: Kernel) -> None:
    async def scenario() -> None:
        births, folder = Births(kernel, 25), await a_folder(kernel)
        assert await gather(births, [folder], not_frozen)
        assert set(births.pids) == set(members(folder))
        assert len(births.pids) == 25

    run_leaping(scenario())


def test_who_is_born_as_fast_as_moved_is_a_clear_failure(kernel: Kernel) -> None:
    """On a clock that stands nearly still; whoever else there is goes on meanwhile."""

    async def scenario() -> None:
        births, folder = Births(kernel, 10_000), await a_folder(kernel)
        others: list[int] = []

        async def others_go_on() -> None:
            while True:
                others.append(len(births.pids))
                await asyncio.sleep(0.001)

        other = asyncio.create_task(others_go_on())
        with pytest.raises(CgroupError, match="fork faster than they can be moved"):
            await gather(births, [folder], not_frozen)
        other.cancel()
        assert len(births.pids) < 1000
        assert len(set(others)) > len(births.pids) / 2
        await kernel.cgroups.kill(OWNER)
        assert members(folder) == []

    run_virtually(scenario())


@pytest.mark.parametrize("which", ["kernel", "cpuset_only"])
def test_forking_processes_are_moved_and_ended_whatever_the_clock_says(
    which: str, request: pytest.FixtureRequest
) -> None:
    kernel: Kernel = request.getfixturevalue(which)

    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        pid = kernel.start(*FORKER)
        wait_until(lambda: len(kernel.family(pid)) > 1, 60)
        await kernel.cgroups.place(SHARED, Placement())
        await kernel.cgroups.enter(SHARED, pid)
        await kernel.cgroups.kill(SHARED)
        wait_until(lambda: not kernel.family(pid))

    run_leaping(scenario())


def test_stopped_processes_are_ended_whatever_the_clock_says(kernel: Kernel) -> None:
    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        pid = kernel.start("sh", "-c", "sleep 1000 & sleep 1000 & kill -STOP $$; wait")
        wait_until(lambda: _state(pid) == "T")
        await kernel.cgroups.place(SHARED, Placement())
        await kernel.cgroups.enter(SHARED, pid)
        await kernel.cgroups.kill(SHARED)
        assert not kernel.family(pid)

    run_leaping(scenario())


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
