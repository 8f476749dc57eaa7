"""What ends without the agent being told keeps no CPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.nri.lost_removals import PERIOD
from pinfold.ports.cgroups import ObservedCgroups
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.nri import Container, ContainerState
from tests.scenes.lifecycle_harness import BEST_EFFORT, LifecycleHarness, guaranteed
from tests.scenes.manager_harness import run_virtually

Story = Callable[[LifecycleHarness], Coroutine[Any, Any, None]]


def _play(story: Story, *, listed: bool) -> None:
    async def with_node() -> None:
        harness = LifecycleHarness(listed=listed)
        await harness.start()
        await story(harness)
        await harness.settle()
        harness.check()
        await harness.kill()

    run_virtually(with_node())


def over_cri(story: Story) -> Callable[[], None]:
    """With the runtime's own list."""

    def runs() -> None:
        _play(story, listed=True)

    return runs


def either_way(story: Story) -> Callable[[bool], None]:
    """With the runtime's own list, and with what the kernel says."""

    @pytest.mark.parametrize("listed", [True, False])
    def runs(listed: bool) -> None:
        _play(story, listed=listed)

    return runs


def owned(h: LifecycleHarness) -> str:
    return str(h.books.view.state.ledger.exclusive)


@either_way
async def test_a_pod_that_was_removed_unheard_gives_its_cpus_back(h: LifecycleHarness) -> None:
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    owner = await h.run(await h.pod("db"), "main", guaranteed(2))
    with h.unheard():
        await h.node.stop_pod(owner.pod)
    await h.lost.look()
    assert owned(h) == "2-3", "once is no proof"
    await h.lost.look()
    assert owned(h) == ""
    assert shared.kernel == CPUSet(range(1, 8))
    assert "uid-db" not in h.pods.by_uid
    assert "uid-db" not in h.store.pods
    assert h.problems == ["default/db: the pod is gone, and nobody was told"]


@either_way
async def test_synchronize_tells_of_one_whose_end_is_told_to_nobody(h: LifecycleHarness) -> None:
    gone = await h.run(await h.pod("db"), "main", guaranteed(2))
    other = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    lasting = await h.run(await h.pod("api"), "main", guaranteed(1))
    pods = list(h.node.pods.values())
    shown = [one.seen for one in h.node.containers.values()]
    await h.kill()
    await h.node.stop_pod(gone.pod)
    await h.node.stop_pod(other.pod)
    await h.start()
    plugin = h.node.plugin
    assert plugin is not None
    # The state that the runtime had listed before the two ended.
    await plugin.synchronize(pods, shown)
    assert owned(h) == "1-3"
    await h.look_twice()
    assert h.books.view.state.ledger.exclusive == lasting.kernel
    assert set(h.pods.by_uid) == {"uid-api"}
    assert set(h.books.view.pods.active) == {"uid-api"}


@over_cri
async def test_a_container_that_was_removed_unheard(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    first = await h.run(pod, "first", guaranteed(2))
    await h.run(pod, "second", guaranteed(2))
    with h.unheard():
        await h.node.stop(first)
        await h.node.remove(first)
    await h.look_twice()
    assert owned(h) == "4-5"
    assert "first" not in h.pods.by_uid["uid-db"].containers


@either_way
async def test_one_that_has_ended_keeps_its_cpus_for_its_next_attempt(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    first = await h.run(pod, "main", guaranteed(2))
    with h.unheard():
        await h.node.stop(first)
    await h.look_twice()
    await h.look_twice()
    assert owned(h) == "2-3"
    assert h.pods.by_uid["uid-db"].containers["main"].state is ContainerState.STOPPED
    second = await h.run(pod, "main", guaranteed(2))
    await h.node.remove(first)
    await h.look_twice()
    assert second.kernel == CPUSet([2, 3])
    assert h.books.statuses[ContainerKey("uid-db", "main")].attempt == 1


@either_way
async def test_a_pod_that_was_stopped_unheard(h: LifecycleHarness) -> None:
    """As every pod of before containerd's own start: it has forgotten that it runs."""
    owner = await h.run(await h.pod("job"), "main", guaranteed(2))
    with h.unheard():
        await h.node.end_pod(owner.pod)
    await h.look_twice()
    assert owned(h) == ""
    assert not h.books.view.pods.active
    await h.look_twice()
    assert len(h.problems) == 1
    await h.node.stop_pod(owner.pod)
    assert not h.pods.by_uid


@either_way
async def test_pods_without_containers_are_forgotten(h: LifecycleHarness) -> None:
    empty, lasting = await h.pod("empty"), await h.pod("lasting")
    with h.unheard():
        await h.node.stop_pod(empty)
    await h.look_twice()
    await h.look_twice()
    assert set(h.pods.by_uid) == {lasting.uid}
    assert h.problems == []


@either_way
async def test_what_lives_is_left_alone(h: LifecycleHarness) -> None:
    for number in range(3):
        await h.run(await h.pod(f"db{number}"), "main", guaranteed(1))
    await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    before, entries = h.kernel(), len(h.store.entries)
    for _ in range(4):
        await h.lost.look()
    assert (h.kernel(), len(h.store.entries), h.problems) == (before, entries, [])
    assert h.asked_again == []


@over_cri
async def test_a_container_that_is_being_made_is_not_missing(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    plugin = h.node.plugin
    assert plugin is not None
    seen = Container("slow", pod.id, "main", resources=guaranteed(2), cgroups_path="/slow")
    await plugin.create_container(pod, seen)
    for _ in range(3):
        await h.lost.look()
    assert owned(h) == "2-3"
    await plugin.stop_pod_sandbox(pod)


@either_way
async def test_processes_in_the_cgroup_hold_the_cpus(h: LifecycleHarness) -> None:
    """Gone for the runtime, and its processes are still there: nobody else gets its CPUs."""
    owner = await h.run(await h.pod("db"), "main", guaranteed(2))
    there = (await h.cgroups.observe()).containers
    observe = h.cgroups.observe

    async def stuck() -> ObservedCgroups:
        return replace(await observe(), containers=there)

    h.cgroups.observe = stuck  # type: ignore[method-assign] # a process that cannot be killed
    with h.unheard():
        await h.node.stop_pod(owner.pod)
    for _ in range(3):
        await h.lost.look()
    assert owned(h) == "2-3"
    h.cgroups.observe = observe  # type: ignore[method-assign] # it has ended
    await h.lost.look()
    assert owned(h) == ""


@over_cri
async def test_a_pod_whose_sandbox_was_replaced_unheard(h: LifecycleHarness) -> None:
    """The old sandbox is removed; the containers of the new one are the pod's."""
    old = await h.pod("db")
    first = await h.run(old, "main", guaranteed(2))
    await h.node.stop(first)
    await h.node.end_pod(old)
    new = await h.pod("db")
    second = await h.run(new, "main", guaranteed(2))
    plugin = h.node.plugin
    assert plugin is not None
    for pods in ([old, new], [new, old]):
        await plugin.synchronize(pods, [one.seen for one in h.node.containers.values()])
        assert h.pods.by_uid["uid-db"].sandbox.id == new.id
    with h.unheard():
        await h.node.stop_pod(old)
    await h.look_twice()
    assert h.books.view.state.ledger.cpus_of("uid-db", "main") == second.kernel == CPUSet([2, 3])
    with h.unheard():
        await h.node.stop_pod(new)
    await h.look_twice()
    assert owned(h) == ""


@over_cri
async def test_containers_that_nobody_told_of_are_asked_for_once(h: LifecycleHarness) -> None:
    pod = await h.pod("late")
    with h.unheard():
        late = await h.run(pod, "main", guaranteed(2))
    h.busy = True
    for _ in range(3):
        await h.lost.look()
    assert len(h.asked_again) == 1
    h.busy = False
    for _ in range(6):
        await h.lost.look()
    why = f"the runtime has 1 containers that it has not told of, such as {late.seen.id}"
    assert h.asked_again == [why, why]
    plugin = h.node.plugin
    assert plugin is not None
    await h.node.connect(plugin)
    assert late.kernel == CPUSet([2, 3])


@either_way
async def test_one_whose_creation_was_told_to_nobody_starts_on_its_cpus(
    h: LifecycleHarness,
) -> None:
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    pod = await h.pod("db")
    with h.unheard():
        owner = await h.node.create(pod, "main", guaranteed(2))
    await h.node.start(owner)
    assert h.node.starts[-1] == (owner.key, CPUSet([2, 3]))
    assert (owner.kernel, shared.kernel) == (CPUSet([2, 3]), CPUSet([1, 4, 5, 6, 7]))
    assert h.problems == []


@over_cri
async def test_while_nobody_says_what_exists_nothing_is_missing(h: LifecycleHarness) -> None:
    owner = await h.run(await h.pod("db"), "main", guaranteed(2))
    looking = asyncio.create_task(h.lost.run())
    h.node.listing_faults.fail_at = {2, 3, 5}
    with h.unheard():
        await h.node.stop_pod(owner.pod)
    await asyncio.sleep(5.5 * PERIOD)
    assert owned(h) == "2-3", "it was never missing twice in a row"
    assert len([text for text in h.problems if "cannot be looked for" in text]) == 2
    await asyncio.sleep(2 * PERIOD)
    assert owned(h) == ""
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


@pytest.mark.parametrize("fails", [False, True])
def test_another_process_of_the_same_number_is_not_the_sandbox(fails: bool) -> None:
    """Also where nothing could be looked at in between."""

    def unread(pid: int) -> int:
        raise CgroupError(f"/proc/{pid}: Too many open files")

    async def story(h: LifecycleHarness) -> None:
        owner = await h.run(await h.pod("db"), "main", guaranteed(2))
        began = h.node.began
        await h.lost.look()
        if fails:
            h.node.began = unread  # type: ignore[method-assign] # a fault of the kernel
            with pytest.raises(CgroupError):
                await h.lost.look()
        with h.unheard():
            await h.node.stop_pod(owner.pod)
        h.node.began = lambda pid: (began(pid) or 0) + 7  # type: ignore[method-assign] # numbers are used again
        await h.look_twice()
        assert owned(h) == ""

    _play(story, listed=False)


@given(st.data(), st.booleans())
def test_whatever_goes_unheard_no_cpu_stays_with_the_gone(
    data: st.DataObject,
    listed: bool,
) -> None:
    async def life() -> None:
        h = LifecycleHarness(machine="2s4c2t", listed=listed)
        await h.start()
        pods = {}
        for number in range(data.draw(st.integers(1, 4))):
            pod = await h.pod(f"p{number}")
            pods[pod.uid] = pod
            for name in ("main", "side")[: data.draw(st.integers(0, 2))]:
                await h.run(pod, name, guaranteed(1))
        if data.draw(st.booleans()):
            await h.lost.look()
        with h.unheard():
            for pod in pods.values():
                match data.draw(st.sampled_from(("stay", "end", "stop", "remove"))):
                    case "end":
                        await h.node.end_pod(pod)
                    case "remove":
                        await h.node.stop_pod(pod)
                    case "stop":
                        for one in list(h.node.containers.values()):
                            if one.pod.id == pod.id and data.draw(st.booleans()):
                                await h.node.stop(one)
        for _ in range(3):
            await h.lost.look()
        up = {pod.uid for pod in h.node.pods.values() if pod.id not in h.node.stopped_pods}
        kept = {one.pod.uid for one in h.node.containers.values()} & up
        assert h.books.view.state.ledger.assignments.keys() == kept
        assert h.books.view.pods.active.keys() == kept
        assert h.pods.by_uid.keys() <= {pod.uid for pod in h.node.pods.values()}
        h.check()
        await h.kill()

    run_virtually(life())
