"""Mixed containers on a live node: they follow the pool, and nobody is ever where they own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.moves.owners import MoveOptions, Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.reconciler import reconcile
from pinfold.node.recovery.recovery import OnMismatch
from pinfold.ports.cgroups import Partition
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.records import PodPhase
from pinfold.ports.runtime import ContainerState
from pinfold.web.documents import Documents
from tests.scenes.manager_harness import Harness, manifest, mixed, run_virtually
from tests.scenes.offline_harness import EVERY, VERSIONS, Node
from tests.scenes.offline_harness import run as run_offline
from tests.scenes.random_pods import live
from tests.scenes.watched_cgroups import WatchedCgroups


def watched(version: int = 2, **more: Any) -> Harness:
    node = Harness(**more)
    node.cgroups = WatchedCgroups(node.view.topology.cpus, version)
    node.runtime = type(node.runtime)(node.cgroups)
    return node


def run(scenario: Callable[[Harness], Awaitable[None]], node: Harness | None = None) -> None:
    async def whole() -> None:
        there = node or watched()
        await there.start()
        await scenario(there)
        await there.settle()
        there.check()
        await there.kill()

    run_virtually(asyncio.wait_for(whole(), 600))


def lane(name: str = "lane", *cpus: str) -> dict[str, Any]:
    return mixed(manifest(name, *(cpus or ("1500m",))))


# ---------------------------------------------------------------------------------- the pool


@VERSIONS
def test_it_follows_the_pool(version: int) -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(lane())
        assert node.cpus("lane") == {"c0": "1-7"}
        assert node.cpus("web") == {"c0": "2-7"}
        await node.admit(manifest("db", "2"))
        assert node.cpus("db") == {"c0": "2-3"}
        assert node.cpus("lane") == {"c0": "1,4-7"}
        await node.admit(lane("other", "2", "500m"))
        assert node.cpus("other") == {"c0": "4-7", "c1": "6-7"}
        assert node.cpus("lane") == {"c0": "1,6-7"}
        assert node.books.view.mixed == {Owner("uid-lane", "c0"), Owner("uid-other", "c0")}
        await node.manager.release("db")
        await node.settle()
        assert node.cpus("lane") == {"c0": "1-3,6-7"}
        await node.manager.release("lane")
        await node.settle()
        assert node.cpus("other") == {"c0": "1-7", "c1": "1-3,6-7"}
        assert node.cpus("web") == {"c0": "1-3,6-7"}
        assert await reconcile(node.books) == []

    run(scenario, watched(version))


def test_who_comes_waits_for_it_to_leave() -> None:
    """The pool and all who are mixed have left its CPUs before its cgroup is made."""

    async def scenario(node: Harness) -> None:
        assert isinstance(node.cgroups, WatchedCgroups)
        await node.admit(lane())
        del node.cgroups.effects[:]
        await node.admit(manifest("db", "2"))
        assert node.cgroups.effects[:2] == [("shared", "4-7"), ("c0", "2-3")]

    run(scenario)


def test_where_it_cannot_be_narrowed_nobody_comes() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(lane())
        before = node.cpus("lane")
        node.cgroups.faults.fail_at = {node.cgroups.faults.calls + 1}
        with pytest.raises(CgroupError):
            await node.admit(manifest("db", "2"))
        assert node.cpus("db") == {}
        assert node.cpus("lane") == before
        assert (await node.admit(manifest("later", "2"))).phase is PodPhase.ADMITTED

    run(scenario)


def test_all_others_are_owned() -> None:
    """Who shares is on the reserved CPUs then, and so is the rest of a mixed container."""

    async def scenario(node: Harness) -> None:
        await node.admit(lane("lane", "1"))
        await node.admit(manifest("db", "6"))
        assert node.cpus("lane") == {"c0": "0-1"}

    run(scenario)


def test_under_strict_reservation_the_last_cpu_of_the_pool_is_nobodys() -> None:
    strict = NodeConfig(
        cpu_manager_policy="static",
        cpu_manager_policy_options={"strict-cpu-reservation": "true"},
        reserved_system_cpus=CPUSet([0]),
    )

    async def scenario(node: Harness) -> None:
        await node.admit(lane("lane", "1"))
        whole = await node.admit(manifest("db", "6"))
        assert whole.phase is PodPhase.REJECTED
        assert "no CPU would be left" in whole.message
        alone = await node.admit(lane("all", "6"))
        assert alone.phase is PodPhase.REJECTED
        assert (await node.admit(manifest("less", "5"))).phase is PodPhase.ADMITTED
        assert node.cpus("lane") == {"c0": "1,7"}

    run(scenario, watched(config=strict))


def test_isolated_cpus_are_not_the_pools() -> None:
    async def scenario(node: Harness) -> None:
        pod = lane()
        pod["metadata"]["annotations"]["isolated-cpus.pinfold.dev/pod"] = "prefer"
        await node.admit(pod)
        assert node.cpus("lane") == {"c0": "1-4"}
        await node.admit(manifest("web", ""))
        assert node.cpus("web") == {"c0": "1-3"}

    run(scenario, watched(isolated=CPUSet([4, 5, 6, 7])))


# -------------------------------------------------------------------------------- what is told


def test_what_it_is_told_and_what_is_told_of_it() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        await node.admit(lane("lane", "2500m", "500m"))
        (spec,) = (
            one
            for one in node.runtime.specs.values()
            if one.key.pod_uid == "uid-lane" and one.key.name == "c0"
        )
        told = {name: spec.env.get(f"PINFOLD_{name}_CPUS") for name in ("EXCLUSIVE", "SHARED")}
        assert told == {"EXCLUSIVE": "4-5", "SHARED": "1,6-7"}
        assert spec.env["PINFOLD_CPUS"] == "4-5"
        assert spec.placement is not None
        assert (spec.placement.limits.cpu_quota, spec.placement.pod_limits.cpu_quota) == (-1, -1)
        others = [one for one in node.runtime.specs.values() if one.key != spec.key]
        assert not any("PINFOLD_SHARED_CPUS" in one.env for one in others)

        seen = Documents(node.books).pod("lane").containers
        assert [(one.cpus, one.exclusive, one.shared) for one in seen] == [
            ("4-5", True, "1,6-7"),
            ("1,6-7", False, seen[1].shared),
        ]
        assert not seen[1].shared
        await node.settle()
        facts = json.loads(node.files.documents["uid-lane"])["containers"]
        assert facts["c0"] == {"cpus": "4-5", "exclusive": True, "shared": "1,6-7"}
        await node.manager.release("db")
        await node.settle()
        facts = json.loads(node.files.documents["uid-lane"])["containers"]
        assert facts["c0"] == {"cpus": "4-5", "exclusive": True, "shared": "1-3,6-7"}
        assert node.mirrored[-1].assignments == {"uid-lane": {"c0": CPUSet([4, 5])}}

    run(scenario)


def test_a_partition_is_wished_for_others_only() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(lane())
        placement = node.cgroups.groups[ContainerKey("uid-lane", "c0")].placement
        assert placement.mixed
        assert placement.partition is Partition.ROOT, "who cannot grant it says so"

    run(scenario, watched(settings=replace(Harness().settings, partition=Partition.ROOT)))


# ------------------------------------------------------------------------------ made right again


def test_what_others_write_is_made_right() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(lane())
        await node.admit(manifest("db", "2"))
        group = node.cgroups.groups[ContainerKey("uid-lane", "c0")]
        for wrong in ("1-7", "1", "4-7"):
            group.cpus = CPUSet.parse(wrong)
            (drift,) = await reconcile(node.books)
            assert drift.expected == "1 and the shared pool"
            assert drift.found == f"effective {wrong}"
            assert drift.repaired
            assert node.cpus("lane") == {"c0": "1,4-7"}
            group = node.cgroups.groups[ContainerKey("uid-lane", "c0")]

    run(scenario)


def test_after_a_restart_it_has_left_what_was_given_away_meanwhile() -> None:
    """The agent died when a decision was on record, and before anybody had left the CPUs."""

    async def scenario(node: Harness) -> None:
        await node.admit(lane())
        shared = node.cgroups.set_shared

        async def dies(cpus: CPUSet) -> None:  # noqa: ARG001 - the port
            await asyncio.Event().wait()

        node.cgroups.set_shared = dies  # type: ignore[method-assign] # the agent hangs there
        admission = asyncio.create_task(node.admit(manifest("db", "2"), wait=False))
        await node.settle()
        assert node.cpus("lane") == {"c0": "1-7"}
        assert node.store.pods["uid-db"].assignments == {"c0": CPUSet([2, 3])}
        node.cgroups.set_shared = shared  # type: ignore[method-assign] # and is gone
        admission.cancel()
        await node.kill()
        await node.start()
        await node.settle()
        assert node.cpus("db") == {"c0": "2-3"}
        assert node.cpus("lane") == {"c0": "1,4-7"}

    run(scenario)


def test_a_lost_record_takes_none_of_the_pool_for_its_own() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(lane())
        await node.admit(manifest("db", "2"))
        await node.admit(lane("other", "2"))
        before = dict(node.books.view.state.ledger.assignments)
        await node.kill()
        node.store.pods.clear()
        node.store.node = None
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        assert dict(node.books.view.state.ledger.assignments) == before

    run(scenario)


# ------------------------------------------------------------------------------ CPUs that go


@VERSIONS
def test_cpus_that_go_offline_and_come_back(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2"))
        await node.admit(lane("lane", "2500m"))
        assert node.cpus("lane") == {"c0": "1,4-7"}
        for gone, left in (
            ("6", "1,4-5,7"),  # of the pool
            ("4", "1,5-7"),  # of its own
            ("1,6-7", "4-5"),  # all of the pool but the reserved ones
            ("0-1,6-7", "4-5"),  # all of the pool
            ("4-5", "1,6-7"),  # all of its own: it shares
            ("", "1,4-7"),
        ):
            offline = CPUSet.parse(gone) if gone else CPUSet()
            await node.switch(EVERY - offline)
            node.check()
            allowed = CPUSet.parse(node.cpus("lane")["c0"])
            assert allowed - CPUSet([0]) == CPUSet.parse(left), gone
            assert (0 in allowed) == (gone == "1,6-7")
            if "0" not in gone:
                assert await reconcile(node.books) == []

    run_offline(scenario, Node(version))


# --------------------------------------------------------------------------------- moves


async def moved(node: Harness, **wishes: str) -> None:
    """Move the first containers of pods, and wait for the end."""
    async with node.books.change() as draft:
        told = [Wish(Owner(f"uid-{pod}", "c0"), CPUSet.parse(cpus)) for pod, cpus in wishes.items()]
        options = MoveOptions(mixed=node.books.view.mixed)
        plan = plan_moves(draft.state.ledger, told, options)
        assert plan.mixed == node.books.view.mixed
        moving = await node.manager.mover.begin(draft, plan, why="rebalance")
    assert (await moving.ended()).done


@VERSIONS
def test_it_follows_the_pools_steps_of_a_plan_and_moves_as_any_other(version: int) -> None:
    async def scenario(node: Harness) -> None:
        assert isinstance(node.cgroups, WatchedCgroups)
        await node.admit(manifest("web", ""))
        await node.admit(lane())
        await node.admit(manifest("db", "2"))
        assert node.cpus("lane") == {"c0": "1,4-7"}
        del node.cgroups.effects[:]
        # Another grows into the pool: it is narrowed with it, before that one is widened.
        await moved(node, db="2-5")
        assert node.cpus("lane") == {"c0": "1,6-7"}
        assert [one for one in node.cgroups.effects if one[1] in {"6-7", "2-5"}][:2] == [
            ("shared", "6-7"),
            ("c0", "2-5"),
        ]
        # An exchange, and its own CPUs alone.
        await moved(node, lane="2", db="1,3-5")
        assert node.cpus("lane") == {"c0": "2,6-7"}
        assert node.cpus("db") == {"c0": "1,3-5"}
        await moved(node, lane="6", db="3-5")
        assert node.cpus("lane") == {"c0": "1-2,6-7"}
        assert node.cpus("web") == {"c0": "1-2,7"}
        assert await reconcile(node.books) == []
        # As many as it asks for.
        await moved(node, db="3-4")

    run(scenario, watched(version))


# ------------------------------------------------------------------------------- any life

SHAPES = [("1500m",), ("2",), ("2500m", "500m"), ("1", "1900m"), ("500m",), ("",), ("3",)]
OPERATIONS = st.one_of(
    st.tuples(
        st.sampled_from(["mixed", "mixed", "admit"]), st.integers(0, 5), st.sampled_from(SHAPES)
    ),
    st.tuples(st.just("release"), st.integers(0, 5), st.none()),
    st.tuples(st.just("exit"), st.integers(0, 20), st.just(1)),
    st.tuples(st.just("restart"), st.none(), st.none()),
    st.tuples(
        st.just("fault"), st.sampled_from(["store", "cgroups", "runtime"]), st.integers(1, 4)
    ),
    st.tuples(st.just("reconcile"), st.none(), st.none()),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(OPERATIONS, min_size=4, max_size=40), st.sampled_from([1, 2]))
def test_nobody_is_ever_where_somebody_else_owns(
    operations: list[tuple[str, Any, Any]], version: int
) -> None:
    """It is looked at after every effect in the kernel, whatever fails, whoever dies."""

    async def whole() -> None:
        node = watched(version)
        await node.start()
        await live(node, operations)
        running = [one for one in node.runtime.known() if one.state is ContainerState.RUNNING]
        owners = {Owner(one.key.pod_uid, one.key.name) for one in running} & node.books.view.mixed
        for owner in owners:
            own = node.books.view.state.ledger.cpus_of(owner.pod_uid, owner.container)
            assert own is not None
            name = owner.pod_uid.removeprefix("uid-")
            assert node.cpus(name)[owner.container] == str(own | node.books.view.pool)
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 6000))
