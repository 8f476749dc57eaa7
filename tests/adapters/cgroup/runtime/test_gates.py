"""Cpusets above those of containers: no owner's CPU is anybody else's after any single write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.adapters.cgroup.runtime.container_cpusets import ContainerCpusets
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_runtime_cgroups import FakeCpusets
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError
from tests.scenes.gates_world import BURSTABLE, MACHINE, OPEN, KilledError, World
from tests.scenes.manager_harness import run_virtually


async def _life(seed: int, length: int, *, kills: bool, version: int = 2) -> None:
    world = World(seed, version)
    for _ in range(length):
        if kills and world.choice.random() < 0.4:
            world.dies_at = world.writes + world.choice.randrange(1, 5)
        try:
            await world.step()
        except KilledError:
            await world.begin_again()
        world.check_all()
    if kills and world.choice.random() < 0.5:
        world.dies_at = world.writes + world.choice.randrange(1, 5)
    try:
        await world.cpusets.close(everything=False)
    except KilledError:
        await world.begin_again()
        await world.cpusets.close(everything=False)
    # Everybody holds by himself now, and nothing is left of the gates.
    assert set(world.node.gates.values()) <= OPEN
    assert not world.record.before
    for key, one in world.containers.items():
        assert one.kernel == world.placement(key).within(world.pool)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_an_owners_cpus_are_nobody_elses_after_any_write(seed: int, length: int) -> None:
    run_virtually(_life(seed, length, kills=False))


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_nor_when_the_agent_is_killed_between_any_two(seed: int, length: int) -> None:
    run_virtually(_life(seed, length, kills=True))


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 20))
def test_without_gates_everybody_is_written(seed: int, length: int) -> None:
    run_virtually(_life(seed, length, kills=True, version=1))


# ------------------------------------------------------------------------------- single cases


@pytest.mark.parametrize("count", [1, 50])
def test_the_writes_for_an_owner_do_not_grow_with_the_containers(count: int) -> None:
    async def scenario() -> int:
        world = World(0)
        for number in range(count):
            parent = ("/kubepods/burstable", "/kubepods/besteffort")[number % 2 if number else 0]
            await world.create(await world.pod(parent), None)
        if count == 1:
            await world.create(await world.pod("/kubepods/besteffort"), None)
        before = world.writes
        await world.cpusets.set_shared(MACHINE - CPUSet([7]))
        return world.writes - before

    assert run_virtually(scenario()) == 2


def test_what_a_gate_had_is_kept_from_those_below() -> None:
    """An administrator's own limit stands, while it is used and after that."""

    async def scenario() -> None:
        world = World(0)
        world.node.gates[BURSTABLE] = CPUSet([0, 1, 2])
        key = await world.create(await world.pod("/kubepods/burstable"), None)
        await world.cpusets.set_shared(MACHINE - CPUSet([2]))
        assert world.containers[key].kernel == CPUSet([0, 1])
        assert world.record.before == {BURSTABLE: CPUSet([0, 1, 2])}
        await world.cpusets.close(everything=False)
        assert world.node.gates[BURSTABLE] == CPUSet([0, 1, 2])
        assert world.containers[key].kernel == CPUSet([0, 1])

    run_virtually(scenario())


def test_a_limit_that_is_set_while_an_agent_runs_is_kept() -> None:
    async def scenario() -> None:
        world = World(0)
        key = await world.create(await world.pod("/kubepods/burstable"), None)
        await world.create(await world.pod("/kubepods"), CPUSet([7]))
        for limit, seen in (([0, 1, 7], [0, 1]), ([1, 2, 3], [1, 2, 3])):
            world.is_stale = True
            world.node.gates[BURSTABLE] = CPUSet(limit)
            # Noticed by the next change as well as by whoever looks.
            if seen == limit:
                await world.cpusets.set_shared(world.pool)
            else:
                assert world.cpusets.gates.mend(BURSTABLE)
            world.is_stale = False
            assert world.containers[key].kernel == world.node.gates[BURSTABLE] == CPUSet(seen)
            assert world.record.before[BURSTABLE] == CPUSet(limit)
        # Taken away again.
        world.is_stale = True
        world.node.gates[BURSTABLE] = MACHINE
        assert world.cpusets.gates.mend(BURSTABLE)
        world.is_stale = False
        world.check_all()

    run_virtually(scenario())


def test_a_limit_that_is_set_while_no_agent_runs_is_kept() -> None:
    async def scenario() -> None:
        world = World(0)
        key = await world.create(await world.pod("/kubepods/burstable"), None)
        await world.create(await world.pod("/kubepods"), CPUSet([7]))
        world.node.gates[BURSTABLE] = CPUSet([0, 1])
        await world.begin_again()
        assert world.containers[key].kernel == CPUSet([0, 1])
        await world.begin_again()
        await world.cpusets.close(everything=False)
        assert world.node.gates[BURSTABLE] == CPUSet([0, 1])

    run_virtually(scenario())


@pytest.mark.parametrize("limit", [[0, 1], [6]])
def test_a_limit_with_which_those_below_could_not_be_is_none(limit: list[int]) -> None:
    """Nobody is pushed onto an owner's CPUs, and no owner off them."""

    async def scenario() -> None:
        world = World(0)
        pod = await world.pod("/kubepods")
        await world.create(pod, None)
        await world.create(pod, CPUSet([7]))
        await world.create(await world.pod("/kubepods"), CPUSet([6]))
        gate = Path(pod.cgroup_parent)
        world.is_stale = True
        world.node.gates[gate] = CPUSet(limit)
        assert world.cpusets.gates.mend(gate)
        world.is_stale = False
        world.check_all()

    run_virtually(scenario())


def test_a_gate_that_cannot_be_put_back_holds_up_nothing() -> None:
    async def scenario() -> None:
        world = World(0)
        told: list[str] = []
        await world.create(await world.pod("/kubepods/burstable"), None)
        await world.create(await world.pod("/kubepods/besteffort"), None)
        left = await world.create(await world.pod("/kubepods"), None)
        await world.create(await world.pod("/kubepods"), CPUSet([7]))
        world.granted.clear()  # nobody is shown to the next one
        after = ContainerCpusets(_NotBack(world.node), world.record, told.append)
        after.open(world.pool)
        await after.set_shared(world.pool)
        for _ in range(2):
            await after.settle()
        assert world.record.before.keys() == after.gates.before.keys() == {BURSTABLE}
        assert len(told) == 1
        assert "kubepods/burstable cannot have what it had before" in told[0]
        assert world.node.gates[BURSTABLE] == world.pool
        # What fails when a container goes keeps nobody from forgetting it.
        known = after.place(left, Placement())
        after.locate(known, BURSTABLE / "pod9" / "x")
        await after.forget(left)
        assert left not in after.known
        # The next one tries again.
        after = ContainerCpusets(FakeCpusets(world.node), world.record)
        after.open(world.pool)
        await after.settle()
        assert not world.record.before
        assert set(world.node.gates.values()) <= OPEN

    run_virtually(scenario())


class _NotBack(FakeCpusets):
    """A kernel that does not let one gate have all."""

    def put(self, folder: Path, cpus: CPUSet) -> None:
        if folder == BURSTABLE and cpus in OPEN:
            raise CgroupError(f"{folder}: Invalid argument")
        super().put(folder, cpus)


def test_a_gate_is_not_let_go_before_everybody_below_has_left() -> None:
    async def scenario() -> None:
        world = World(0, kernel=_Stuck)
        pod = await world.pod("/kubepods/burstable")
        sharer = await world.create(pod, None)
        await world.cpusets.set_shared(low := MACHINE - CPUSet([7]))
        assert world.containers[sharer].kernel == low
        world.node.gate_faults.fail_at = {world.node.gate_faults.calls + 1}
        with pytest.raises(CgroupError, match="stuck"):
            await world.cpusets.set_shared(low - CPUSet([6]))
        assert world.containers[sharer].kernel == low, "and not on what the gate had before"
        await world.cpusets.set_shared(low - CPUSet([6]))
        assert world.containers[sharer].kernel == low - CPUSet([6])

    run_virtually(scenario())


@pytest.mark.parametrize("version", [1, 2])
def test_a_thread_that_stays_behind_is_looked_for_until_it_is_gone(version: int) -> None:
    async def scenario() -> None:
        world = World(0, version, kernel=_Straying)
        assert isinstance(world.kernel, _Straying)
        parent = "/kubepods/burstable" if version == 2 else "/other"
        await world.create(await world.pod(parent), None)
        low = MACHINE - CPUSet([7])
        await world.cpusets.set_shared(MACHINE)
        if version == 2:
            await world.cpusets.set_shared(low)
        world.kernel.strays = True
        for _ in range(3):
            with pytest.raises(CgroupError, match="thread 42"):
                await world.cpusets.set_shared(low)
        world.kernel.strays = False
        await world.cpusets.set_shared(low)
        looks = world.kernel.looks
        await world.cpusets.set_shared(low)
        assert world.kernel.looks == looks, "nobody is looked at twice"

    run_virtually(scenario())


class _Straying(FakeCpusets):
    """A kernel with a thread that goes its own way."""

    strays = False
    looks = 0

    async def confirm(self, folders: Sequence[Path], cpus: CPUSet, *, below: bool = True) -> None:
        await super().confirm(folders, cpus, below=below)
        self.looks += len(folders)
        if folders and self.strays:
            raise CgroupError(f"thread 42 of a container may still run on {MACHINE - cpus}")


def test_what_somebody_else_has_written_last_stays_at_the_end() -> None:
    async def scenario() -> None:
        world = World(0)
        await world.create(await world.pod("/kubepods/burstable"), None)
        world.node.gates[BURSTABLE] = CPUSet([0, 1])
        await world.cpusets.close(everything=False)
        assert world.node.gates[BURSTABLE] == CPUSet([0, 1])

    run_virtually(scenario())


@pytest.mark.parametrize("why", ["partition", "kernel", "disk"])
def test_without_a_gate_that_can_be_had_each_is_written(why: str) -> None:
    async def scenario() -> None:
        world = World(0)
        if why == "partition":
            world.node.partitions.add(BURSTABLE)
        faults = world.record.faults if why == "disk" else world.node.gate_faults
        faults.fail_all = why != "partition"
        key = await world.create(await world.pod("/kubepods/burstable"), None)
        await world.cpusets.set_shared(CPUSet([0, 1]))
        assert not world.cpusets.gates.written
        assert not world.record.before
        one = world.containers[key]
        assert one.cpuset == one.kernel == CPUSet([0, 1])

    run_virtually(scenario())


def test_a_gate_that_fails_later_lets_nobody_onto_an_owners_cpus() -> None:
    async def scenario() -> None:
        world = World(0)
        sharer = await world.create(await world.pod("/kubepods/burstable"), None)
        await world.create(await world.pod("/kubepods"), CPUSet([3]))
        world.node.gate_faults.fail_at = {world.node.gate_faults.calls + 1}
        await world.create(await world.pod("/kubepods"), CPUSet([4]))
        world.check_all()
        assert not world.cpusets.gates.written
        assert world.containers[sharer].cpuset == MACHINE - CPUSet([3, 4])

    run_virtually(scenario())


def test_gates_of_before_stay_until_their_containers_are_shown() -> None:
    async def scenario() -> None:
        world = World(0)
        await world.create(await world.pod("/kubepods/burstable"), None)
        await world.create(await world.pod("/kubepods"), CPUSet([3]))
        after = ContainerCpusets(FakeCpusets(world.node), world.record)
        after.open(world.pool)
        await after.set_shared(world.pool)
        await after.close(everything=False)
        assert world.node.gates[BURSTABLE] == world.pool
        # An agent that has nothing to look after leaves nothing behind.
        world.granted.clear()
        await after.close(everything=True)
        assert set(world.node.gates.values()) <= OPEN
        assert not world.record.before

    run_virtually(scenario())


def test_who_shares_beside_an_owner_is_refused_before_the_gate_is_wider() -> None:
    """Somebody who cannot be moved keeps the owner from its CPUs, not the owner from its own."""

    async def scenario() -> None:
        world = World(0, kernel=_Stuck)
        pod = await world.pod("/kubepods")
        await world.create(pod, None)
        with pytest.raises(CgroupError, match="stuck"):
            await world.create(pod, CPUSet([3]))
        world.check()

    run_virtually(scenario())


class _Stuck(FakeCpusets):
    """A kernel that takes nothing narrower from those who have all."""

    def set(self, folder: Path, wanted: CPUSet, mems: CPUSet | None) -> tuple[CPUSet, CPUSet]:
        if wanted != MACHINE:
            raise CgroupError(f"{folder}: stuck at {wanted}")
        return super().set(folder, wanted, mems)


def test_no_two_changes_at_a_time() -> None:
    """What is placed while the pool moves sees the pool that it moves to."""

    async def scenario() -> None:
        world = World(0)
        pod = await world.pod("/kubepods")
        for _ in range(40):
            await world.create(pod, None)
        await world.create(pod, CPUSet([7]))
        fewer = world.pool - CPUSet([6])
        moving = asyncio.create_task(world.cpusets.set_shared(fewer))
        await asyncio.sleep(0)
        world.pool = fewer
        await world.find(next(iter(world.containers)))
        await moving
        world.check_all()

    run_virtually(scenario())


def test_gates_that_are_opened_again_are_put_back_at_the_end() -> None:
    """As when somebody has taken away what an agent has claimed, and nothing else."""

    async def scenario() -> None:
        world = World(0)
        await world.create(await world.pod("/kubepods/burstable"), None)
        await world.create(await world.pod("/kubepods"), CPUSet([3]))
        await world.cpusets.settle()
        world.cpusets.open(world.pool)
        assert world.node.gates[BURSTABLE] == world.pool
        await world.cpusets.close(everything=False)
        assert set(world.node.gates.values()) <= OPEN
        assert not world.record.before

    run_virtually(scenario())


def test_a_gate_that_cannot_be_put_back_at_the_end_is_told_and_kept_on_record() -> None:
    async def scenario() -> None:
        world = World(0)
        await world.create(await world.pod("/kubepods/burstable"), None)
        await world.create(await world.pod("/kubepods"), CPUSet([3]))
        world.node.gate_faults.fail_all = True
        with pytest.raises(CgroupError):
            await world.cpusets.close(everything=False)
        assert BURSTABLE in world.record.before
        assert world.node.gates[BURSTABLE] == world.pool

    run_virtually(scenario())


def test_who_had_to_leave_is_looked_at_though_the_move_was_cancelled() -> None:
    async def scenario() -> None:
        world = World(0, 1, kernel=_Straying)
        assert isinstance(world.kernel, _Straying)
        pod = await world.pod("/other")
        for _ in range(40):
            await world.create(pod, None)
        await world.cpusets.set_shared(MACHINE)
        low, looks = MACHINE - CPUSet([7]), world.kernel.looks
        moving = asyncio.create_task(world.cpusets.set_shared(low))
        await asyncio.sleep(0)
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving
        assert world.kernel.looks == looks
        assert {str(one.kernel) for one in world.containers.values()} == {"0-6", "0-7"}
        await world.cpusets.set_shared(low)
        assert world.kernel.looks >= looks + 40

    run_virtually(scenario())
