"""What fails while containers of a kubelet come, change and go: no CPU is lost, and none shared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.nri.events import CREATION
from pinfold.node.reconciler import reconcile
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.nri import Container, PodSandbox, RefusedError
from pinfold.ports.records import Batch
from tests.scenes.lifecycle_harness import BEST_EFFORT, LifecycleHarness, guaranteed, story
from tests.scenes.manager_harness import run_virtually


def owned(h: LifecycleHarness) -> dict[str, str]:
    return {
        f"{uid}/{name}": str(cpus)
        for uid, pod in h.books.view.state.ledger.assignments.items()
        for name, cpus in pod.items()
    }


def refuse(h: LifecycleHarness, method: str, *names: str) -> list[str]:
    """Let the kernel refuse once for each of these containers; those that it has yet to refuse."""
    left, inner = list(names), getattr(h.cgroups, method)

    async def refusing(key: ContainerKey, *args: Any) -> Any:
        if key.name in left:
            left.remove(key.name)
            raise CgroupError(f"{key}: the kernel does not take it")
        return await inner(key, *args)

    setattr(h.cgroups, method, refusing)
    return left


def refuse_pool(h: LifecycleHarness) -> None:
    """Let the kernel refuse the next shared pool."""
    inner = h.cgroups.set_shared

    async def refusing(cpus: CPUSet) -> None:
        h.cgroups.set_shared = inner  # type: ignore[method-assign] # once
        raise CgroupError(f"{cpus}: the kernel does not take it")

    h.cgroups.set_shared = refusing  # type: ignore[method-assign] # once


@story
async def test_one_that_is_not_shown_is_not_ended(h: LifecycleHarness) -> None:
    """A runtime shows none of which it cannot tell; what is gone is found out elsewhere."""
    pod = await h.pod("db")
    first, second = [await h.run(pod, name, guaranteed(2)) for name in ("first", "second")]
    killed: list[ContainerKey] = []

    async def kill(key: ContainerKey, *, wait: float = 5.0) -> None:
        del wait
        killed.append(key)

    h.cgroups.kill = kill  # type: ignore[method-assign] # nobody may be ended here
    assert h.node.plugin is not None
    await h.node.plugin.synchronize([pod], [second.seen])
    assert await reconcile(h.books) == []
    assert (killed, h.kernel()) == ([], {"db/first": "2-3", "db/second": "4-5"})
    with h.unheard():
        await h.node.stop(first)
        await h.node.remove(first)
    await h.look_twice()
    assert owned(h) == {"uid-db/second": "4-5"}
    # Nor is one that is in no books.
    stray = ContainerKey("uid-gone", "main")
    await h.books.containers.end(stray)
    assert killed == []


@story
async def test_one_that_is_shown_as_ended_waits_for_its_next_attempt(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    first, second = [await h.run(pod, name, guaranteed(2)) for name in ("first", "second")]
    with h.unheard():
        await h.node.stop(first)
    assert h.node.plugin is not None
    await h.node.plugin.synchronize([pod], [first.seen, second.seen])
    assert h.books.counters.container_exits == 1
    assert owned(h) == {"uid-db/first": "2-3", "uid-db/second": "4-5"}
    await h.node.remove(first)
    assert owned(h) == {"uid-db/second": "4-5"}


@story
async def test_who_has_ended_before_the_agent_came_gives_its_cpus_back(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    first = await h.run(pod, "first", guaranteed(2))
    await h.run(pod, "second", guaranteed(2))
    await h.node.stop(first)
    await h.kill()
    await h.start()
    assert owned(h) == {"uid-db/first": "2-3", "uid-db/second": "4-5"}
    await h.node.remove(first)
    assert owned(h) == {"uid-db/second": "4-5"}


@story
async def test_a_cgroup_that_is_not_let_go_of_holds_no_cpus(h: LifecycleHarness) -> None:
    pod, other = await h.pod("db"), await h.pod("web")
    first = await h.run(pod, "first", guaranteed(2))
    await h.run(pod, "second", guaranteed(2))
    await h.run(other, "main", guaranteed(1))
    left = refuse(h, "remove", "first", "second", "main")
    await h.node.stop(first)
    await h.node.remove(first)
    assert owned(h) == {"uid-db/second": "4-5", "uid-web/main": "1"}
    told = "default/db: container first: uid-db/first: the kernel does not take it"
    assert h.problems == [told]
    # Several that are gone at once, unheard.
    with h.unheard():
        await h.node.stop_pod(pod)
        await h.node.stop_pod(other)
    await h.look_twice()
    assert (owned(h), left, h.pods.by_uid) == ({}, [], {})
    h.problems.clear()
    await h.look_twice()
    assert h.problems == []


@pytest.mark.parametrize("where", ["the others", "the owner"])
def test_a_move_that_fails_is_taken_back(where: str) -> None:
    @story
    async def run(h: LifecycleHarness) -> None:
        await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
        owner = await h.run(await h.pod("db"), "own", guaranteed(2))
        await h.settle()
        before, on_record = h.books.view.state.ledger, owner.seen.resources
        if where == "the others":
            refuse_pool(h)
        else:
            refuse(h, "place", "own")
        with pytest.raises(RefusedError, match=r"UnexpectedAdmissionError: .*does not take it"):
            await h.node.resize(owner, guaranteed(4))
        assert h.books.view.state.ledger.assignments == before.assignments
        assert h.books.counters.cgroup_failures == 1
        assert h.kernel() == {"web/main": "1,4-7", "db/own": "2-3"}
        assert (owner.seen.resources, h.ledger.behind) == (on_record, 0)
        await h.node.resize(owner, guaranteed(4))
        assert h.kernel() == {"web/main": "1,6-7", "db/own": "2-5"}

    run()


@story
async def test_who_cannot_be_brought_back_is_alone_until_it_is(h: LifecycleHarness) -> None:
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    owner = await h.run(await h.pod("db"), "own", guaranteed(2))
    refuse(h, "place", *["own"] * 7)
    await h.node.resize(owner, guaranteed(4))  # nobody knows yet
    assert (owned(h), shared.kernel) == ({"uid-db/own": "2-5"}, CPUSet([1, 6, 7]))
    await h.settle()
    assert h.kernel() == {"web/main": "1,4-7", "db/own": "2-3"}
    (said,) = h.told
    assert said.startswith("db/own: resizeAllocateCPUsError: uid-db/own: the kernel does not take")
    await reconcile(h.books)
    assert h.kernel() == {"web/main": "1,4-7", "db/own": "2-3"}


@story
async def test_who_moves_is_placed_when_the_others_have_left(h: LifecycleHarness) -> None:
    """Not before, though an older change of the runtime's record ends just then."""
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    pod = await h.pod("db")
    with h.unheard():
        owner = await h.run(pod, "own", guaranteed(2))
    update, set_shared = h.node.update, h.cgroups.set_shared
    asked, may_end, seen = asyncio.Event(), asyncio.Event(), []

    async def slowly(updates: Any) -> Sequence[str]:
        asked.set()
        await may_end.wait()
        return await update(updates)

    async def watched(cpus: CPUSet) -> None:
        assert may_end.is_set(), "the runtime may write an older set"
        await asyncio.sleep(0.1)
        seen.append((str(owner.kernel), str(shared.kernel)))
        await set_shared(cpus)

    h.node.update = slowly  # type: ignore[method-assign] # a slow runtime
    assert h.node.plugin is not None
    await h.node.connect(h.node.plugin)
    await asyncio.wait_for(asked.wait(), 60)
    h.cgroups.set_shared = watched  # type: ignore[method-assign] # the others take their time
    asyncio.get_running_loop().call_later(0.2, may_end.set)
    await h.node.resize(owner, guaranteed(4))
    assert seen[0] == ("2-3", "1,4-7")
    h.cgroups.set_shared = set_shared  # type: ignore[method-assign] # as before
    await h.settle()
    assert h.kernel() == {"web/main": "1,6-7", "db/own": "2-5"}


@story
async def test_an_owner_whose_cpus_are_not_in_force_is_refused(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    await h.run(pod, "side", BEST_EFFORT)
    refuse(h, "place", "own")
    for name in ("db", "new"):
        with pytest.raises(RefusedError, match="does not take it"):
            await h.node.create(await h.pod(name), "own", guaranteed(2))
        refuse(h, "place", "own")
    assert owned(h) == {}
    assert h.books.view.pods.active.keys() == {"uid-db"}
    assert h.pods.by_uid["uid-db"].containers.keys() == {"side"}
    assert h.kernel() == {"db/side": "1-7"}


@story
async def test_what_can_neither_hold_nor_be_taken_back_is_owed(h: LifecycleHarness) -> None:
    await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    pod = await h.pod("db")
    refuse_pool(h)
    h.store.faults.fail_at = {h.store.faults.calls + 2}
    with pytest.raises(RefusedError, match="could not be taken from the shared pool"):
        await h.node.create(pod, "own", guaranteed(2))
    assert owned(h) == {}
    assert h.store.pods["uid-db"].assignments == {"own": CPUSet([2, 3])}
    await asyncio.sleep(1)
    assert h.store.pods.keys() == {"uid-web"}


@story
async def test_who_is_taken_over_waits_until_the_others_have_left(h: LifecycleHarness) -> None:
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    pod = await h.pod("db")
    with h.unheard():
        owner = await h.node.create(pod, "main", guaranteed(2))
    assert h.node.plugin is not None
    h.problems.clear()
    refuse_pool(h)
    await h.node.plugin.post_create_container(pod, owner.seen)
    assert owned(h) == {"uid-db/main": "2-3"}
    assert shared.kernel == CPUSet(range(1, 8))
    assert h.cgroups.all.known.keys() == {shared.key}
    (told,) = h.problems
    assert told.startswith("None: who was taken over waits for its CPUs, as others may be on")
    await h.node.start(owner)
    assert h.node.starts[-1] == (owner.key, CPUSet([2, 3]))
    assert h.kernel() == {"web/main": "1,4-7", "db/main": "2-3"}


@story
async def test_an_answer_that_nobody_waits_for_is_known_all_the_same(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    assert h.node.plugin is not None
    commit, writing = h.store.commit, asyncio.Event()

    async def slowly(batch: Any) -> None:
        writing.set()
        await asyncio.sleep(1)
        await commit(batch)

    h.store.commit = slowly  # type: ignore[method-assign] # a slow disk
    seen = Container("c-own", pod.id, "own", resources=guaranteed(2), cgroups_path="/own")
    asking = asyncio.create_task(h.node.plugin.create_container(pod, seen))
    await writing.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(2)
    assert owned(h) == {"uid-db/own": "2-3"}
    await h.node.plugin.remove_container(pod, seen)
    assert (owned(h), h.books.view.pods.active) == ({}, {})


@pytest.mark.parametrize("whole", [True, False], ids=["pod", "container"])
def test_who_is_forgotten_is_so_everywhere_though_the_runtime_has_gone(whole: bool) -> None:
    """Also what is not written yet when its connection ends."""

    @story
    async def it_is(h: LifecycleHarness) -> None:
        pod = await h.pod("db")
        gone = await h.run(pod, "gone", guaranteed(2))
        await h.run(pod, "stays", guaranteed(1))
        await h.node.stop(gone)
        del h.node.containers[gone.seen.id]
        assert h.node.plugin is not None
        commit, begun, go = h.store.commit, asyncio.Event(), asyncio.Event()

        async def slowly(batch: Batch) -> None:
            begun.set()
            await go.wait()
            await commit(batch)

        h.store.commit = slowly  # type: ignore[method-assign] # a disk that takes its time
        event = h.node.plugin.stop_pod_sandbox(pod) if whole else None
        task = asyncio.create_task(event or h.node.plugin.remove_container(pod, gone.seen))
        await begun.wait()
        task.cancel()
        await asyncio.wait({task})
        go.set()
        async with h.books.change():
            left = set() if whole else {ContainerKey(pod.uid, "stays")}
            assert h.books.containers.seen.statuses.keys() == left
            assert h.cgroups.all.known.keys() == left
            assert h.pods.by_uid[pod.uid].containers.keys() == {key.name for key in left}
            assert owned(h).keys() == {f"{key.pod_uid}/{key.name}" for key in left}
        if whole:
            del h.node.pods[pod.id]
            h.node.containers.clear()
            assert pod.uid not in h.files.documents

    it_is()


@story
async def test_who_is_placed_is_on_record_where_it_is_placed(h: LifecycleHarness) -> None:
    pod = await h.pod("db")
    one = await h.run(pod, "main", guaranteed(2))
    key = ContainerKey(pod.uid, "main")
    await h.settle()
    h.ledger.move(key, Placement(cpus=CPUSet([6, 7])))
    assert h.ledger.behind == 1
    assert h.node.plugin is not None
    await h.node.plugin.start_container(pod, one.seen)
    assert h.ledger.behind == 0


@pytest.mark.parametrize("shown", [True, False], ids=["shown", "started"])
def test_one_whose_creation_was_not_told_keeps_its_cpus(shown: bool) -> None:
    """The word that it was created went to nobody: it is not taken for one that was not made."""

    @story
    async def it_does(h: LifecycleHarness) -> None:
        pod, plugin = await h.pod("db"), h.node.plugin
        assert plugin is not None
        created = plugin.post_create_container
        plugin.post_create_container = _unheard  # type: ignore[method-assign] # the connection has ended
        one = await h.node.create(pod, "main", guaranteed(2))
        plugin.post_create_container = created  # type: ignore[method-assign] # and is there again
        if shown:
            await h.node.connect(plugin)
        else:
            await h.node.start(one)
        await asyncio.sleep(2 * CREATION)
        assert owned(h) == {"uid-db/main": "2-3"}
        if shown:
            await h.node.start(one)
        assert h.kernel() == {"db/main": "2-3"}

    it_does()


@pytest.mark.parametrize("listed", [True, False])
def test_one_that_was_never_made_gives_its_cpus_back_after_a_reconnect(listed: bool) -> None:
    async def scenario() -> None:
        h = LifecycleHarness(listed=listed)
        await h.start()
        pod, plugin = await h.pod("db"), h.node.plugin
        assert plugin is not None
        await h.run(pod, "main", guaranteed(2))
        never = Container("never", pod.id, "never", resources=guaranteed(2))
        await plugin.create_container(pod, never)
        assert owned(h) == {"uid-db/main": "2-3", "uid-db/never": "4-5"}
        await h.node.connect(plugin)
        await asyncio.sleep(2 * CREATION)
        assert owned(h) == {"uid-db/main": "2-3"}
        h.check()
        await h.kill()

    run_virtually(scenario())


async def _unheard(pod: PodSandbox, container: Container) -> None:
    del pod, container
