"""Lending on a node of fakes, from what is counted to what the kernel is told, and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.agent.loops.controlling import Controlling, controlled
from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.seen import Seen
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import LendingOptions, OwnPolicies
from pinfold.core.observation.rates import Counters
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.control.looking import look
from pinfold.node.control.loop import Control, ControlLoop
from pinfold.node.observation.observer import Observation
from pinfold.node.reconciler import reconcile, return_unranked
from pinfold.node.settings import NodeSettings
from pinfold.planning.fake_guardian import FakeGuardian
from pinfold.planning.fake_meters import FakeContainerMeters, FakeCPUMeter
from pinfold.ports.errors import ContainerKey
from tests.scenes.manager_harness import Harness, manifest, run_virtually

LENDS = {"lend-cpus.pinfold.dev/pod": "true"}
OWNER = ContainerKey("uid-a", "c0")
CONFIG = NodeConfig(
    cpu_manager_policy="static",
    reserved_system_cpus=CPUSet([0]),
    own=OwnPolicies(lending=LendingOptions(use=True)),
)


class _Moving(FakeContainerMeters):
    """Counts what the owner uses at the moment of each reading."""

    def __init__(self, node: LendingNode) -> None:
        super().__init__("schedstat")
        self._node = node

    def read(self, keys: Any) -> Any:
        self._node.count()
        return super().read(keys)


class LendingNode(Harness):
    """Pod ``a`` has two CPUs and allows lending; ``web`` is best-effort work that never rests."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.machine = "1s6c1t"
        super().__post_init__()
        self.settings = NodeSettings(backoff=0.01, idle_side=True)
        self.guardian = FakeGuardian(self.cgroups.take_back, asyncio.get_running_loop().time)
        self.use = 0.0
        self.period = 1.0
        self._counted_at = 0.0
        self.meters, self.cpu_meter = _Moving(self), FakeCPUMeter(self.cgroups.machine)
        self.meters.counted[OWNER] = Counters(1, usage=0, wait=0)

    async def begin(self) -> None:
        """Start it all, as an agent does."""
        await self.start()
        pod = manifest("a", "2")
        await self.admit({**pod, "metadata": {**pod["metadata"], "annotations": LENDS}})
        await self.admit(manifest("web", ""))
        time = asyncio.get_running_loop().time
        self.seen = Observation(
            self.books, self.meters, self.cpu_meter, now=time, spent=lambda: 0.0, period=self.period
        )
        made = controlled(self.books, self.manager.rebalancing, self.seen, CONFIG)
        assert made is not None
        self.controlling: Controlling = made
        works = (self.seen.go_on, made.loop.go_on, made.loop.go_on_quickly)
        self.going = [asyncio.create_task(work()) for work in works]

    def count(self) -> None:
        """Count the time since the last look."""
        now = asyncio.get_running_loop().time()
        passed, self._counted_at = round((now - self._counted_at) * 1e6), now
        had, own = self.meters.counted[OWNER], self.own
        used = round(passed * self.use * len(own))
        self.meters.counted[OWNER] = replace(had, usage=(had.usage or 0) + used)
        lent = self.books.view.lent
        for cpu in self.cpu_meter.counted:
            busy = self.use if cpu in own else 0.0
            busy = 1.0 if cpu in lent else busy
            self.cpu_meter.counted[cpu] += round(passed * (1.0 - busy))

    @property
    def own(self) -> CPUSet:
        return self.books.view.state.ledger.cpus_of(*("uid-a", "c0")) or CPUSet()

    def borrowed(self) -> CPUSet:
        """Where the borrower runs beside the pool."""
        return CPUSet.parse(self.cpus("web")["c0"]) - self.books.view.pool

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.store.entries if entry.kind == "controlled"]

    def said(self) -> Any:
        return self.controlling.document(self.books).lending


def run(scenario: Callable[[LendingNode], Awaitable[None]], period: float = 1.0) -> None:
    async def whole() -> None:
        node = LendingNode()
        node.period = period
        await node.begin()
        await scenario(node)
        for task in node.going:
            assert not task.done(), task.exception()
            task.cancel()
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 6000))


def test_idle_cpus_are_lent_and_back_at_once_when_the_owner_wants_them() -> None:
    async def scenario(node: LendingNode) -> None:
        assert node.borrowed() == CPUSet()
        await asyncio.sleep(6)
        assert node.borrowed() == node.own == node.books.view.lent
        (lent,) = node.said().lent
        assert (lent.container, lent.cpus) == ("default/a/c0", str(node.own))
        assert node.said().borrowers == ["default/web/c0"]
        node.use = 1.0
        await asyncio.sleep(0.1)
        assert node.borrowed() == CPUSet()
        assert node.books.view.lent == CPUSet()
        assert node.said().not_lent["default/a/c0"] == "container c0: it uses 100% of a CPU there"
        await asyncio.sleep(30)
        assert node.borrowed() == CPUSet()
        await node.settle()
        assert len(node.kinds()) == 2
        ranks = [one.proposal.rank for one in node.controlling.loop.decisions]
        assert ranks == [Rank.LENDING, Rank.RETURN]

    run(scenario)


def test_under_steady_load_nothing_changes_and_the_lease_holds() -> None:
    async def scenario(node: LendingNode) -> None:
        node.use = 0.1
        await asyncio.sleep(600)
        assert node.borrowed() == node.own
        assert len(node.controlling.loop.decisions) == 1
        assert node.books.lease.losses == 0

    run(scenario)


async def lent(node: LendingNode) -> None:
    """Until something is, in steps that nothing else goes in."""
    for _ in range(100_000):
        if node.books.view.lent:
            return
        await asyncio.sleep(0.001)
    pytest.fail("nothing is lent")


class Wishes:
    """Whoever proposes something in each tick, after lending."""

    def step(self, memory: None, seen: Seen) -> tuple[None, tuple[Proposal, ...]]:
        del seen
        return memory, (Proposal(rank=Rank.PARKING, why="always"),)


def test_what_is_lent_is_looked_at_though_the_rest_of_the_tick_takes_long() -> None:
    async def scenario(node: LendingNode) -> None:
        async def slowly(_: Proposal) -> str:
            await asyncio.sleep(5)
            return ""

        loop = node.controlling.loop
        slow = Control("slow", Wishes(), None, slowly)
        node.going[1].cancel()
        more = ControlLoop(
            lambda: look(node.books, node.seen),
            loop.budget,
            [*loop.controls, slow],
            node.seen,
            lease=node.books.lease,
        )
        node.going[2].cancel()
        node.going[1:] = [asyncio.create_task(go()) for go in (more.go_on, more.go_on_quickly)]
        await lent(node)
        node.use = 1.0
        await asyncio.sleep(0.1)
        assert node.borrowed() == CPUSet()
        assert node.books.lease.losses == 0
        node.use = 0.0
        await asyncio.sleep(3)
        assert node.books.lease.losses == 0

    run(scenario)


def test_a_lease_that_begins_within_something_long_is_renewed() -> None:
    async def scenario(node: LendingNode) -> None:
        async def slowly(_: Proposal) -> str:
            await node.books.lease.cap(1.0)
            await asyncio.sleep(5)
            return ""

        for task in node.going[1:]:
            task.cancel()
        loop = ControlLoop(
            lambda: look(node.books, node.seen),
            node.controlling.loop.budget,
            [Control("slow", Wishes(), None, slowly)],
            node.seen,
            lease=node.books.lease,
        )
        node.going[1:] = [asyncio.create_task(go()) for go in (loop.go_on, loop.go_on_quickly)]
        while not node.books.lease.is_had:  # noqa: ASYNC110 - virtual time; nobody tells of it
            await asyncio.sleep(0.05)
        await asyncio.sleep(4)
        assert isinstance(node.guardian, FakeGuardian)
        node.guardian.look()
        node.guardian.check()
        assert (node.books.lease.losses, node.books.lease.quota) == (0, 1.0)

    run(scenario)


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.2, 0.3])
def test_what_is_lent_under_a_lease_that_was_had_is_looked_at_at_once(phase: float) -> None:
    async def scenario(node: LendingNode) -> None:
        await lent(node)
        node.use = 1.0
        await asyncio.sleep(1)
        assert not node.borrowed()
        # What is capped keeps the lease, which is renewed more slowly than lent CPUs are seen.
        await node.books.lease.cap(1.0)
        await asyncio.sleep(phase)
        node.use = 0.0
        await lent(node)
        assert node.books.lease.is_had
        node.use = 1.0
        await asyncio.sleep(0.1)
        assert node.borrowed() == CPUSet()

    run(scenario)


def test_cpus_are_lent_however_seldom_loads_are_read() -> None:
    async def scenario(node: LendingNode) -> None:
        await asyncio.sleep(400)
        assert node.borrowed() == node.own

    run(scenario, period=99.0)


def test_what_the_kernel_does_not_give_back_is_said_and_tried_again() -> None:
    async def scenario(node: LendingNode) -> None:
        await asyncio.sleep(6)
        node.cgroups.faults.fail_all = True
        node.use = 1.0
        await asyncio.sleep(3)
        assert node.borrowed()
        assert "that were lent are not back" in node.controlling.problem()
        assert node.said().problem
        tries = node.controlling.loop.counted[Rank.RETURN, "failed"]
        assert 3 <= tries <= 12
        node.cgroups.faults.fail_all = False
        await asyncio.sleep(2)
        assert not node.borrowed()
        assert node.controlling.problem() == ""

    run(scenario)


def test_what_the_kernel_does_not_let_be_lent_is_tried_less_and_less_often() -> None:
    async def scenario(node: LendingNode) -> None:
        node.cgroups.online -= CPUSet([2])
        await asyncio.sleep(600)
        loop = node.controlling.loop
        assert 5 <= loop.counted[Rank.LENDING, "failed"] <= 9
        (waiting,) = loop.waiting()
        assert waiting.reason.startswith("it is tried again in ")
        assert "are not in force" in waiting.reason
        assert not node.borrowed()
        node.cgroups.online |= CPUSet([2])
        await asyncio.sleep(400)
        assert node.borrowed()

    run(scenario)


def test_how_often_it_was_refused_is_forgotten_with_the_container() -> None:
    async def scenario(node: LendingNode) -> None:
        async def lending(name: str) -> None:
            pod = manifest(name, "2")
            await node.admit({**pod, "metadata": {**pod["metadata"], "annotations": LENDS}})

        node.meters.counted[ContainerKey("uid-b", "c0")] = Counters(1, usage=0, wait=0)
        await lending("b")
        absent = CPUSet([2, 4])
        node.cgroups.online -= absent
        await asyncio.sleep(600)
        assert len(node.controlling.loop.waiting()) == 2
        await node.manager.release("a", grace=0)
        await asyncio.sleep(10)
        node.cgroups.online |= absent
        await lending("a")
        await asyncio.sleep(10)
        assert node.own
        assert node.own == node.books.view.lent
        (waiting,) = node.controlling.loop.waiting()
        assert waiting.reason.startswith("it is tried again in ")

    run(scenario)


def test_where_the_idle_side_has_lost_its_rank_all_is_returned_at_once() -> None:
    async def scenario(node: LendingNode) -> None:
        await asyncio.sleep(6)
        assert node.borrowed()
        await return_unranked(node.books)
        assert node.borrowed(), "it has its rank"
        node.cgroups.is_idle = False
        async with node.books.change():
            # It does not wait for whoever changes the books.
            returning = asyncio.create_task(return_unranked(node.books))
            await asyncio.sleep(0.01)
            assert not node.borrowed()
            assert node.cgroups.is_idle
        await returning
        (told,) = [one for one in node.store.entries if one.kind == "repaired"]
        assert json.loads(told.document) == {
            "container": None,
            "expected": "cpu.idle 1, with 1-2 lent",
            "found": "cpu.idle 0",
            "repaired": True,
            "problem": "",
        }
        assert node.books.counters.repairs == 1
        assert await reconcile(node.books) == []

    run(scenario)


def test_a_cap_that_somebody_else_has_changed_is_put_back() -> None:
    async def scenario(node: LendingNode) -> None:
        await asyncio.sleep(6)
        for cap, other in ((1.0, None), (1.0, 2.0), (None, 0.5)):
            await node.books.lease.cap(cap)
            assert await reconcile(node.books) == []
            node.cgroups.idle_quota = other
            (drift,) = await reconcile(node.books)
            assert (drift.subject, drift.repaired) == ("the idle side", True)
            assert "cap" in drift.expected
            assert node.cgroups.idle_quota == cap
        assert node.borrowed()

    run(scenario)


def test_a_lost_lease_returns_all_and_another_one_is_had() -> None:
    async def scenario(node: LendingNode) -> None:
        await asyncio.sleep(6)
        assert node.borrowed()
        assert isinstance(node.guardian, FakeGuardian)
        node.guardian.lives = False
        await asyncio.sleep(0.1)
        assert not node.borrowed()
        assert node.books.lease.losses == 1
        await asyncio.sleep(10)
        assert node.borrowed()

    run(scenario)


def test_what_was_taken_back_is_told_once_it_can_be_written() -> None:
    async def scenario(node: LendingNode) -> None:
        def told() -> list[str]:
            found = [one for one in node.store.entries if one.kind == "taken-back"]
            return [json.loads(one.document)["cpus"] for one in found]

        await lent(node)
        assert isinstance(node.guardian, FakeGuardian)
        node.guardian.lives = False
        node.store.faults.fail_all = True
        await asyncio.sleep(1)
        assert node.books.lease.losses > 0
        assert told() == []
        losses = node.books.lease.losses
        node.store.faults.fail_all = False
        await asyncio.sleep(20)
        assert told() == [str(node.own)] * losses

    run(scenario)


def test_where_there_can_be_no_idle_side_it_is_said_why() -> None:
    async def scenario(node: LendingNode) -> None:
        node.cgroups.no_idle_side = "a runtime makes the cgroups"
        made = controlled(node.books, node.manager.rebalancing, node.seen, CONFIG)
        assert made is not None
        assert made.document(node.books).refused == {"lending": "a runtime makes the cgroups"}
        node.cgroups.no_idle_side = ""
        made = controlled(node.books, node.manager.rebalancing, None, CONFIG)
        assert made is not None
        assert "does not tell" in made.refused["lending"]

    run(scenario)


def test_what_is_lent_under_a_lease_of_before_is_looked_at_at_once() -> None:
    """A cap is renewed now and then only; what is lent then does not wait for the next time."""

    async def scenario(node: LendingNode) -> None:
        await node.books.lease.cap(1.0)
        while not node.books.view.lent:  # noqa: ASYNC110 - virtual time; nobody tells of it
            await asyncio.sleep(0.005)
        node.use = 1.0
        await asyncio.sleep(0.1)
        assert node.borrowed() == CPUSet()

    for phase in (0.0, 0.1, 0.2, 0.3):

        async def later(node: LendingNode, phase: float = phase) -> None:
            await asyncio.sleep(phase)
            await scenario(node)

        run(later)
