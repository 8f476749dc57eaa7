"""Containers that a runtime starts for a kubelet: who gets which CPUs, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import ContainerKey, RuntimeFailedError
from pinfold.ports.nri import Container, RefusedError, Resources
from pinfold.ports.records import PodPhase
from pinfold.ports.runtime import ContainerState
from tests.scenes.lifecycle_harness import (
    BEST_EFFORT,
    GIB,
    LifecycleHarness,
    guaranteed,
    story,
)
from tests.scenes.manager_harness import run_virtually


@story
async def test_an_owner_and_those_that_share(h: LifecycleHarness) -> None:
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    assert h.kernel() == {"web/main": "1-7"}
    owner = await h.run(await h.pod("db"), "main", guaranteed(2))
    assert h.kernel() == {"web/main": "1,4-7", "db/main": "2-3"}
    assert h.node.starts[-1] == (owner.key, CPUSet([2, 3]))
    assert owner.seen.resources.cpu_quota == -1
    await h.settle()
    assert h.recorded() == h.kernel()
    assert shared.seen.resources.cpus == "1,4-7"
    await h.node.stop_pod(owner.pod)
    assert h.kernel() == {"web/main": "1-7"}
    await h.settle()
    assert h.recorded() == h.kernel()


@story
async def test_whole_cpus_of_a_burstable_pod_are_not_exclusive(h: LifecycleHarness) -> None:
    await h.run(await h.pod("web", "burstable"), "main", guaranteed(2))
    await h.run(await h.pod("api"), "main", guaranteed(1.5))
    assert h.kernel() == {"web/main": "1-7", "api/main": "1-7"}


@story
async def test_a_burstable_pod_that_asks_for_memory_only_stays_one(h: LifecycleHarness) -> None:
    await h.run(await h.pod("cache", "burstable"), "main", BEST_EFFORT)
    await h.run(await h.pod("batch", "besteffort"), "main", BEST_EFFORT)
    classes = {one.name: one.workload.pod.qos.value for one in h.books.view.pods.active.values()}
    assert classes == {"default/cache": "Burstable", "default/batch": "BestEffort"}


@story
async def test_huge_pages_have_the_kubelets_names_for_their_sizes(h: LifecycleHarness) -> None:
    limits = {"2MB": 4 << 20, "1GB": 1 << 30, "64KB": 0}
    await h.run(await h.pod("db"), "main", replace(guaranteed(2), hugepages=limits))
    (container,) = h.books.view.pods.active["uid-db"].workload.pod.containers
    asked = {name: amount.value() for name, amount in container.requests.items()}
    assert asked == {
        "cpu": 2,
        "memory": GIB,
        "hugepages-2Mi": 4 << 20,
        "hugepages-1Gi": 1 << 30,
    }


@story
async def test_a_refusal_says_why_and_leaves_nothing(h: LifecycleHarness) -> None:
    pod = await h.pod("big")
    with pytest.raises(
        RefusedError,
        match=r"^UnexpectedAdmissionError: .*not enough cpus available to satisfy request: "
        r"requested=8, available=7",
    ):
        await h.node.create(pod, "main", guaranteed(8))
    assert h.books.view.state.ledger.exclusive == CPUSet()
    (failed,) = h.books.view.pods.ended.values()
    assert (failed.phase, failed.reason) == (PodPhase.REJECTED, "UnexpectedAdmissionError")
    assert h.books.counters.rejections == {"UnexpectedAdmissionError": 1}
    assert [entry.kind for entry in h.store.entries] == ["rejected"]
    # The kubelet tries again, and now it fits.
    await h.run(pod, "main", guaranteed(3))
    assert not h.books.view.pods.ended


@story
async def test_the_annotation_declines(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    annotations = {"exclusive-cpus.pinfold.dev/container.side": "false"}
    pod = h.node.pods[pod.id] = type(pod)(
        pod.id, pod.uid, pod.name, "default", annotations=annotations, cgroup_parent="/kubepods/p"
    )
    await h.run(pod, "main", guaranteed(1))
    await h.run(pod, "side", guaranteed(1))
    assert h.kernel() == {"db/main": "1", "db/side": "2-7"}


@story
async def test_an_annotation_that_is_none_is_said_once(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    pod = h.node.pods[pod.id] = replace(pod, annotations={"smt-isolte.pinfold.dev/pod": "true"})
    del h.pods.by_uid[pod.uid]
    await h.run(pod, "main", guaranteed(1))
    await h.run(pod, "side", guaranteed(1))
    (problem,) = h.problems
    assert problem == (
        "default/db: annotation smt-isolte.pinfold.dev/pod: Pinfold has no such annotation; "
        "did you mean smt-isolate.pinfold.dev/pod?"
    )


@story
async def test_one_is_alone_on_its_cores(h: LifecycleHarness) -> None:
    await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    annotations = {"smt-isolate.pinfold.dev/pod": "true"}
    pod = await h.node.run_pod("uid-quick", "quick", "/kubepods/poduid-quick", annotations)
    first = await h.run(pod, "main", guaranteed(2))
    assert h.kernel() == {"web/main": "1,6-7", "quick/main": "2,4"}
    assert h.node.starts[-1] == (first.key, CPUSet([2, 4]))
    await h.run(await h.pod("db"), "main", guaranteed(2))
    with pytest.raises(RefusedError, match=r"SMTIsolationError: .* only 0 of the 3"):
        await h.run(pod, "side", guaranteed(1))
    # Made anew with the same number, or another one.
    await h.node.stop(first)
    await h.run(pod, "main", guaranteed(1))
    assert h.kernel() == {"web/main": "1,4-5", "quick/main": "2", "db/main": "6-7"}
    await h.settle()
    assert h.recorded() == h.kernel()
    await h.kill()
    await h.start()
    assert h.kernel() == {"web/main": "1,4-5", "quick/main": "2", "db/main": "6-7"}
    assert str(h.books.view.state.ledger.idle_siblings) == "3"


@story
async def test_a_restart_gets_the_same_cpus(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    first = await h.run(pod, "main", guaranteed(2))
    other = await h.run(await h.pod("web"), "main", guaranteed(2))
    await h.node.stop(first)
    second = await h.run(pod, "main", guaranteed(2))
    await h.node.remove(first)
    assert second.kernel == CPUSet([2, 3])
    assert other.kernel == CPUSet([4, 5])
    assert h.books.statuses[ContainerKey("uid-db", "main")].attempt == 1


@story
async def test_news_of_an_earlier_attempt_are_not_the_next_ones(h: LifecycleHarness) -> None:
    """A runtime may tell late; the same is true of a container that never was here."""
    pod = await h.pod("db")
    first = await h.run(pod, "main", guaranteed(2))
    second = await h.run(pod, "main", guaranteed(2))
    plugin = h.node.plugin
    assert plugin is not None
    counters = h.books.counters
    counted = counters.container_starts, counters.container_exits
    await plugin.stop_container(pod, first.seen)
    await plugin.post_start_container(pod, first.seen)
    assert (counters.container_starts, counters.container_exits) == counted
    status = h.books.statuses[ContainerKey("uid-db", "main")]
    assert (status.id, status.state) == (second.seen.id, ContainerState.RUNNING)
    await h.node.stop(second)
    assert h.books.statuses[ContainerKey("uid-db", "main")].state is ContainerState.EXITED


@story
async def test_an_init_container_hands_its_cpus_on(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    init = await h.run(pod, "init", guaranteed(4))
    assert init.kernel == CPUSet([2, 3, 4, 5])
    await h.node.stop(init)
    main = await h.run(pod, "main", guaranteed(2))
    # What it does not need is everybody's again, unlike in a kubelet.
    assert main.kernel == CPUSet([2, 3])
    assert h.books.view.state.ledger.default == CPUSet([0, 1, 4, 5, 6, 7])


@story
async def test_a_removed_container_gives_its_cpus_back(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    first = await h.run(pod, "first", guaranteed(2))
    await h.run(pod, "second", guaranteed(2))
    await h.node.stop(first)
    assert h.books.view.state.ledger.exclusive == CPUSet([2, 3, 4, 5])
    await h.node.remove(first)
    assert h.books.view.state.ledger.exclusive == CPUSet([4, 5])
    second = next(iter(h.node.containers.values()))
    await h.node.stop(second)
    await h.node.remove(second)
    assert not h.books.view.pods.active


@story
async def test_a_restarted_agent_goes_on(h: LifecycleHarness) -> None:
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    owner = await h.run(await h.pod("db"), "main", guaranteed(2))
    gone = await h.run(await h.pod("gone"), "main", guaranteed(2))
    await h.kill()
    await h.node.stop_pod(gone.pod)
    late = await h.run(await h.pod("late"), "main", guaranteed(1))
    assert late.kernel == CPUSet(range(8))
    await h.start()
    assert h.kernel() == {"web/main": "4-7", "db/main": "2-3", "late/main": "1"}
    assert (owner.kernel, shared.kernel) == (CPUSet([2, 3]), CPUSet([4, 5, 6, 7]))
    h.check()
    await h.settle()
    assert h.recorded() == h.kernel()


@story
async def test_an_owner_that_was_created_while_no_agent_ran(h: LifecycleHarness) -> None:
    await h.kill()
    pod = await h.pod("db")
    owner = await h.run(pod, "main", guaranteed(2))
    assert (owner.kernel, owner.seen.resources.cpu_quota) == (CPUSet(range(8)), 200_000)
    await asyncio.sleep(6.2)
    waiting = await h.node.create(pod, "next", guaranteed(1))
    await h.start()
    assert owner.kernel == CPUSet([2, 3])
    told = (
        "default/db: adopted container main: it was created while no agent answered, ran shared "
        "for 6.2 s, and owns CPUs 2-3 from now on, without its CFS quota"
    )
    assert h.problems == [told], "one that has not run has lost nothing"
    await h.settle()
    # The runtime has written its record: CPUs, and no cap.
    assert (owner.seen.resources.cpus, owner.seen.resources.cpu_quota) == ("2-3", -1)
    assert (waiting.seen.resources.cpus, waiting.seen.resources.cpu_quota) == ("1", -1)
    assert h.ran_shared() == {"default/db main": 6.2}
    # It is told once, and known for as long as the container is there.
    h.problems.clear()
    await h.kill()
    await h.start()
    assert h.problems == []
    assert h.ran_shared() == {"default/db main": 6.2}
    await h.node.stop(owner)
    await h.run(pod, "main", guaranteed(2))
    assert h.ran_shared() == {}


def test_a_cap_is_taken_off_over_the_cri_too() -> None:
    async def story() -> None:
        h = LifecycleHarness(over_cri=True)
        owner = await h.run(await h.pod("db"), "main", guaranteed(2))
        await h.start()
        await h.settle()
        assert (owner.seen.resources.cpus, owner.seen.resources.cpu_quota) == ("2-3", -1)
        # The runtime has asked the agent before it wrote that: nothing is decided anew.
        assert [entry.kind for entry in h.store.entries] == ["adopted"]
        await h.kill()

    run_virtually(story())


@story
async def test_one_that_came_too_late_is_among_the_others(h: LifecycleHarness) -> None:
    await h.kill()
    late = await h.run(await h.pod("late"), "main", guaranteed(8))
    await h.start()
    assert late.kernel == CPUSet(range(1, 8))
    assert any("created while nobody answered" in text for text in h.problems)


@story
async def test_a_failing_disk_refuses_and_keeps_everything(h: LifecycleHarness) -> None:
    h.store.faults.fail_at = {h.store.faults.calls + 1}
    pod = await h.pod("db")
    with pytest.raises(RefusedError, match="no space left on device"):
        await h.node.create(pod, "main", guaranteed(2))
    assert not h.books.view.pods.active
    assert h.books.view.state.ledger.exclusive == CPUSet()
    await h.run(pod, "main", guaranteed(2))


@story
async def test_a_kernel_that_refuses_refuses_the_container(h: LifecycleHarness) -> None:
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    h.cgroups.faults.fail_at = {h.cgroups.faults.calls + 1}
    pod = await h.pod("db")
    with pytest.raises(RefusedError, match="could not be taken from the shared pool"):
        await h.node.create(pod, "main", guaranteed(2))
    assert shared.kernel == CPUSet(range(1, 8))
    assert not any(record.assignments for record in h.store.pods.values())


@story
async def test_what_the_runtime_writes_late_is_made_right(h: LifecycleHarness) -> None:
    """A record that was on its way when an owner came is older than the kernel."""
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    first = await h.run(await h.pod("a"), "main", guaranteed(2))
    gone = await h.run(await h.pod("gone"), "main", guaranteed(1))
    slow = asyncio.Event()
    update = h.node.update

    async def slowly(updates: Any) -> Any:
        await slow.wait()
        return await update(updates)

    h.node.update = slowly  # type: ignore[method-assign] # a slow runtime
    await h.node.stop_pod(gone.pod)
    await h.settle()
    second = await h.run(await h.pod("b"), "main", guaranteed(2))
    slow.set()
    await h.settle()
    assert shared.kernel == CPUSet([1, 6, 7])
    assert (first.kernel, second.kernel) == (CPUSet([2, 3]), CPUSet([4, 5]))
    assert shared.seen.resources.cpus == "1,6-7"


@story
async def test_a_runtime_that_does_not_answer_is_asked_again(h: LifecycleHarness) -> None:
    h.node.record_faults.fail_at = {1, 2}
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    owner = await h.run(await h.pod("a"), "main", guaranteed(2))
    await h.node.stop(owner)
    assert shared.seen.resources.cpus == "1,4-7"
    await h.node.stop_pod(owner.pod)
    await h.settle()
    assert shared.seen.resources.cpus == "1-7"
    assert sum("record of CPUs is behind" in text for text in h.problems) == 2


@story
async def test_a_creation_that_fails_after_the_answer_holds_nothing(h: LifecycleHarness) -> None:
    h.node.creation_faults.fail_at = {1}
    pod = await h.pod("db")
    with pytest.raises(RuntimeFailedError, match="disk is full"):
        await h.node.create(pod, "main", guaranteed(2))
    assert h.books.view.state.ledger.exclusive == CPUSet([2, 3])
    await asyncio.sleep(11)
    assert h.books.view.state.ledger.exclusive == CPUSet()
    assert any("was not created" in text for text in h.problems)
    await h.run(pod, "main", guaranteed(2))
    await asyncio.sleep(11)
    assert h.kernel() == {"db/main": "2-3"}


@story
async def test_a_creation_that_takes_long_is_taken_over(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    plugin = h.node.plugin
    assert plugin is not None
    seen = Container("slow", pod.id, "main", resources=guaranteed(2), cgroups_path="/kubepods/slow")
    await plugin.create_container(pod, seen)
    await asyncio.sleep(11)
    other = await h.run(await h.pod("web"), "main", guaranteed(2))
    assert other.kernel == CPUSet([2, 3])
    await plugin.post_create_container(pod, seen)
    assert h.books.view.state.ledger.cpus_of("uid-db", "main") == CPUSet([4, 5])
    await plugin.stop_pod_sandbox(pod)


@story
async def test_what_pinfold_tells_wins_over_what_is_asked_for(h: LifecycleHarness) -> None:
    plugin = h.node.plugin
    assert plugin is not None
    for name, resources, expected in (
        ("own", guaranteed(2), ("2-3", "2")),
        ("shared", BEST_EFFORT, (None, None)),
    ):
        pod = await h.pod(name)
        asked = frozenset({"PINFOLD_CPUS", "PINFOLD_SOCKET", "GOMAXPROCS", "PATH"})
        seen = Container(
            name, pod.id, "main", resources=resources, cgroups_path=f"/{name}", variables=asked
        )
        adjustment = await plugin.create_container(pod, seen)
        env = adjustment.env
        assert (env["PINFOLD_CPUS"], env.get("OMP_NUM_THREADS")) == expected
        assert env["PINFOLD_POD"] == f"default/{name}"
        # What the manifest says to Go is left alone, and so is what Pinfold does not tell.
        assert env.keys().isdisjoint({"GOMAXPROCS", "PINFOLD_SOCKET", "PATH"})
        words = "only Pinfold sets PINFOLD_CPUS; what the manifest says is passed over"
        assert any(words in problem for problem in h.problems)
        h.problems.clear()
        await plugin.remove_container(pod, seen)


def test_the_record_over_the_cri_is_never_older_than_the_kernel() -> None:
    """The runtime asks before it writes, and is told what holds then."""

    async def scenario() -> None:
        h = LifecycleHarness(over_cri=True)
        await h.start()
        shared = [
            await h.run(await h.pod(f"w{n}", "burstable"), "main", BEST_EFFORT) for n in range(20)
        ]
        owner = await h.run(await h.pod("a"), "main", guaranteed(2))
        entries = len(h.store.entries)
        await h.settle()
        assert {one.seen.resources.cpus for one in shared} == {"1,4-7"}
        assert owner.seen.resources.cpu_quota == -1
        assert len(h.store.entries) == entries, "what only follows is no decision"
        h.check()
        await h.kill()

    run_virtually(scenario())


def test_every_cpu_given_away_leaves_nobody_behind() -> None:
    async def scenario() -> None:
        config = NodeConfig(
            cpu_manager_policy="static",
            reserved_system_cpus=CPUSet([0]),
            cpu_manager_policy_options={"strict-cpu-reservation": "true"},
        )
        h = LifecycleHarness(config=config)
        await h.start()
        await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
        with pytest.raises(RefusedError, match="no CPU would be left"):
            await h.node.create(await h.pod("db"), "main", guaranteed(7))
        h.check()
        await h.kill()

    run_virtually(scenario())


def test_policy_none_keeps_containers_off_the_reserved_cpus() -> None:
    async def scenario() -> None:
        h = LifecycleHarness(
            config=NodeConfig(cpu_manager_policy="none", reserved_system_cpus=CPUSet([0, 4]))
        )
        await h.start()
        await h.run(await h.pod("db"), "main", guaranteed(2))
        assert h.kernel() == {"db/main": "1-3,5-7"}
        await h.kill()

    run_virtually(scenario())


@story
async def test_unknown_containers_and_stale_sandboxes_change_nothing(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    first = await h.run(pod, "main", guaranteed(2))
    plugin = h.node.plugin
    assert plugin is not None
    stranger = type(first.seen)("other", pod.id, "main")
    await plugin.stop_container(pod, stranger)
    await plugin.remove_container(pod, stranger)
    await plugin.post_start_container(pod, stranger)
    assert await plugin.update_container(pod, stranger, Resources(cpu_shares=2)) == ()
    await plugin.stop_pod_sandbox(type(pod)("older", pod.uid, "db", "default"))
    assert h.kernel() == {"db/main": "2-3"}


@story
async def test_a_mixed_container_follows_the_pool(h: LifecycleHarness) -> None:
    await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    lane = await h.pod("lane", mixed=True)
    one = await h.run(lane, "main", guaranteed(2.5))
    await h.run(lane, "side", guaranteed(0.5))
    assert h.kernel() == {"web/main": "1,4-7", "lane/main": "1-7", "lane/side": "1,4-7"}
    assert one.seen.resources.cpu_quota == -1
    assert h.books.view.state.ledger.assignments == {"uid-lane": {"main": CPUSet([2, 3])}}
    db = await h.pod("db")
    await h.run(db, "main", guaranteed(2))
    assert h.kernel() == {
        "web/main": "1,6-7",
        "lane/main": "1-3,6-7",
        "lane/side": "1,6-7",
        "db/main": "4-5",
    }
    await h.settle()
    assert h.recorded() == h.kernel(), "the runtime's record follows"
    await h.kill()
    await h.start()
    assert h.kernel()["lane/main"] == "1-3,6-7"
    await h.node.stop_pod(db)
    assert h.kernel()["lane/main"] == "1-7"


@story
async def test_a_burstable_pod_is_not_mixed(h: LifecycleHarness) -> None:
    pod = await h.pod("lane", "burstable", mixed=True)
    with pytest.raises(RefusedError, match=r"annotation mixed-cpus.*Burstable"):
        await h.run(pod, "main", guaranteed(2))
