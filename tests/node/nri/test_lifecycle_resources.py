"""Containers of a kubelet: their memory, and CPUs and memory near the devices that it gave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.node.nri.kubelet_devices import LIMIT
from pinfold.node.recovery.recovery import OnMismatch
from pinfold.ports.nri import RefusedError, Resources
from tests.scenes.lifecycle_harness import BEST_EFFORT, GIB, LifecycleHarness, guaranteed
from tests.scenes.manager_harness import ALL_MANAGERS, STATIC, run_virtually

NIC = "example.com/nic"
GPU = "example.com/gpu"
MEMORY = replace(ALL_MANAGERS, topology_manager_policy="best-effort")
RESTRICTED = replace(STATIC, topology_manager_policy="restricted")
WITHOUT_POLICY = replace(ALL_MANAGERS, topology_manager_policy="none")

Story = Callable[[LifecycleHarness], Coroutine[Any, Any, None]]


def story(
    config: NodeConfig = STATIC, machine: str = "2s4c2t"
) -> Callable[[Story], Callable[[], None]]:
    """A test on a node of two NUMA nodes: CPUs 0-7 and 8-15, 32 GiB each."""

    def decorate(test: Story) -> Callable[[], None]:
        @wraps(test)
        def runs() -> None:
            async def with_node() -> None:
                harness = LifecycleHarness(machine, config)
                await harness.start()
                await test(harness)
                await harness.settle()
                harness.check()
                await harness.kill()

            run_virtually(with_node())

        del runs.__wrapped__  # pytest would look for a fixture
        return runs

    return decorate


def wanting(cpus: float, memory: int) -> Resources:
    return replace(guaranteed(cpus), memory=memory)


# -------------------------------------------------------------------------------------- devices


@story()
async def test_cpus_come_from_the_node_of_the_device(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    await h.run(await h.pod("near"), "main", guaranteed(2))
    assert h.kernel() == {"near/main": "8-9"}
    await h.run(await h.pod("plain"), "main", guaranteed(2))
    assert (h.devices.asked, h.devices.unanswered, h.devices.problem) == (2, 0, "")


@story()
async def test_who_gets_no_cpus_is_not_asked_about(h: LifecycleHarness) -> None:
    await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    await h.run(await h.pod("api"), "main", guaranteed(1.5))
    assert h.kubelet.asked == []


@story()
async def test_what_does_not_fit_near_the_device_is_elsewhere(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    await h.run(await h.pod("big"), "main", guaranteed(8))
    assert h.kernel() == {"big/main": "8-15"}
    await h.run(await h.pod("near"), "main", guaranteed(2))
    assert h.kernel()["near/main"] == "2-3"
    assert h.problems == []


@story(RESTRICTED)
async def test_a_strict_policy_refuses_what_cannot_be_aligned(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    await h.run(await h.pod("big"), "main", guaranteed(7))
    await h.run(await h.pod("bigger"), "main", guaranteed(7))
    before = h.books.view.state
    with pytest.raises(RefusedError, match="TopologyAffinityError: Resources cannot be allocated"):
        await h.run(await h.pod("near"), "main", guaranteed(2))
    assert h.books.view.state == before


@story(RESTRICTED)
async def test_devices_of_two_nodes_are_refused_by_a_strict_policy(h: LifecycleHarness) -> None:
    h.kubelet.give("far", "main", NIC, n1=1)
    h.kubelet.give("far", "main", GPU, g0=0)
    with pytest.raises(RefusedError, match="TopologyAffinityError"):
        await h.run(await h.pod("far"), "main", guaranteed(2))


@story(replace(RESTRICTED, topology_manager_scope="pod"))
async def test_scope_pod_sees_the_devices_of_the_whole_pod(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "second", NIC, n1=1)
    pod = await h.pod("near")
    await h.run(pod, "first", guaranteed(2))
    # Of the pod's containers only the first is there yet, and it has no device.
    assert h.kernel() == {"near/first": "2-3"}
    with pytest.raises(RefusedError, match="TopologyAffinityError"):
        await h.run(pod, "second", guaranteed(2))


# ------------------------------------------------------------------------------- no good answer


@story(RESTRICTED)
async def test_a_kubelet_that_is_too_slow_delays_no_container(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    h.kubelet.delay = 10.0
    await h.run(await h.pod("near"), "main", guaranteed(2))
    assert h.kernel() == {"near/main": "2-3"}
    await h.run(await h.pod("other"), "main", guaranteed(2))
    (problem,) = h.problems
    assert f"no answer within {LIMIT:g} s" in problem
    assert h.devices.unanswered == 2
    h.kubelet.delay = 0.01
    h.kubelet.give("third", "main", NIC, n1=1)
    await h.run(await h.pod("third"), "main", guaranteed(2))
    assert h.kernel()["third/main"] == "8-9"
    assert h.devices.problem == ""


@story()
async def test_others_go_on_while_a_kubelet_is_waited_for(h: LifecycleHarness) -> None:
    h.kubelet.delay = LIMIT - 0.05
    owner, other = await h.pod("owner"), await h.pod("other", "burstable")
    slow = asyncio.create_task(h.run(owner, "main", guaranteed(2)))
    await asyncio.sleep(0.01)
    began = asyncio.get_running_loop().time()
    await h.run(other, "main", BEST_EFFORT)
    assert asyncio.get_running_loop().time() - began < 0.1
    assert not slow.done()
    await slow
    h.check()


@story()
async def test_a_failure_is_told_once_and_counted(h: LifecycleHarness) -> None:
    h.kubelet.faults.fail_at = {1, 2, 4}
    for number in range(5):
        await h.run(await h.pod(f"p{number}"), "main", guaranteed(1))
    assert len(h.problems) == 2, "it was answered in between"
    assert (h.devices.asked, h.devices.unanswered, h.devices.problem) == (5, 3, "")


@story(RESTRICTED)
async def test_who_was_placed_without_an_answer_keeps_its_cpus(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    h.kubelet.faults.fail_at = {1}
    pod = await h.pod("near")
    first = await h.run(pod, "main", guaranteed(2))
    assert h.kernel() == {"near/main": "2-3"}
    await h.kill()
    await h.start()
    assert h.kernel() == {"near/main": "2-3"}
    await h.node.stop(first)
    await h.run(pod, "main", guaranteed(2))
    assert h.kernel() == {"near/main": "2-3"}


@story()
async def test_what_was_created_meanwhile_is_brought_near(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    old = await h.run(await h.pod("old"), "main", guaranteed(2))
    await h.kill()
    await h.run(await h.pod("near"), "main", guaranteed(2))
    h.kubelet.asked.clear()
    await h.start()
    assert h.kernel() == {"old/main": "2-3", "near/main": "8-9"}
    assert h.kubelet.asked == [None], "all at once"
    assert old.runs


@story()
async def test_a_resize_stays_near(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    near = await h.run(await h.pod("near"), "main", guaranteed(2))
    await h.node.resize(near, guaranteed(4))
    assert h.kernel() == {"near/main": "8-11"}


# --------------------------------------------------------------------------------------- memory


@story(MEMORY)
async def test_memory_comes_from_the_node_of_cpus_and_device(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    near = await h.run(await h.pod("near"), "main", guaranteed(2))
    await h.run(await h.pod("plain"), "main", guaranteed(2))
    await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    assert h.mems() == {"near/main": "1", "plain/main": "0", "web/main": ""}
    assert near.seen.resources.mems == "1"
    (block,) = h.store.pods["uid-near"].memory["main"]
    assert (block.numa_affinity, block.type, block.size) == ((1,), "memory", GIB)


@story(WITHOUT_POLICY)
async def test_policy_none_keeps_everything_near_the_device(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    await h.run(await h.pod("near"), "main", guaranteed(2))
    assert (h.kernel(), h.mems()) == ({"near/main": "8-9"}, {"near/main": "1"})


@story(MEMORY)
async def test_memory_without_cpus_of_its_own(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    await h.run(await h.pod("near"), "main", guaranteed(0.5))
    assert h.mems() == {"near/main": "1"}
    assert h.kernel() == {"near/main": "1-15"}


@story(MEMORY)
async def test_memory_goes_back_with_the_pod_and_the_container(h: LifecycleHarness) -> None:
    pod = await h.pod("two")
    first = await h.run(pod, "first", wanting(2, 20 * GIB))
    await h.run(pod, "second", wanting(2, 20 * GIB))
    assert h.mems() == {"two/first": "0", "two/second": "1"}
    await h.node.stop(first)
    h.check()
    await h.node.remove(first)
    h.check()
    await h.run(await h.pod("next"), "main", wanting(2, 20 * GIB))
    assert h.mems()["next/main"] == "0"
    await h.node.stop_pod(pod)
    assert set(h.books.view.state.memory_of("uid-two")) == set()


@story(ALL_MANAGERS)
async def test_memory_that_cannot_be_had_refuses_and_nothing_is_held(h: LifecycleHarness) -> None:
    await h.run(await h.pod("a"), "main", wanting(2, 30 * GIB))
    await h.run(await h.pod("b"), "main", wanting(2, 30 * GIB))
    before = h.books.view.state
    with pytest.raises(RefusedError, match="failed to find NUMA nodes"):
        await h.run(await h.pod("c"), "main", wanting(2, 30 * GIB))
    assert h.books.view.state == before


@story(MEMORY)
async def test_the_next_attempt_has_the_memory_of_the_last(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    first = await h.run(pod, "main", wanting(2, 20 * GIB))
    await h.node.stop(first)
    await h.run(await h.pod("other"), "main", wanting(2, 20 * GIB))
    await h.run(pod, "main", wanting(2, 20 * GIB))
    assert h.mems() == {"other/main": "1", "db/main": "0"}


@story(MEMORY)
async def test_what_an_init_container_had_is_used_again(h: LifecycleHarness) -> None:
    pod = await h.pod("app")
    init = await h.run(pod, "init", wanting(2, 20 * GIB))
    await h.node.stop(init)
    await h.run(pod, "main", wanting(2, 25 * GIB))
    assert h.mems() == {"app/main": "0"}
    await h.settle()
    h.check()


@story(MEMORY)
async def test_memory_survives_the_agent(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    near = await h.run(await h.pod("near"), "main", wanting(2, 20 * GIB))
    before = h.books.view.state
    await h.kill()
    await h.start()
    assert h.books.view.state == before
    h.check()
    await h.kill()
    await h.node.stop_pod(near.pod)
    await h.start()
    assert h.books.view.state.memory_of("uid-near") == {}


@story(MEMORY)
async def test_what_was_created_meanwhile_gets_its_memory(h: LifecycleHarness) -> None:
    await h.kill()
    h.kubelet.give("near", "main", NIC, n1=1)
    near = await h.run(await h.pod("near"), "main", guaranteed(2))
    assert h.mems() == {"near/main": ""}
    await h.start()
    assert h.mems() == {"near/main": "1"}
    await h.settle()
    assert near.seen.resources.mems == "1", "the runtime's record follows"


@story(ALL_MANAGERS)
async def test_who_cannot_have_its_memory_any_more_runs_among_the_others(
    h: LifecycleHarness,
) -> None:
    await h.run(await h.pod("a"), "main", wanting(2, 30 * GIB))
    await h.run(await h.pod("b"), "main", wanting(2, 30 * GIB))
    await h.kill()
    await h.run(await h.pod("c"), "main", wanting(2, 30 * GIB))
    await h.start()
    assert h.mems() == {"a/main": "0", "b/main": "1", "c/main": ""}
    assert h.kernel()["c/main"] == str(h.books.view.pool)
    assert any("was created while nobody answered" in problem for problem in h.problems)


@story(RESTRICTED)
async def test_who_finds_no_memory_when_that_is_turned_on_keeps_its_cpus(
    h: LifecycleHarness,
) -> None:
    await h.run(await h.pod("a"), "main", wanting(2, 20 * GIB))
    await h.run(await h.pod("b"), "main", wanting(2, 20 * GIB))
    before = h.kernel()
    assert before == {"a/main": "2-3", "b/main": "4-5"}
    await h.kill()
    h.config = ALL_MANAGERS
    await h.start(OnMismatch.REPAIR)
    assert h.kernel() == before
    assert h.mems() == {"a/main": "0", "b/main": ""}
    assert any("keeps its CPUs" in problem for problem in h.problems)


@story(MEMORY)
async def test_a_resize_of_cpus_leaves_memory_where_it_is(h: LifecycleHarness) -> None:
    h.kubelet.give("near", "main", NIC, n1=1)
    near = await h.run(await h.pod("near"), "main", guaranteed(2))
    await h.node.resize(near, guaranteed(4))
    assert (h.kernel(), h.mems()) == ({"near/main": "8-11"}, {"near/main": "1"})
    await h.node.resize(near, wanting(4, 8 * GIB))
    (block,) = h.store.pods["uid-near"].memory["main"]
    assert (block.numa_affinity, block.size) == ((1,), 8 * GIB)


@story(MEMORY)
async def test_a_resize_that_finds_no_memory_changes_nothing(h: LifecycleHarness) -> None:
    one = await h.run(await h.pod("one"), "main", wanting(2, 20 * GIB))
    before = h.books.view.state
    with pytest.raises(RefusedError):
        await h.node.resize(one, wanting(2, 90 * GIB))
    assert h.books.view.state == before
    assert h.mems() == {"one/main": "0"}


@story(MEMORY)
async def test_a_kubelet_that_gives_memory_itself_is_told_of_once(h: LifecycleHarness) -> None:
    await h.run(await h.pod("same"), "main", replace(guaranteed(2), mems="0"))
    assert h.problems == []
    for number in range(2):
        await h.run(await h.pod(f"p{number}"), "main", replace(guaranteed(1), mems="1"))
    assert set(h.mems().values()) == {"0"}
    (problem,) = h.problems
    assert "two memory managers are on" in problem


@story(MEMORY)
async def test_who_declines_cpus_has_its_memory_all_the_same(h: LifecycleHarness) -> None:
    shy = replace(await h.pod("shy"), annotations={"exclusive-cpus.pinfold.dev/pod": "false"})
    await h.run(shy, "main", guaranteed(2))
    assert (h.kernel(), h.mems()) == ({"shy/main": "1-15"}, {"shy/main": "0"})


@story(MEMORY)
async def test_a_store_that_fails_holds_nothing(h: LifecycleHarness) -> None:
    before = h.books.view.state
    h.store.faults.fail_at = {h.store.faults.calls + 1}
    with pytest.raises(RefusedError, match="UnexpectedAdmissionError"):
        await h.run(await h.pod("db"), "main", guaranteed(2))
    assert h.books.view.state == before
    h.cgroups.faults.fail_at = {h.cgroups.faults.calls + 1}
    with pytest.raises(RefusedError, match="UnexpectedAdmissionError"):
        await h.run(await h.pod("db"), "main", guaranteed(2))
    assert h.books.view.state == before
    assert "uid-db" not in h.store.pods
