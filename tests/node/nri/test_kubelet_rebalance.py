"""Better places for a kubelet's containers, and room for one that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.agent.loops.controlling import controlled
from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.node.moves.room import KEPT
from pinfold.node.nri.kubelet_room import ROOM_IS_MADE
from pinfold.ports.nri import Resources
from tests.scenes.dynamic_config import dynamic_config
from tests.scenes.kubelet_node import LOOSE, ROOM, SPREAD, STRICT, Node, crowd, spread
from tests.scenes.lifecycle_harness import guaranteed
from tests.scenes.manager_harness import run_virtually


def run(scenario: Callable[[Node], Awaitable[None]], **harness: Any) -> None:
    async def whole() -> None:
        usual: dict[str, Any] = {"config": LOOSE, "dynamic": DynamicOptions()}
        node = Node("2s4c2t", **usual | harness)
        await node.start()
        await scenario(node)
        await node.settle()
        await node.until_moved()
        node.check()
        assert node.strangers == []
        assert node.recorded() == node.kernel()
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 20_000))


# ------------------------------------------------------------------------------- better places


@pytest.mark.parametrize("version", [1, 2])
def test_whoever_sits_better_elsewhere_is_brought_there(version: int) -> None:
    async def scenario(node: Node) -> None:
        c = await spread(node, scale_down_grace_period="5")
        assert node.has() == {"a": "1-5", "c": SPREAD}
        assert node.rebalancing.would_move().owners[0].before == SPREAD
        assert str(c.kernel) == SPREAD
        loop = asyncio.get_running_loop()
        began = loop.time()
        told, problem = await node.rebalancing.rebalance()
        assert (problem, loop.time() >= began + 5) == ("", True)
        assert str(c.kernel) == node.has()["c"] == told.owners[0].after == "8-13"
        await node.settle()
        assert c.seen.resources.cpus == "8-13", "what is on record follows, unasked"
        assert c.seen.resources.cpu_quota == -1
        assert [one.kind for one in await node.store.history(limit=1000)].count("moved") == 1
        again, _ = await node.rebalancing.rebalance()
        assert again.steps == []

    run(scenario, version=version)


@pytest.mark.parametrize("slowness", [0.0, 0.3, 1.0])
def test_a_runtime_that_writes_late_meanwhile(slowness: float) -> None:
    async def scenario(node: Node) -> None:
        c = await spread(node)
        node.node.slowness = slowness
        sides = [one for one in node.node.containers.values() if one.pod.name != "a"]
        changes = [
            asyncio.create_task(node.node.resize(one, replace(one.seen.resources, memory=2 << 30)))
            for one in sides
        ]
        await asyncio.sleep(slowness / 2)
        _, problem = await node.rebalancing.rebalance()
        await asyncio.gather(*changes)
        await node.settle()
        assert (problem, str(c.kernel)) == ("", "8-13")

    run(scenario)


@pytest.mark.parametrize("word", ["false", "true"])
def test_who_may_be_moved(word: str) -> None:
    async def scenario(node: Node) -> None:
        await spread(node, rebalance=word)
        told, _ = await node.rebalancing.rebalance()
        assert ("uid-c" in {one.pod.replace("default/", "uid-") for one in told.owners}) is (
            word == "true"
        )

    run(scenario, dynamic=DynamicOptions(opt_in=word == "true"))


def test_nobody_who_is_just_being_created_is_moved() -> None:
    async def scenario(node: Node) -> None:
        await node.owner("a", 5)
        container = await node.node.create(await node.pod("c"), "main", guaranteed(6))
        assert node.has()["c"] == SPREAD
        wish = Proposal(rank=Rank.REBALANCE, why="a test")
        assert await node.rebalancing.by_itself(wish) == "somebody is being started or ended"
        assert node.has()["c"] == SPREAD
        await node.node.start(container)
        assert await node.rebalancing.by_itself(wish) == ""
        await node.until_moved()
        assert str(container.kernel) == "8-13"

    run(scenario)


def test_by_itself_every_period() -> None:
    dynamic = DynamicOptions(rebalance_period="1m")

    async def scenario(node: Node) -> None:
        controlling = controlled(node.books, node.rebalancing, None, dynamic_config(dynamic))
        assert controlling is not None
        goes_on = asyncio.create_task(controlling.loop.go_on())
        c = await spread(node)
        await asyncio.sleep(61)
        await node.until_moved()
        goes_on.cancel()
        assert str(c.kernel) == "8-13"

    run(scenario, dynamic=dynamic)


@pytest.mark.parametrize("how", ["kill", "stop", "again", "end"])
def test_what_comes_in_between(how: str) -> None:
    async def scenario(node: Node) -> None:
        c = await spread(node, scale_down_grace_period="5")
        moves = asyncio.create_task(node.rebalancing.rebalance())
        await asyncio.sleep(1)
        assert str(c.kernel) == "6-13", "the old ones and the new ones"
        if how == "kill":
            moves.cancel()
            await node.kill()
            await node.start()
        elif how == "end":
            await node.node.stop_pod(c.pod)
        else:
            await node.node.stop(c)
        if how == "again":
            c = await node.run(c.pod, "main", guaranteed(6))
        await node.settle()
        assert node.books.view.move is None
        assert node.has() == ({"a": "1-5"} if how == "end" else {"a": "1-5", "c": "8-13"})
        await asyncio.gather(moves, return_exceptions=True)

    run(scenario)


# ------------------------------------------------------------------------- for who is refused


@pytest.mark.parametrize("grace", [0, 5])
def test_room_is_made_for_who_is_refused_and_tries_again(grace: int) -> None:
    async def scenario(node: Node) -> None:
        c = await crowd(node, scale_down_grace_period=str(grace))
        pod = await node.sandbox("d")
        text = await node.refused(pod, 4)
        assert text.startswith("TopologyAffinityError: ")
        assert text.endswith(ROOM_IS_MADE)
        for _ in range(3 if grace else 0):
            await asyncio.sleep(1)
            assert await node.refused(pod, 4) == text
        assert str(c.kernel) == ("4-5" if not grace else "4-5,14-15")
        await asyncio.sleep(grace + 1)
        d = await node.run(pod, "main", guaranteed(4))
        assert (str(c.kernel), str(d.kernel)) == ("14-15", "4-7")
        kinds = [one.kind for one in await node.store.history(limit=1000)]
        assert (kinds.count("rejected"), kinds.count("moved")) == (1, 1)
        assert [one for one in node.problems if "default/d" in one] == [f"default/d: {text}"]

    run(scenario, config=STRICT, dynamic=ROOM)


@pytest.mark.parametrize(
    "dynamic", [None, DynamicOptions(), DynamicOptions(make_room=True, moves_per_hour=0)]
)
def test_no_room_is_made_unless_it_is_configured(dynamic: DynamicOptions | None) -> None:
    async def scenario(node: Node) -> None:
        await crowd(node)
        text = await node.refused(await node.sandbox("d"), 4)
        assert ROOM_IS_MADE not in text
        assert node.books.view.move is None

    run(scenario, config=STRICT, dynamic=dynamic)


def test_no_moves_admit_what_is_too_large_or_wants_none() -> None:
    async def scenario(node: Node) -> None:
        await crowd(node)
        for cpus in (5, 99):
            assert ROOM_IS_MADE not in await node.refused(await node.sandbox(f"d{cpus}"), cpus)
        shared = await node.sandbox("e", exclusive_cpus="false")
        await node.run(shared, "main", guaranteed(4))
        assert node.has()["c"] == "4-5"

    run(scenario, config=STRICT, dynamic=ROOM)


def test_who_asks_for_something_else_meanwhile_is_decided_about() -> None:
    async def scenario(node: Node) -> None:
        await crowd(node, scale_down_grace_period="5")
        pod, other = await node.sandbox("d"), await node.sandbox("e")
        assert ROOM_IS_MADE in await node.refused(pod, 4)
        assert ROOM_IS_MADE not in await node.refused(other, 4), "one plan at a time"
        await node.run(pod, "main", guaranteed(2))
        await node.run(await node.pod("best", "besteffort"), "main", Resources(cpu_shares=2))

    run(scenario, config=STRICT, dynamic=ROOM)


@pytest.mark.parametrize("late", [False, True])
def test_room_that_was_made_is_nobody_elses_for_a_while(*, late: bool) -> None:
    async def scenario(node: Node) -> None:
        await crowd(node, scale_down_grace_period="5")
        pod, other = await node.sandbox("d"), await node.sandbox("e")
        assert ROOM_IS_MADE in await node.refused(pod, 4)
        for pause in (1, 6):
            assert ROOM_IS_MADE not in await node.refused(other, 2), "there are two, for d"
            await asyncio.sleep(pause)
        await node.until_moved()
        # Nor does anybody go there whom something else is better for.
        assert node.rebalancing.would_move().steps == []
        await asyncio.sleep(KEPT if late else 15)
        if late:
            e = await node.run(other, "main", guaranteed(2))
            assert str(e.kernel) == "4-5"
            assert ROOM_IS_MADE not in await node.refused(pod, 4)
        else:
            d = await node.run(pod, "main", guaranteed(4))
            assert str(d.kernel) == "4-7"

    run(scenario, config=STRICT, dynamic=ROOM)


def test_what_a_pod_has_already_stays() -> None:
    async def scenario(node: Node) -> None:
        await node.owner("a", 3, rebalance="false")
        await node.owner("b", 5, rebalance="false")
        pod = await node.sandbox("c")
        side = await node.run(pod, "side", guaranteed(2))
        text = await node.refused(pod, 4)
        assert ROOM_IS_MADE not in text, "only its own pod's container could move aside"
        assert str(side.kernel) == "4-5"

    run(scenario, config=STRICT, dynamic=ROOM)


def test_an_agent_that_is_killed_meanwhile_makes_the_room() -> None:
    async def scenario(node: Node) -> None:
        await crowd(node, scale_down_grace_period="5")
        pod = await node.sandbox("d")
        await node.refused(pod, 4)
        await node.kill()
        await node.start()
        await node.settle()
        d = await node.run(pod, "main", guaranteed(4))
        assert str(d.kernel) == "4-7"

    run(scenario, config=STRICT, dynamic=ROOM)


def test_moves_that_are_undone_let_it_be_refused_anew() -> None:
    async def scenario(node: Node) -> None:
        c = await crowd(node, scale_down_grace_period="5")
        pod = await node.sandbox("d")
        await node.refused(pod, 4)
        await asyncio.sleep(4)
        node.cgroups.faults.fail_at = {node.cgroups.faults.calls + 1}
        await asyncio.sleep(5)
        await node.until_moved()
        assert str(c.kernel) == "4-5"
        assert ROOM_IS_MADE in await node.refused(pod, 4)
        await asyncio.sleep(6)
        d = await node.run(pod, "main", guaranteed(4))
        assert (str(c.kernel), str(d.kernel)) == ("14-15", "4-7")

    run(scenario, config=STRICT, dynamic=ROOM)
