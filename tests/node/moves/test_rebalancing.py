"""Better places on a live node, on fakes: when it is asked for, by itself, and for the rejected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pinfold.agent.loops.controlling import controlled
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.moves.owners import MoveError, Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.moves.moving import BusyError
from pinfold.ports.records import PodPhase
from tests.scenes.dynamic_config import dynamic_config
from tests.scenes.manager_harness import Harness, manifest, run_virtually
from tests.scenes.watched_cgroups import WatchedCgroups

STRICT = NodeConfig(
    cpu_manager_policy="static",
    topology_manager_policy="single-numa-node",
    reserved_system_cpus=CPUSet([0, 8]),
)
SPREAD = "6-11"
LOOSE = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))


class Node(Harness):
    """A node with two NUMA nodes, whose kernel looks at itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cgroups = WatchedCgroups(self.view.topology.cpus)
        self.runtime = type(self.runtime)(self.cgroups)

    def has(self) -> dict[str, str]:
        """What everybody owns on record."""
        return {
            uid.removeprefix("uid-"): str(containers["c0"])
            for uid, containers in self.books.view.state.ledger.assignments.items()
        }

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.store.entries]

    async def until_calm(self) -> None:
        while (moving := self.manager.mover.in_flight) is not None:
            await moving.ended()
        await self.settle()


def run(scenario: Callable[[Node], Awaitable[None]], **harness: Any) -> None:
    async def whole() -> None:
        usual: dict[str, Any] = {"config": LOOSE, "dynamic": DynamicOptions()}
        node = Node("2s4c2t", **usual | harness)
        await node.start()
        await scenario(node)
        await node.until_calm()
        node.check()
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 20_000))


def said(pod: dict[str, Any], **annotations: str) -> dict[str, Any]:
    told = {f"{key.replace('_', '-')}.pinfold.dev/pod": text for key, text in annotations.items()}
    return {**pod, "metadata": {**pod["metadata"], "annotations": told}}


async def spread(node: Node, **annotations: str) -> None:
    """``c`` sits in both NUMA nodes, although there is room for it in one."""
    await node.admit(manifest("a", "5"))
    await node.admit(said(manifest("c", "6"), **annotations))
    assert node.has() == {"a": "1-5", "c": SPREAD}


def test_a_dry_run_moves_nobody() -> None:
    async def scenario(node: Node) -> None:
        await spread(node)
        told = node.manager.rebalancing.would_move()
        (owner,) = [one for one in told.owners if one.before != one.after]
        assert (owner.pod, owner.before) == ("default/c", SPREAD)
        assert CPUSet.parse(owner.after) <= CPUSet.parse("8-15")
        assert node.has()["c"] == SPREAD
        assert node.manager.mover.in_flight is None

    run(scenario)


def test_whoever_sits_better_elsewhere_is_brought_there() -> None:
    async def scenario(node: Node) -> None:
        await spread(node, scale_down_grace_period="5")
        began = asyncio.get_running_loop().time()
        told, problem = await node.manager.rebalancing.rebalance()
        assert asyncio.get_running_loop().time() >= began + 5.0
        assert problem == ""
        (owner,) = told.owners
        assert node.has()["c"] == owner.after == node.cpus("c")["c0"]
        assert node.kinds()[-1] == "moved"
        again, _ = await node.manager.rebalancing.rebalance()
        assert again.steps == []

    run(scenario)


def test_only_under_the_policy_dynamic() -> None:
    async def scenario(node: Node) -> None:
        await spread(node)
        assert node.manager.rebalancing.would_move().steps
        with pytest.raises(MoveError, match="set cpuManagerPolicy to dynamic"):
            await node.manager.rebalancing.rebalance()
        assert node.has()["c"] == SPREAD

    run(scenario, dynamic=None)


def test_one_plan_at_a_time() -> None:
    async def scenario(node: Node) -> None:
        await spread(node, scale_down_grace_period="5")
        first = asyncio.create_task(node.manager.rebalancing.rebalance())
        await asyncio.sleep(1.0)
        with pytest.raises(BusyError):
            await node.manager.rebalancing.rebalance()
        with pytest.raises(BusyError):
            node.manager.rebalancing.would_move()
        await first

    run(scenario)


@pytest.mark.parametrize(
    ("opt_in", "word", "moves"),
    [
        (False, "", True),
        (False, "false", False),
        (True, "", False),
        (True, "true", True),
    ],
)
def test_who_may_be_moved(opt_in: bool, word: str, moves: bool) -> None:
    async def scenario(node: Node) -> None:
        await spread(node, **({"rebalance": word} if word else {}))
        # The others say nothing, so that c alone can move here.
        told, _ = await node.manager.rebalancing.rebalance()
        assert ("c" in {o.pod.removeprefix("default/") for o in told.owners}) is moves

    run(scenario, dynamic=DynamicOptions(opt_in=opt_in))


def test_by_itself_every_period_within_the_budget() -> None:
    dynamic = DynamicOptions(rebalance_period="1m", moves_per_hour=1)

    async def scenario(node: Node) -> None:
        controlling = controlled(
            node.books, node.manager.rebalancing, None, dynamic_config(dynamic)
        )
        assert controlling is not None
        goes_on = asyncio.create_task(controlling.loop.go_on())
        await spread(node)
        await asyncio.sleep(61)
        await node.until_calm()
        assert len({cpu // 8 for cpu in CPUSet.parse(node.has()["c"])}) == 1
        await node.manager.release("c")
        await node.admit(manifest("d", "6"))
        assert node.has()["d"] == SPREAD
        await asyncio.sleep(1800)
        assert node.has()["d"] == SPREAD, "the budget is used up"
        await asyncio.sleep(3600)
        await node.until_calm()
        assert len({cpu // 8 for cpu in CPUSet.parse(node.has()["d"])}) == 1
        goes_on.cancel()

    run(scenario, dynamic=dynamic)


def test_never_by_itself_unless_it_is_told_to() -> None:
    async def scenario(node: Node) -> None:
        await spread(node)
        for dynamic in (None, DynamicOptions()):
            assert (
                controlled(node.books, node.manager.rebalancing, None, dynamic_config(dynamic))
                is None
            )

    run(scenario)


async def crowd(node: Node) -> None:
    """Four CPUs are free, two in each NUMA node, where ``c`` could go aside."""
    for name, cpus in (("a", "3"), ("b", "5"), ("c", "2")):
        await node.admit(manifest(name, cpus))
    assert node.has() == {"a": "1-3", "b": "9-13", "c": "4-5"}


def test_room_is_made_for_a_pod_that_would_be_rejected() -> None:
    async def scenario(node: Node) -> None:
        await crowd(node)
        record = await node.admit(manifest("d", "4"))
        assert record.phase is PodPhase.ADMITTED
        assert node.has() == {"a": "1-3", "b": "9-13", "c": "14-15", "d": "4-7"}
        assert [kind for kind in node.kinds() if kind in ("moved", "rejected")] == ["moved"]

    run(scenario, config=STRICT, dynamic=DynamicOptions(make_room=True))


@pytest.mark.parametrize(
    "dynamic", [None, DynamicOptions(), DynamicOptions(make_room=True, moves_per_hour=0)]
)
def test_no_room_is_made_unless_it_is_configured(dynamic: DynamicOptions | None) -> None:
    async def scenario(node: Node) -> None:
        await crowd(node)
        record = await node.admit(manifest("d", "4"))
        assert (record.phase, record.reason) == (PodPhase.REJECTED, "TopologyAffinityError")
        assert node.has()["c"] == "4-5"

    run(scenario, config=STRICT, dynamic=dynamic)


def test_no_moves_admit_what_is_too_large() -> None:
    async def scenario(node: Node) -> None:
        await crowd(node)
        for cpus in ("5", "99"):
            record = await node.admit(manifest(f"d{cpus}", cpus))
            assert record.phase is PodPhase.REJECTED
        assert node.has()["c"] == "4-5"

    run(scenario, config=STRICT, dynamic=DynamicOptions(make_room=True))


@pytest.mark.parametrize(("delay", "phase"), [(10.0, PodPhase.ADMITTED), (60.0, PodPhase.REJECTED)])
def test_room_is_made_after_the_moves_of_others(delay: float, phase: PodPhase) -> None:
    async def scenario(node: Node) -> None:
        await crowd(node)
        async with node.books.change() as draft:
            shrink = Wish(Owner("uid-b", "c0"), CPUSet.parse("9-12"), delay=delay)
            plan = plan_moves(draft.state.ledger, [shrink])
            await node.manager.mover.begin(draft, plan, why="resize")
        record = await node.admit(manifest("d", "4"))
        assert record.phase is phase
        assert (node.manager.mover.in_flight is None) is (phase is PodPhase.ADMITTED)

    run(scenario, config=STRICT, dynamic=DynamicOptions(make_room=True))


@pytest.mark.parametrize("uid", ["uid-a", "room"])
def test_who_comes_while_room_is_made_leaves_it_to_whom_it_is_for(uid: str) -> None:
    """Whatever somebody calls himself who is there."""

    async def scenario(node: Node) -> None:
        first = manifest("a", "3")
        first["metadata"]["uid"] = uid
        first["spec"]["containers"][0]["name"] = uid
        await node.admit(first)
        for name, cpus in (("b", "5"), ("c", "2")):
            await node.admit(manifest(name, cpus))
        waits = asyncio.create_task(node.admit(manifest("d", "4"), wait=False))
        hasty = asyncio.create_task(node.admit(manifest("e", "2"), wait=False))
        records = await asyncio.gather(waits, hasty)
        admitted = {r.name for r in records if r.phase is PodPhase.ADMITTED}
        assert admitted == {"d"}
        assert node.books.view.state.ledger.violations() == []

    run(scenario, config=STRICT, dynamic=DynamicOptions(make_room=True))
