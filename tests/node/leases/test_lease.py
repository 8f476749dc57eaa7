"""The lease: nothing is lent that nobody would take back, wherever the agent is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.leases.lease import LINGER, Lease
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.planning.fake_guardian import FakeGuardian
from pinfold.ports.errors import CgroupError
from pinfold.ports.guardian import LEASE, LOOK, LeaseError, Undone

MACHINE = CPUSet.parse("0-5")
POOL = CPUSet.parse("0-2")
NOTHING = CPUSet()


class Stops:
    """Cgroups before and after each of whose calls the agent may be stopped, or others go on."""

    def __init__(self, cgroups: FakeCgroups) -> None:
        self.cgroups = cgroups
        self.between: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.cgroups, name)
        if name not in ("lend", "cap_idle", "set_shared", "open"):
            return found

        async def call(*arguments: Any) -> None:
            self.between()
            await asyncio.sleep(0)
            await found(*arguments)
            self.between()
            await asyncio.sleep(0)

        return call


class World:
    """A lease on fakes, and a clock."""

    def __init__(self) -> None:
        self.now = 50.0
        self.cgroups = FakeCgroups(MACHINE)
        self.stops = Stops(self.cgroups)
        self.guardian = FakeGuardian(self.cgroups.take_back, lambda: self.now)
        self.told: list[Undone] = []
        self.lost = 0
        self.lease = Lease(
            self.stops, self.guardian, self.told.extend, self.lose, clock=lambda: self.now
        )

    def lose(self) -> None:
        self.lost += 1

    def stop(self, seconds: float = 2 * LEASE) -> None:
        """The agent is stopped for so long, and the guardian is not."""
        for _ in range(round(seconds / LOOK)):
            self.now += LOOK
            self.guardian.look()

    @property
    def lent(self) -> CPUSet:
        return NOTHING if self.cgroups.idle is None else self.cgroups.idle - self.pool

    @property
    def pool(self) -> CPUSet:
        assert self.cgroups.shared is not None
        return self.cgroups.shared

    @property
    def is_safe(self) -> bool:
        """Whether nothing is lent or capped, or somebody would take it back."""
        return (not self.lent and self.cgroups.idle_quota is None) or self.is_guarded

    @property
    def is_guarded(self) -> bool:
        try:
            self.guardian.check()
        except LeaseError:
            return False
        return True


def run(world: World, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def all_of_it() -> None:
        await world.lease.open()
        await world.cgroups.open(POOL)
        await work()

    asyncio.run(all_of_it())


def test_what_is_lent_and_capped_is_so_under_a_lease() -> None:
    world = World()

    async def work() -> None:
        lease = world.lease
        lease.renew()  # there is nothing to renew
        assert not lease.is_had
        await lease.lend(NOTHING)
        assert not lease.is_had
        await lease.lend(CPUSet([3, 4]))
        await lease.cap(0.5)
        assert (world.lent, world.cgroups.idle_quota, lease.quota) == (CPUSet([3, 4]), 0.5, 0.5)
        for _ in range(10):
            world.stop(LOOK)
            lease.renew()
        await lease.set_shared(CPUSet.parse("0-1"))
        assert world.lent == CPUSet([3, 4])
        await lease.lend(CPUSet([4]))
        assert world.lent == CPUSet([4])
        await lease.close()
        assert (world.lent, world.cgroups.idle_quota, lease.is_had) == (NOTHING, None, False)
        assert (lease.losses, world.lost, world.told) == (0, 0, [])

    run(world, work)


def test_a_lease_that_is_over_is_recovered_from_and_told() -> None:
    world = World()

    async def work() -> None:
        lease = world.lease
        await lease.lend(CPUSet([3]))
        world.stop()
        with pytest.raises(LeaseError):
            lease.renew()
        await lease.recover()
        await lease.recover()
        assert (lease.losses, world.lost, lease.is_had) == (1, 1, False)
        assert [one.cpus for one in world.told] == [CPUSet([3])]
        await lease.lend(CPUSet([4]))
        lease.renew()
        assert world.lent == CPUSet([4])

    run(world, work)


def test_a_guardian_that_was_killed_leaves_the_agent_to_return() -> None:
    world = World()

    async def work() -> None:
        await world.lease.lend(CPUSet([3]))
        world.guardian.lives = False
        with pytest.raises(LeaseError):
            world.lease.renew()
        assert world.lent == CPUSet([3])
        await world.lease.recover()
        assert world.lent == NOTHING
        # Nobody but the agent can tell of it.
        why = "the guardian has ended, and nothing is guarded"
        assert world.told == [Undone(world.now, CPUSet([3]), uncapped=False, why=why)]

    run(world, work)


def test_a_pool_that_changes_while_the_lease_ends_is_right() -> None:
    world = World()

    async def work() -> None:
        await world.lease.lend(CPUSet([3]))
        world.stops.between = world.stop
        await world.lease.set_shared(CPUSet.parse("0-1"))
        assert world.pool == CPUSet.parse("0-1")
        assert world.lent == NOTHING
        assert world.lease.losses == 1

    run(world, work)


def test_without_a_guardian_nothing_is_lent() -> None:
    world = World()
    world.guardian.refuses = "no process can be started"

    async def work() -> None:
        with pytest.raises(LeaseError, match="no process"):
            await world.lease.lend(CPUSet([3]))
        with pytest.raises(LeaseError, match="no process"):
            await world.lease.cap(1.0)
        alone = Lease(world.cgroups, None, world.told.extend, clock=lambda: 0.0)
        await alone.open()
        with pytest.raises(LeaseError, match="there is no guardian"):
            await alone.lend(CPUSet([3]))
        world.cgroups.no_idle_side = "others made these cgroups"
        with pytest.raises(LeaseError, match="others made"):
            await alone.cap(1.0)
        await alone.lend(NOTHING)
        await alone.cap(None)
        await alone.set_shared(POOL)
        await alone.rest()
        await alone.close()
        assert world.lent == NOTHING

    run(world, work)


def test_what_cannot_be_returned_is_tried_again_and_stays_guarded() -> None:
    world = World()

    async def work() -> None:
        await world.lease.lend(CPUSet([3]))
        world.stop()
        world.cgroups.faults.fail_all = True
        with pytest.raises(CgroupError, match="has ended the lease"):
            await world.lease.recover()
        assert (world.lost, world.lease.is_had) == (0, True)
        world.cgroups.faults.fail_all = False
        with pytest.raises(LeaseError):
            world.lease.renew()
        await world.lease.recover()
        assert (world.lost, world.lease.is_had) == (1, False)

    run(world, work)


def test_a_guardian_with_nothing_to_guard_is_ended_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()

    async def work() -> None:
        now = 5.0
        monkeypatch.setattr(Lease, "_now", lambda _: now)
        await world.lease.rest()
        await world.lease.lend(CPUSet([3]))
        now += 2 * LINGER
        await world.lease.rest()
        assert world.lease.is_had
        await world.lease.lend(NOTHING)
        await world.lease.rest()
        assert world.lease.is_had
        now += 2 * LINGER
        await world.lease.rest()
        assert not world.lease.is_had

    run(world, work)


def test_what_the_kernel_refuses_to_lend_is_not_at_stake(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    async def work() -> None:
        now = 5.0
        monkeypatch.setattr(Lease, "_now", lambda _: now)
        await world.lease.lend(CPUSet([3]))
        with pytest.raises(CgroupError, match="not in force"):
            await world.lease.lend(CPUSet([3, 9]))
        assert world.lent == CPUSet([3])
        await world.lease.lend(NOTHING)
        with pytest.raises(CgroupError, match="not in force"):
            await world.lease.lend(CPUSet([9]))
        assert world.lent == NOTHING
        now += 2 * LINGER
        await world.lease.rest()
        assert not world.lease.is_had

    run(world, work)


def test_a_guardian_stays_while_something_is_just_being_lent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()

    async def work() -> None:
        now = 5.0
        monkeypatch.setattr(Lease, "_now", lambda _: now)
        lending = asyncio.create_task(world.lease.lend(CPUSet([3])))
        while not world.lent:  # noqa: ASYNC110 - it is in force, and not confirmed
            await asyncio.sleep(0)
        assert not lending.done()
        now += 2 * LINGER
        await world.lease.rest()
        await lending
        assert world.is_guarded

    run(world, work)


LENDABLE = st.sets(st.integers(3, 5)).map(CPUSet)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lend"), LENDABLE),
        st.tuples(st.just("cap"), st.sampled_from([None, 0.5])),
        st.tuples(st.just("pool"), st.sampled_from([POOL, CPUSet([0]), CPUSet([0, 1])])),
        st.tuples(st.just("renew"), st.none()),
    ),
    max_size=6,
)


@given(
    tasks=st.lists(STEPS, min_size=1, max_size=3),
    events=st.lists(st.sampled_from(["stop", "pause", "kill", "fail", ""]), max_size=30),
)
def test_whoever_is_stopped_or_killed_anywhere_nothing_stays_lent_unguarded(
    tasks: Sequence[Sequence[tuple[str, Any]]], events: Sequence[str]
) -> None:
    world = World()
    coming = list(events)

    def between() -> None:
        event = coming.pop(0) if coming else ""
        if event in ("stop", "pause"):
            world.stop(2 * LEASE if event == "stop" else LOOK)
        elif event == "kill":
            world.guardian.lives = False
        world.cgroups.faults.fail_all = event == "fail"

    async def go(steps: Sequence[tuple[str, Any]]) -> None:
        lease = world.lease
        works: dict[str, Callable[[Any], Coroutine[Any, Any, None]]] = {
            "lend": lease.lend,
            "cap": lease.cap,
            "pool": lease.set_shared,
        }
        for what, value in steps:
            try:
                if what == "renew":
                    lease.renew()
                else:
                    await works[what](value)
            except CgroupError:
                continue

    async def work() -> None:
        world.stops.between = between
        await asyncio.gather(*map(go, tasks))
        world.stops.between = lambda: None
        world.cgroups.faults.fail_all = False
        # The loop goes on: it renews, or finds that the lease is over.
        try:
            world.lease.renew()
        except LeaseError:
            await world.lease.recover()
            assert (world.lent, world.cgroups.idle_quota) == (NOTHING, None)
        assert world.is_safe
        # Then it dies, and the guardian, if there is one, looks.
        world.guardian.look(closed=True)
        if world.guardian.lives:
            assert (world.lent, world.cgroups.idle_quota) == (NOTHING, None)

    run(world, work)


def test_a_cap_that_the_kernel_refuses_is_not_told_as_one_and_is_asked_again() -> None:
    world = World()

    async def work() -> None:
        lease, faults = world.lease, world.cgroups.faults
        await lease.cap(2.0)
        for quota in (1.0, None):
            faults.fail_all = True
            with pytest.raises(CgroupError):
                await lease.cap(quota)
            faults.fail_all = False
            assert lease.quota == world.cgroups.idle_quota == 2.0
            assert world.is_safe
        await lease.cap(None)
        assert lease.quota is world.cgroups.idle_quota is None

    run(world, work)
