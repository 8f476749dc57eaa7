"""Pods that have CPUs and memory as a whole: what is given, told, kept, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final

import pytest
from msgspec.structs import replace

from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies
from pinfold.core.moves.owners import MoveError
from pinfold.core.moves.resize import INCONSISTENT
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.observation.pod_resources import ManagedPodResources
from pinfold.node.offline_owners import told
from pinfold.node.recovery.recovery import MismatchError, OnMismatch
from pinfold.node.settings import NodeSettings
from pinfold.ports.cgroups import Partition
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.records import PodPhase
from tests.scenes.manager_harness import Copy, Harness, manifest, run, run_virtually
from tests.scenes.mortal_harness import MortalHarness, every_death, next_starts
from tests.scenes.whole_pods import BY_CONTAINER, WHOLE, WHOLE_MEMORY, whole_pod

EIGHT_CORES: Final = "1s8c2t"
APP: Final = whole_pod("app", "6", "2", "1", shared=2, init=("2",), sidecars=("1", ""))
"""On an empty node of one socket its bubble is 2-7."""


async def admitted(node: Harness, pod: dict[str, Any]) -> Any:
    """Admit a pod, and let its init containers come to their end."""
    record = await node.admit(pod, wait=False)
    await node.settle()
    for one in node.runtime.known():
        if one.key == ContainerKey(record.uid, "i0") and one.pid is not None:
            node.runtime.exit(one.id, 0)
    await node.settle()
    return record


def test_a_pod_has_its_bubble_and_its_containers_are_in_it() -> None:
    async def work(node: Harness) -> None:
        record = await node.admit(APP, wait=False)
        await node.settle()
        assert str(record.bubble) == "2-7"
        assert node.cpus("app") == {"i0": "2-3"}
        await admitted(node, manifest("other", ""))
        assert node.cpus("other") == {"c0": "1,8-15"}
        for one in node.runtime.known():
            if one.key.name == "i0":
                node.runtime.exit(one.id, 0)
        await node.settle()
        everybody = {"s0": "2", "s1": "6-7", "c0": "4-5", "c1": "3", "p0": "6-7", "p1": "6-7"}
        assert node.cpus("app") == everybody
        # Nothing came back with the init container, and all does with the pod.
        assert str(node.books.view.pool) == "1,8-15"
        node.check()
        await node.manager.release("app")
        assert str(node.books.view.state.ledger.default) == "0-15"
        assert node.books.view.state.ledger.bubbles == {}

    run(work, machine=EIGHT_CORES, config=WHOLE)


def test_only_who_shares_keeps_a_quota_and_is_no_partition() -> None:
    async def work(node: Harness) -> None:
        await admitted(node, APP)
        placed = {key.name: group.placement for key, group in node.cgroups.groups.items()}
        quotas = {name: one.limits.cpu_quota for name, one in placed.items()}
        assert quotas == {"s0": -1, "c0": -1, "c1": -1, "s1": 600_000} | dict.fromkeys(
            ("p0", "p1"), 600_000
        )
        assert {one.pod_limits.cpu_quota for one in placed.values()} == {600_000}
        roots = {name for name, one in placed.items() if one.partition is Partition.ROOT}
        assert roots == {"s0", "c0", "c1"}

    settings = NodeSettings(partition=Partition.ROOT)
    run(work, machine=EIGHT_CORES, config=WHOLE, settings=settings)


def test_a_pod_of_which_everybody_owns_cpus_has_no_quota() -> None:
    async def work(node: Harness) -> None:
        await node.admit(whole_pod("all", "3", "2", "1", shared=0))
        placed = [group.placement for group in node.cgroups.groups.values()]
        assert {(one.limits.cpu_quota, one.pod_limits.cpu_quota) for one in placed} == {(-1, -1)}

    run(work, machine=EIGHT_CORES, config=WHOLE)


def test_by_container_only_owners_are_given_any_and_the_pod_keeps_its_quota() -> None:
    async def work(node: Harness) -> None:
        record = await node.admit(whole_pod("some", "4", "2", shared=1))
        assert (record.bubble, record.bubble_memory) == (CPUSet(), ())
        assert set(record.assignments) == {"c0"}
        assert node.cpus("some")["p0"] == str(node.books.view.pool)
        placed = {key.name: group.placement for key, group in node.cgroups.groups.items()}
        assert [placed[name].limits.cpu_quota for name in ("c0", "p0")] == [-1, 400_000]
        assert {one.pod_limits.cpu_quota for one in placed.values()} == {400_000}

    run(work, machine=EIGHT_CORES, config=BY_CONTAINER)


def test_everybody_is_told_what_he_runs_on() -> None:
    async def work(node: Harness) -> None:
        await admitted(node, APP)
        facts = json.loads(node.files.documents["uid-app"])["containers"]
        assert {name: one["cpus"] for name, one in facts.items() if name != "i0"} == {
            "s0": "2",
            "s1": "6-7",
            "c0": "4-5",
            "c1": "3",
            "p0": "6-7",
            "p1": "6-7",
        }
        assert {name for name, one in facts.items() if one["exclusive"]} == {"i0", "s0", "c0", "c1"}
        for name, cpus in (("c0", "4-5"), ("p0", "6-7"), ("p1", "6-7")):
            said = await node.teller.told(ContainerKey("uid-app", name))
            assert said is not None
            assert str(said.current.cpus) == cpus
        (told_of,) = ManagedPodResources(node.books).pods()
        # As a kubelet: no init container that ends, and the pod shared pool for who shares it.
        assert {one.name: str(one.cpus) for one in told_of.containers} == {
            "s0": "2",
            "s1": "6-7",
            "c0": "4-5",
            "c1": "3",
            "p0": "6-7",
            "p1": "6-7",
        }

    run(work, machine=EIGHT_CORES, config=WHOLE)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (whole_pod("full", "2", "2", shared=1), "EmptyPodSharedPoolError"),
        (whole_pod("full", "2", "1", "1", shared=1), "EmptyPodSharedPoolError"),
        (whole_pod("huge", "17", "1"), "OutOfcpu"),
    ],
)
def test_who_is_rejected_leaves_nothing(pod: dict[str, Any], reason: str) -> None:
    async def work(node: Harness) -> None:
        before = node.books.view.state.ledger
        record = await node.admit(pod)
        assert (record.phase, record.bubble) == (PodPhase.REJECTED, CPUSet())
        assert record.reason in (reason, "UnexpectedAdmissionError", "TopologyAffinityError")
        assert node.books.view.state.ledger == before
        assert (await node.admit(whole_pod("next", "6"))).phase is PodPhase.ADMITTED

    run(work, machine=EIGHT_CORES, config=WHOLE)


# ------------------------------------------------------------------------- nobody moves any of it


def test_no_resize_changes_a_container_in_a_bubble() -> None:
    async def work(node: Harness) -> None:
        await admitted(node, APP)
        before = node.books.view.state.ledger
        for name in ("c0", "s0", "p0", "i0"):
            answer = await node.manager.resizing.resize("app", name, 3)
            assert answer.decision.reason == INCONSISTENT
            assert answer.moving is None
            said = answer.decision.message or ""
            assert "asks for resources as a whole" in said or "is an init container" in said
        assert node.books.view.state.ledger is before

    run(work, machine=EIGHT_CORES, config=WHOLE)


def dynamic(config: Any) -> dict[str, Any]:
    """A node on which others move."""
    options = DynamicOptions(make_room=True, moves_per_hour=3600)
    own = OwnPolicies(options)
    config = replace(config, cpu_manager_policy="dynamic", own=own)
    return {"machine": "2s4c2t", "config": config, "dynamic": options}


def test_nobody_moves_a_bubble_to_a_better_place_or_out_of_the_way() -> None:
    async def work(node: Harness) -> None:
        for name, count in (("a", "6"), ("b", "6")):
            await node.admit(manifest(name, count))
        whole = await node.admit(whole_pod("whole", "2", "1"))
        await node.manager.release("a")
        with contextlib.suppress(MoveError):
            await node.manager.rebalancing.rebalance()
        await node.settle()
        await node.admit(manifest("c", "7"), wait=False)
        await asyncio.sleep(30)
        await node.settle()
        ledger = node.books.view.state.ledger
        assert ledger.bubbles == {whole.uid: whole.bubble}
        assert ledger.assignments[whole.uid] == whole.assignments
        node.check()

    run(work, **dynamic(WHOLE))


def test_others_move_aside_for_a_bubble() -> None:
    async def work(node: Harness) -> None:
        for name in ("a", "b", "c", "d"):
            await node.admit(manifest(name, "3"))
        for name in ("a", "c"):
            await node.manager.release(name)
        # Ten are free, and no six of them in one NUMA node.
        record = await node.admit(whole_pod("whole", "6", "1"))
        assert record.phase is PodPhase.ADMITTED
        assert len(record.bubble) == 6
        assert record.bubble <= CPUSet.parse("0-7") or record.bubble <= CPUSet.parse("8-15")
        node.check()

    config = replace(WHOLE, topology_manager_policy="single-numa-node")
    run(work, **dynamic(config))


def test_nothing_of_a_bubble_is_lent() -> None:
    async def work(node: Harness) -> None:
        await admitted(node, APP)
        await node.admit(manifest("plain", "2"))
        view = node.books.view
        assert view.lendable.isdisjoint(view.state.ledger.bubbles["uid-app"])
        assert view.lendable
        with pytest.raises(CgroupError, match="CPUs 4 cannot be lent"):
            await node.books.lend(CPUSet([4]))

    settings = NodeSettings(idle_side=True)
    run(work, machine=EIGHT_CORES, config=WHOLE, settings=settings)


def test_who_has_lost_all_of_his_cpus_of_a_bubble_shares_and_comes_back() -> None:
    async def work(node: Harness) -> None:
        await admitted(node, APP)
        for gone in ("6-7", "4-5"):
            node.cgroups.online = node.cgroups.machine - CPUSet.parse(gone)
            await node.books.set_offline(CPUSet.parse(gone))
            await node.settle()
            who = "p0" if gone == "6-7" else "c0"
            assert node.cpus("app")[who] == str(node.books.view.pool)
            assert node.cpus("app")["c1"] == "3"
            view = node.books.view
            place = view.where(*view.pods.containers()[ContainerKey("uid-app", who)])
            assert "runs in the shared pool until" in told(place)
            assert str(view.state.ledger.bubbles["uid-app"]) == "2-7"
        node.cgroups.online = node.cgroups.machine
        await node.books.set_offline(CPUSet())
        await node.settle()
        assert node.cpus("app")["p0"] == "6-7"
        assert node.cpus("app")["c0"] == "4-5"

    run(work, machine=EIGHT_CORES, config=WHOLE)


# -------------------------------------------------------------------------------------- memory


def test_memory_is_charged_once_and_is_the_same_after_a_restart() -> None:
    async def work(node: Harness) -> None:
        record = await admitted(node, whole_pod("app", "4", "2", shared=2, init=("1",)))
        (block,) = record.bubble_memory
        assert (block.type, block.size) == ("memory", 1 << 30)
        before = node.books.view.state.memory
        assert before is not None
        reserved = sum(one.table("memory").reserved for one in before.machine.values())
        assert reserved == 1 << 30
        await node.kill()
        await node.start()
        assert node.books.view.state.memory == before
        node.check()
        await node.manager.release("app")
        after = node.books.view.state.memory
        assert after is not None
        assert (after.bubbles, after.assignments) == ({}, {})
        assert sum(one.table("memory").reserved for one in after.machine.values()) == 0

    run(work, machine="2s4c2t@4Gi", config=WHOLE_MEMORY)


def test_memory_as_a_whole_without_cpus_as_a_whole() -> None:
    async def work(node: Harness) -> None:
        record = await node.admit(whole_pod("half", "1500m", shared=2))
        assert (record.phase, record.bubble, record.assignments) == (
            PodPhase.ADMITTED,
            CPUSet(),
            {},
        )
        assert [one.size for one in record.bubble_memory] == [1 << 30]
        await node.kill()
        await node.start()
        await node.manager.release("half")
        memory = node.books.view.state.memory
        assert memory is not None
        assert memory.bubbles == {}

    run(work, machine="2s4c2t@4Gi", config=WHOLE_MEMORY)


# ---------------------------------------------------------------------------------- other agents


@pytest.mark.parametrize("config", [WHOLE, WHOLE_MEMORY], ids=["cpus", "memory"])
def test_wherever_an_agent_dies_there_is_one_bubble(config: Any) -> None:
    """Neither a death while it is given, nor one while it is given back, leaves two, or a part."""

    async def life(node: MortalHarness) -> None:
        await admitted(node, whole_pod("app", "4", "1", shared=1, init=("2",)))
        await node.manager.release("app")
        await admitted(node, whole_pod("app", "2", "1", shared=1))

    async def dies(at: int, *, after: bool) -> bool:
        node = MortalHarness(machine="2s4c2t@4Gi", config=config)
        died = await next_starts(node, life, at, after=after)
        await node.settle()
        node.check()
        view = node.books.view
        assert len(view.state.ledger.bubbles) == len(view.pods.active)
        for pod in list(view.pods.active.values()):
            await node.manager.release(pod.uid)
        await node.settle()
        state = node.books.view.state
        assert state.ledger.default == state.ledger.limits.pool
        assert state.memory is None or (state.memory.bubbles, state.memory.assignments) == ({}, {})
        await node.kill()
        return died

    async def every() -> None:
        assert await every_death(dies) > 60

    run_virtually(every())


def test_the_next_agent_adopts_a_bubble_that_the_record_has_lost() -> None:
    async def work(node: Harness) -> None:
        empty = Copy(node)
        record = await admitted(node, APP)
        where = node.cpus("app")
        await node.kill()
        empty.put_back(node, promised=True)
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        assert node.books.view.state.ledger.bubbles == {"uid-app": record.bubble}
        assert node.cpus("app") == where

    run(work, machine=EIGHT_CORES, config=WHOLE)


def test_a_bubble_that_does_not_fit_any_more_is_refused_or_decided_again() -> None:
    async def work(node: Harness) -> None:
        await admitted(node, APP)
        await node.kill()
        node.config = replace(node.config, reserved_system_cpus=CPUSet([4]))
        with pytest.raises(MismatchError):
            await node.start()
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        bubble = node.books.view.state.ledger.bubbles["uid-app"]
        assert len(bubble) == 6
        assert 4 not in bubble
        assert CPUSet.union_of(map(CPUSet.parse, node.cpus("app").values())) == bubble

    run(work, machine=EIGHT_CORES, config=WHOLE)


def test_a_bubble_outlives_the_gate() -> None:
    """What was decided stays; who comes then has none."""

    async def work(node: Harness) -> None:
        record = await admitted(node, APP)
        where = node.cpus("app")
        await node.kill()
        node.config = replace(node.config, feature_gates={})
        await node.start()
        await node.settle()
        assert node.books.view.state.ledger.bubbles == {"uid-app": record.bubble}
        assert node.cpus("app") == where
        assert not (await node.admit(whole_pod("late", "2", "1"))).bubble
        await node.manager.release("app")
        assert node.books.view.state.ledger.bubbles == {}

    run(work, machine=EIGHT_CORES, config=WHOLE)
