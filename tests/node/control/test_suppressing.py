"""Suppression on a node on fakes: what was observed becomes a cap, under a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from msgspec.structs import replace

from pinfold.core.controllers.proposals import Rank
from pinfold.core.kubelet.own_policies import DynamicOptions, SuppressionOptions
from pinfold.core.moves.budget import MoveBudget
from pinfold.core.observation.rates import Counters
from pinfold.node.control.looking import look
from pinfold.node.control.loop import ControlLoop
from pinfold.node.control.suppressing import suppression_control
from pinfold.node.settings import NodeSettings
from pinfold.planning.fake_guardian import FakeGuardian
from pinfold.ports.errors import ContainerKey
from tests.scenes.manager_harness import Harness, manifest, run_virtually
from tests.scenes.watched_node import SECOND, Watched

OPTIONS = SuppressionOptions(use=True, threshold="50%", margin="5%", hold="2s", step_up="100%")
"""Of eight CPUs four are for all, 0.4 of them are margin; one is reserved."""
BATCH, SERVER = ContainerKey("uid-batch", "c0"), ContainerKey("uid-server", "c0")


class Node(Harness):
    """Eight CPUs, a server, and best-effort work; both are observed."""

    async def begin(self) -> None:
        self.settings = NodeSettings(backoff=0.01, idle_side=True)
        self.passed = 0.0
        self.guard = FakeGuardian(self.cgroups.take_back, lambda: self.passed)
        self.guardian = self.guard
        await self.start()
        await self.admit(manifest("batch", ""))
        await self.admit(manifest("server", "500m"))
        self.watched = Watched(self)
        self.watched.meters.counted = {key: Counters(1, 0) for key in (BATCH, SERVER)}
        self.watched.cpus.counted = dict.fromkeys(range(8), 0)
        await self.watched.seen.observe()
        self.loop = ControlLoop(
            partial(look, self.books, self.watched.seen),
            MoveBudget(DynamicOptions(), lambda: 0.0),
            [suppression_control(self.books, OPTIONS, self.config)],
        )

    async def second(self, server: float, batch: float = 0.0) -> float | None:
        """A second in which they use so many CPUs, and a look; the cap after it."""
        await asyncio.sleep(1.0)
        self.watched.at += 1.0
        for key, used in ((SERVER, server), (BATCH, batch)):
            if (had := self.watched.meters.counted.get(key)) is not None:
                usage = (had.usage or 0) + round(used * SECOND)
                self.watched.meters.counted[key] = replace(had, usage=usage)
        idle = round((1.0 - (server + batch) / 8) * SECOND)
        for cpu in self.watched.cpus.counted:
            self.watched.cpus.counted[cpu] += idle
        await self.watched.seen.observe()
        await self.loop.tick()
        return self.cgroups.idle_quota


def play(scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def whole() -> None:
        node = Node()
        await node.begin()
        await scenario(node)
        await node.kill()

    run_virtually(whole())


def test_what_the_others_use_is_not_for_best_effort() -> None:
    async def scenario(node: Node) -> None:
        assert await node.second(0.5) == pytest.approx(4 - 0.5 - 1 - 0.4)
        assert await node.second(1.5, batch=2.0) == pytest.approx(4 - 1.5 - 1 - 0.4)
        assert await node.second(3.5, batch=1.0) == 1.0, "the least"
        assert node.books.lease.is_had
        for _ in range(3):
            cap = await node.second(0.5, batch=1.0)
        assert cap == pytest.approx(4 - 0.5 - 1 - 0.4)
        assert node.loop.counted == {(Rank.SUPPRESSION, "done"): 4}
        assert node.loop.waiting() == []

    play(scenario)


def test_what_the_kernel_refuses_is_tried_again_and_said() -> None:
    async def scenario(node: Node) -> None:
        node.guard.refuses = "there is no guardian"
        assert await node.second(0.5) is None
        assert "there is no guardian" in node.loop.waiting()[0].reason
        node.guard.refuses = ""
        assert await node.second(0.5) == pytest.approx(2.1)
        assert node.loop.waiting() == []

    play(scenario)


def test_where_the_lease_is_over_there_is_a_new_cap() -> None:
    async def scenario(node: Node) -> None:
        await node.second(0.5)
        node.passed += 60.0
        node.guard.look()
        assert node.cgroups.idle_quota is None
        # As the loop does, which renews it.
        await node.books.lease.recover()
        assert await node.second(0.5) == pytest.approx(2.1)

    play(scenario)


def test_without_best_effort_work_there_is_no_cap() -> None:
    async def scenario(node: Node) -> None:
        await node.second(0.5)
        await node.manager.release("uid-batch")
        await node.settle()
        assert await node.second(0.5) is None

    play(scenario)


def test_who_keeps_to_the_shared_pool_counts_as_the_others() -> None:
    async def scenario(node: Node) -> None:
        stays = manifest("stays", "")
        stays["metadata"]["annotations"] = {"borrow.pinfold.dev/pod": "false"}
        await node.admit(stays)
        node.watched.meters.counted[ContainerKey("uid-stays", "c0")] = Counters(1, 0)
        # What it uses is told by the CPUs before it is by itself.
        assert await node.second(0.5) == pytest.approx(2.1)
        seen = look(node.books, node.watched.seen)
        assert [str(owner.pod_uid) for owner, one in seen.containers.items() if one.borrows] == [
            "uid-batch"
        ]

    play(scenario)
