"""Work is gathered, and the agent dies at each of its calls; who did not agree is never moved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pinfold.agent.loops.controlling import controlled
from pinfold.core.controllers.parking import Park, Unpark
from pinfold.core.controllers.proposals import Rank
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies, ParkingOptions
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.reconciler import reconcile
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import manifest, run_virtually
from tests.scenes.mortal_harness import MortalHarness, every_death, next_starts
from tests.scenes.moves_harness import Node
from tests.scenes.watched_cgroups import WatchedCgroups

BEFORE = {"c/c0": "8-11", "d/c0": "12-13"}
"""Two packages of four are in use, and one would do beside that of the reserved CPU."""

GATHERED = {"c/c0": "8-11", "d/c0": "1-2"}


class MortalNode(Node, MortalHarness):
    """A node whose agent dies, and whose kernel looks at itself."""

    @property
    def kernel(self) -> WatchedCgroups:
        assert isinstance(self.cgroups, WatchedCgroups)
        return self.cgroups


def said(name: str, cpus: str, moves: str) -> dict[str, Any]:
    pod = manifest(name, cpus)
    pod["spec"]["scaleDownGracePeriodSeconds"] = 1
    if moves:
        pod["metadata"]["annotations"] = {"rebalance.pinfold.dev/pod": moves}
    return pod


async def quiet_node(dynamic: DynamicOptions, c: str = "", d: str = "") -> MortalNode:
    """A node on which ``d`` alone would move, whose agent has ended."""
    node = MortalNode(machine="4s4c1t", dynamic=dynamic)
    node.arm(0, after=False)
    await node.start()
    await node.admit(manifest("a", "3"))
    await node.admit(manifest("b", "4"))
    await node.admit(said("c", "4", c))
    await node.admit(said("d", "2", d))
    await node.admit(manifest("web", ""))
    await node.manager.release("a")
    await node.manager.release("b")
    assert node.has() == BEFORE
    await node.kill()
    return node


async def goes_on(node: MortalNode) -> None:
    if (moving := node.manager.mover.in_flight) is not None:
        await moving.ended()
    await node.settle()


async def parks(node: MortalNode) -> None:
    """What the controller would wish look after look, until nothing is left of it."""
    wish = Park(rank=Rank.PARKING, why="quiet", need=1)
    while not await node.manager.rebalancing.park(wish, keep_requests=True):
        await goes_on(node)


async def parks_and_spreads(node: MortalNode) -> None:
    await parks(node)
    wish = Unpark(rank=Rank.PARKING, why="busy")
    assert await node.manager.rebalancing.park(wish, keep_requests=True) == ""
    await node.settle()


async def ends_in_between(node: MortalNode) -> None:
    wish = Park(rank=Rank.PARKING, why="quiet", need=1)
    await node.manager.rebalancing.park(wish, keep_requests=True)
    await node.manager.release("d")
    await goes_on(node)


async def refused(node: MortalNode) -> None:
    node.cgroups.faults.calls = 0
    node.cgroups.faults.fail_at = {2}
    wish = Park(rank=Rank.PARKING, why="quiet", need=1)
    await node.manager.rebalancing.park(wish, keep_requests=True)
    await goes_on(node)


Life = Callable[[MortalNode], Awaitable[None]]


async def dies(node: MortalNode, life: Life, at: int, *, after: bool) -> bool:
    """Let an agent live that dies at this call, and the next one start and go on."""
    died = await next_starts(node, life, at, after=after)
    await goes_on(node)
    return died


async def is_well(node: MortalNode) -> None:
    """Nobody shares an exclusive CPU, or ever did, and nothing is in flight."""
    node.check()
    assert node.kernel.shared_by_two == []
    assert await reconcile(node.books) == []
    assert node.store.move is None
    assert node.manager.mover.in_flight is None
    for status in node.runtime.known():
        assert status.state is ContainerState.RUNNING
    # Where the pool is not is no record: it is everywhere, until the node was quiet again.
    view = node.books.view
    assert not view.parked
    assert view.pool == view.state.ledger.default - CPUSet([0])
    assert node.cpus("web") == {"c0": str(view.pool)}


@pytest.mark.parametrize("life", [parks, parks_and_spreads, ends_in_between, refused])
def test_the_agent_may_die_at_every_call(life: Life) -> None:
    async def dies_and_goes_on(at: int, *, after: bool) -> bool:
        node = await quiet_node(DynamicOptions())
        died = await dies(node, life, at, after=after)
        await is_well(node)
        if "d/c0" in node.has():
            assert node.has() in (BEFORE, GATHERED)
            await parks(node)
            node.check()
            assert node.has() == GATHERED
            assert str(node.books.view.parked) == "4-7,12-15"
        for uid in list(node.books.view.pods.active):
            await node.manager.release(uid)
        await node.settle()
        assert str(node.books.view.state.ledger.default) == "0-15"
        assert node.cgroups.groups == {}
        assert node.kernel.shared_by_two == []
        await node.kill()
        return died

    assert run_virtually(every_death(dies_and_goes_on)) > 20


@pytest.mark.parametrize(
    ("dynamic", "said_by_d"),
    [(DynamicOptions(opt_in=True), ""), (DynamicOptions(), "false")],
    ids=["who says nothing, by opt-in", "who says no"],
)
def test_who_did_not_agree_stays_wherever_the_agent_dies(
    dynamic: DynamicOptions, said_by_d: str
) -> None:
    async def dies_and_goes_on(at: int, *, after: bool) -> bool:
        node = await quiet_node(dynamic, d=said_by_d)
        before = len(node.effects)
        died = await dies(node, parks, at, after=after)
        await is_well(node)
        await parks(node)
        assert node.has() == BEFORE
        assert node.books.counters.moves == {}
        own = {cpus for name, cpus in node.effects[before:] if name == "c0"} - {"None"}
        assert own <= {"8-11", "12-13"}, own
        node.check()
        # What can idle without them does.
        assert str(node.books.view.parked) == "4-7"
        await node.kill()
        return died

    assert run_virtually(every_death(dies_and_goes_on)) > 10


def test_who_agrees_moves_where_others_have_to_be_asked() -> None:
    async def scenario() -> None:
        node = await quiet_node(DynamicOptions(opt_in=True), d="true")
        node.arm(0, after=False)
        await node.start()
        await parks(node)
        assert node.has() == GATHERED
        await node.kill()

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("policy", "parking", "is_there"),
    [
        ("dynamic", ParkingOptions(use=True), True),
        ("dynamic", ParkingOptions(), False),
        ("static", ParkingOptions(use=True), False),
    ],
)
def test_nobody_parks_unless_it_is_told_to(
    policy: str, parking: ParkingOptions, *, is_there: bool
) -> None:
    async def scenario() -> None:
        node = await quiet_node(DynamicOptions())
        node.arm(0, after=False)
        await node.start()
        config = NodeConfig(cpu_manager_policy=policy, own=OwnPolicies(parking=parking))
        made = controlled(node.books, node.manager.rebalancing, None, config)
        names = [] if made is None else [one.name for one in made.loop.controls]
        assert names == (["parking"] if is_there else [])
        await node.kill()

    run_virtually(scenario())
