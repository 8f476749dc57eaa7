"""CPUs that are lent are back before anything changes for their owner, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.reconciler import reconcile
from pinfold.node.settings import NodeSettings
from pinfold.planning.fake_guardian import FakeGuardian
from pinfold.ports.cgroups import ObservedIdle
from pinfold.ports.errors import CgroupError
from tests.scenes.manager_harness import manifest, run_virtually
from tests.scenes.mortal_harness import MortalHarness, every_death, until_dead
from tests.scenes.moves_harness import Node, pods
from tests.scenes.watched_cgroups import WatchedCgroups

LENDERS = ("a", "b")


class LendingNode(Node, MortalHarness):
    """A node whose best-effort containers borrow; the pods a and b lend, all others do not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = NodeSettings(backoff=0.01, idle_side=True)
        self.kernel.lenders = {f"uid-{name}" for name in LENDERS}
        self.guardian = FakeGuardian(self.kernel.take_back, lambda: self.lease_clock)
        self.arm(0, after=False)

    @property
    def kernel(self) -> WatchedCgroups:
        assert isinstance(self.cgroups, WatchedCgroups)
        return self.cgroups

    async def lend(self) -> CPUSet:
        """Lend whatever may be lent of those who allow it; what is lent then."""
        view = self.books.view
        allowed = CPUSet.union_of(view.state.ledger.cpus_of_pod(f"uid-{name}") for name in LENDERS)
        await self.books.lend(allowed & view.lendable - view.lent)
        return self.books.view.lent

    def borrowed(self) -> CPUSet:
        """Where the borrower runs beside the pool."""
        return CPUSet.parse(self.cpus("web")["c0"]) - self.books.view.pool


def run(scenario: Callable[[LendingNode], Awaitable[None]]) -> LendingNode:
    async def whole() -> LendingNode:
        node = LendingNode()
        await started(node)
        await scenario(node)
        await node.settle()
        assert node.kernel.shared_by_two == []
        await node.kill()
        return node

    return run_virtually(asyncio.wait_for(whole(), 600))


async def started(node: LendingNode) -> None:
    await node.start()
    await pods(node, a="2", b="2", web="")


def test_what_is_lent_is_the_borrowers_besides_and_stays_its_owners() -> None:
    async def scenario(node: LendingNode) -> None:
        assert node.cpus("web") == {"c0": "1,6-7"}
        assert str(await node.lend()) == "2-5"
        assert node.cpus("web") == {"c0": "1-7"}
        assert node.has() == {"a/c0": "2-3", "b/c0": "4-5"}
        view = node.books.view
        assert view.lent_by("uid-a", "c0") == view.state.ledger.cpus_of("uid-a", "c0")
        assert view.lent.isdisjoint(view.pool), "what is lent is not free"
        await node.books.give_back(view.lent_by("uid-a", "c0"))
        assert node.borrowed() == node.books.view.lent == view.lent_by("uid-b", "c0")
        assert await reconcile(node.books) == []

    run(scenario)


def test_a_pod_that_does_not_borrow_keeps_to_the_pool() -> None:
    async def scenario(node: LendingNode) -> None:
        said = manifest("still", "")
        said["metadata"]["annotations"] = {"borrow.pinfold.dev/pod": "false"}
        burstable = manifest("busy", "1", "")
        await node.admit(said)
        await node.admit(burstable)
        await node.lend()
        pool = str(node.books.view.pool)
        assert node.cpus("still") == {"c0": pool}
        assert node.cpus("busy") == {"c0": pool, "c1": pool}
        assert node.borrowed() == node.books.view.lent != CPUSet()

    run(scenario)


def test_nothing_borrows_where_it_is_not_configured() -> None:
    async def scenario(node: LendingNode) -> None:
        await node.kill()
        node.settings = replace(node.settings, idle_side=False)
        await node.start()
        assert node.cgroups.idle is None
        with pytest.raises(CgroupError, match="configuration"):
            await node.books.lend(CPUSet([1]))

    run(scenario)


def test_a_kind_of_cgroups_without_an_idle_side_is_said() -> None:
    async def scenario(node: LendingNode) -> None:
        await node.kill()
        node.cgroups.no_idle_side = "there is no cpu controller"
        with pytest.raises(CgroupError, match="no cpu controller"):
            await node.start()
        node.settings = replace(node.settings, idle_side=False)
        node.cgroups.no_idle_side = ""
        await node.start()

    run(scenario)


@pytest.mark.parametrize("wrong", ["0", "1", "1-2"])
def test_only_what_somebody_owns_is_lent(wrong: str) -> None:
    async def scenario(node: LendingNode) -> None:
        with pytest.raises(CgroupError, match="nobody owns"):
            await node.books.lend(CPUSet.parse(wrong))
        assert node.books.view.lent == node.borrowed() == CPUSet()

    run(scenario)


def test_an_owner_who_is_started_or_moved_lends_nothing() -> None:
    async def scenario(node: LendingNode) -> None:
        moving = await node.move(1.0, a="6-7")
        assert str(node.books.view.lendable) == "4-5"
        assert str(await node.lend()) == "4-5"
        await moving.ended()
        key = next(key for key in node.books.statuses if key.pod_uid == "uid-a")
        node.books.containers.seen.busy.add(key)
        with pytest.raises(CgroupError, match="nobody owns"):
            await node.lend()
        node.books.containers.seen.busy.discard(key)
        await node.lend()
        assert len(node.books.view.lent) == 4

    run(scenario)


def test_what_the_kernel_does_not_return_holds_up_a_move_and_no_end() -> None:
    """Nobody else is to have it; a pod ends all the same, and its CPUs wait."""

    async def scenario(node: LendingNode) -> None:
        lent = await node.lend()
        node.cgroups.faults.fail_all = True
        with pytest.raises(CgroupError):
            await node.books.give_back(lent)
        assert node.books.view.lent == lent
        with pytest.raises(CgroupError):
            await node.move(0.0, a="6-7")
        assert node.books.view.move is None
        node.cgroups.faults.fail_all = False
        await (await node.move(0.0, a="6-7")).ended()
        assert str(node.books.view.lent) == "4-5"

    run(scenario)


def test_the_reconciliation_repairs_the_idle_side() -> None:
    async def scenario(node: LendingNode) -> None:
        await node.lend()
        node.cgroups.is_idle = False
        (drift,) = await reconcile(node.books)
        assert (drift.subject, drift.found, drift.repaired) == ("the idle side", "cpu.idle 0", True)
        assert await reconcile(node.books) == []
        assert node.books.view.lent == CPUSet(), "who decides it lends anew"
        await node.lend()
        node.cgroups.idle = CPUSet.parse("0-7")
        found = {drift.subject: drift.found for drift in await reconcile(node.books)}
        assert found == {"the idle side": "0-7", "container c0": "effective 0-7"}
        assert await reconcile(node.books) == []
        idle = (await node.cgroups.observe()).idle
        pool = node.books.view.pool
        assert idle == ObservedIdle(pool, pool, is_idle=True)

    run(scenario)


def test_a_cpu_that_goes_offline_is_lent_no_more() -> None:
    async def scenario(node: LendingNode) -> None:
        lent = await node.lend()
        gone = CPUSet([min(lent)])
        node.cgroups.online = node.cgroups.machine - gone
        await node.books.set_offline(gone)
        assert node.books.view.lent == node.borrowed() == lent - gone
        node.cgroups.online = node.cgroups.machine
        await node.books.set_offline(CPUSet())
        assert node.borrowed() == lent - gone
        assert await reconcile(node.books) == []

    run(scenario)


def test_what_the_guardian_took_back_is_not_lent() -> None:
    """Whoever changes the pool after the lease is over finds out, and lends nothing again."""

    async def scenario(node: LendingNode) -> None:
        await node.lend()
        node.lease_clock += 60
        await node.admit(other("c", "1"))
        assert node.books.view.lent == node.borrowed() == CPUSet()
        assert await reconcile(node.books) == []
        lent = await node.lend()
        node.lease_clock += 60
        with pytest.raises(CgroupError):
            await node.books.give_back(CPUSet([min(lent)]))
        assert node.books.view.lent == node.borrowed() == CPUSet()

    run(scenario)


def test_the_sibling_of_what_another_owner_is_given_is_back_before_he_runs() -> None:
    """He was not asked, and a borrower would run on his core."""

    async def scenario(node: LendingNode) -> None:
        mine, other_thread = await beside(node)
        node.effects.clear()
        await pods(node, d="1")
        assert node.books.view.state.ledger.cpus_of_pod("uid-d") == other_thread
        assert node.books.view.lent == node.borrowed() == CPUSet()
        assert [kind for kind, _ in node.effects][:2] == ["lent", "shared"], node.effects
        with pytest.raises(CgroupError, match="nobody owns"):
            await node.books.lend(mine)

    run(scenario)


def test_nobody_is_given_the_sibling_of_what_is_not_given_back() -> None:
    async def scenario(node: LendingNode) -> None:
        mine, other_thread = await beside(node)
        node.cgroups.faults.fail_at = {node.cgroups.faults.calls + 1}
        with pytest.raises(CgroupError):
            await node.move(0.0, c=str(other_thread))
        assert node.books.view.move is None
        assert node.books.view.lent == mine

    run(scenario)


async def beside(node: LendingNode) -> tuple[CPUSet, CPUSet]:
    """Lend one thread of a core of which the other is in the pool; both."""
    await pods(node, c="1", e="1")
    node.kernel.lenders.add("uid-e")
    mine = node.books.view.state.ledger.cpus_of_pod("uid-e")
    other_thread = node.books.view.whole_cores(mine) - mine
    assert other_thread <= node.books.view.pool
    await node.books.lend(mine)
    return mine, other_thread


# ------------------------------------------------------------------------- deaths at every call

Life = Callable[[LendingNode], Awaitable[None]]


def other(name: str, cpus: str) -> dict[str, Any]:
    return manifest(name, cpus)


async def exchange(node: LendingNode) -> None:
    await node.lend()
    await (await node.move(0.0, a="4-5", b="2-3")).ended()
    await node.lend()


async def handing_over(node: LendingNode) -> None:
    """An owner who lends goes, and one who does not comes to his CPUs."""
    await node.lend()
    await node.manager.release("a")
    await node.admit(other("c", "4"))
    await node.lend()


async def resizes(node: LendingNode) -> None:
    await node.lend()
    await node.resize("a", 3)
    await node.lend()
    await node.resize("a", 2)


async def refusal(node: LendingNode) -> None:
    await node.lend()
    node.cgroups.faults.calls = 0
    node.cgroups.faults.fail_at = {2}
    try:
        await (await node.move(0.0, a="6-7")).ended()
    except CgroupError:
        assert len(node.books.view.lent) == 4
    node.cgroups.faults.fail_at = set()
    await node.lend()


async def returns(node: LendingNode) -> None:
    lent = await node.lend()
    await asyncio.gather(node.admit(other("c", "1")), node.books.give_back(lent))
    await node.lend()


async def is_well(node: LendingNode) -> None:
    """The next agent has lent nothing, everybody is where he belongs, and nothing is left."""
    node.cgroups.faults.fail_at = set()
    node.arm(0, after=False)
    await node.start()
    assert node.books.view.lent == CPUSet()
    if (moving := node.manager.mover.in_flight) is not None:
        await asyncio.wait_for(moving.ended(), 60)
    await node.settle()
    node.check()
    assert await reconcile(node.books) == []
    await node.lend()
    for name in ("a", "b", "c", "web"):
        if f"uid-{name}" in node.books.view.pods.active:
            await node.manager.release(name)
    await node.settle()
    assert node.books.view.lent == CPUSet()
    assert str(node.books.view.state.ledger.default) == "0-7"
    assert node.cgroups.groups == {}
    assert node.kernel.shared_by_two == []
    await node.kill()


@pytest.mark.parametrize("life", [exchange, handing_over, resizes, refusal, returns])
def test_the_agent_may_die_at_every_call(life: Life) -> None:
    async def dies_at(at: int, *, after: bool) -> bool:
        node = LendingNode()
        await started(node)
        await node.kill()
        node.arm(at, after=after)

        async def whole() -> None:
            await node.start()
            await life(node)

        died = await until_dead(node, whole())
        await node.kill()
        await is_well(node)
        return died

    assert run_virtually(every_death(dies_at)) > 30
