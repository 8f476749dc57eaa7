"""The books have one writer, and say what the record says, whoever is cancelled."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.draft import Draft
from pinfold.node.drafted import StalePodError, Unwritten
from pinfold.node.pod_table import UnknownPodError
from pinfold.node.view import View
from pinfold.ports.errors import CgroupError, StoreError
from pinfold.ports.records import Batch, PodPhase
from tests.roots import ROOT
from tests.scenes.manager_harness import Harness, manifest, run, run_virtually
from tests.scenes.offline_harness import Node
from tests.scenes.slow import Slow

SRC = ROOT / "src"
NODE = SRC / "pinfold" / "node"
DRAFT = NODE / "draft.py"
BOOKS = {NODE / "books.py", DRAFT, NODE / "record_writer.py"}
LEASE = NODE / "leases" / "lease.py"


def calls(name: str) -> Iterator[str]:
    """Where the live node calls a method of that name, but for the books and their lease."""
    for path in NODE.rglob("*.py"):
        if path not in {*BOOKS, LEASE}:
            for one in ast.walk(ast.parse(path.read_text())):
                called = one.func if isinstance(one, ast.Call) else None
                if isinstance(called, ast.Attribute) and called.attr == name:
                    yield ast.unparse(called)


@pytest.mark.parametrize("effect", ["commit", "set_shared", "cap_idle", "take_offline"])
def test_only_the_books_write_and_move_everybody(effect: str) -> None:
    allowed = {"take_offline": {"change.take_offline"}}
    assert set(calls(effect)) == allowed.get(effect, set())


def test_only_the_books_have_the_writer_of_the_record() -> None:
    who = {path for path in SRC.rglob("*.py") if "RecordWriter" in path.read_text()}
    assert who == BOOKS - {DRAFT}


def test_only_the_books_write_what_a_pod_is_and_has() -> None:
    assert set(calls("write")) <= {"draft.write"}


def test_a_view_cannot_be_changed() -> None:
    async def run() -> None:
        node = Harness()
        view = (await node.start()).books.view
        for name in View.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(view, name, getattr(view, name))
        with pytest.raises(TypeError):
            view.pods.active["x"] = None  # type: ignore[index] # that is what is tried
        with pytest.raises(TypeError):
            view.pods.ended["x"] = None  # type: ignore[index] # that is what is tried
        await node.kill()

    run_virtually(run())


def test_a_view_tells_of_its_moment_whatever_becomes_of_its_pods() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        await node.settle()
        view = node.books.view
        pod = view.pods.active["uid-db"]
        (container,) = pod.workload.pod.containers
        before = repr((view, view.where(pod, container)))
        for name in pod.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(pod, name, getattr(pod, name))
        (status,) = node.runtime.known()
        node.runtime.exit(status.id, 1)
        await node.settle()
        restarted = node.books.view.pods.active["uid-db"].record
        assert (restarted.restarts, restarted.exit_codes) == ({"c0": 1}, {"c0": 1})
        async with node.books.change() as draft:
            draft.let_end(node.books.view.pods.active["uid-db"])
        assert node.books.view.pods.active["uid-db"].is_ending
        assert node.store.pods["uid-db"] == restarted, "which is not written down"
        await node.manager.release("db")
        assert node.books.view.pods.active == {}
        assert view.pods.active == {"uid-db": pod}
        assert not pod.is_ending
        assert repr((view, view.where(pod, container))) == before

    run(scenario)


def test_a_stale_record_is_not_written() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("one", "2"))
        await node.settle()
        old = node.books.view.pods.active["uid-one"]
        async with node.books.change() as draft:
            draft.put(old, replace(old.record, message="newer"))
            with pytest.raises(StalePodError, match="default/one has changed"):
                draft.put(old, replace(old.record, reason="older"))
        changes: list[Callable[[Draft], None]] = [
            lambda draft: draft.put(old, replace(old.record, reason="older")),
            lambda draft: draft.let_end(old),
            lambda draft: draft.end(old, None),
        ]
        for change in changes:
            with pytest.raises(StalePodError):
                async with node.books.change() as draft:
                    change(draft)
        record = node.books.view.pods.active["uid-one"].record
        assert record == node.store.pods["uid-one"] == replace(old.record, message="newer")

    run(scenario)


def test_who_is_cancelled_while_it_is_written_leaves_books_as_the_record() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        commit, written, go = node.store.commit, asyncio.Event(), asyncio.Event()

        async def slowly(batch: object) -> None:
            await commit(batch)  # type: ignore[arg-type] # as it came
            written.set()
            await go.wait()

        node.store.commit = slowly  # type: ignore[method-assign] # a disk that takes its time
        admission = asyncio.create_task(node.admit(manifest("one", "2")))
        await written.wait()
        admission.cancel()
        with pytest.raises(asyncio.CancelledError):
            await admission
        # The next change waits for this one.
        assert manager.books.is_changing
        offline = asyncio.create_task(manager.books.set_offline(CPUSet([7])))
        await node.settle()
        assert not offline.done()
        go.set()
        await offline
        assert manager.books.view.pods.active.keys() == {"uid-one"} == node.store.pods.keys()
        assert manager.books.view.state.ledger.cpus_of("uid-one", "c0") == CPUSet([2, 3])
        assert node.cgroups.shared == manager.books.view.pool == CPUSet([1, 4, 5, 6])
        await node.kill()

    run_virtually(run())


def test_a_stop_while_it_is_written_gives_nothing_twice() -> None:
    async def run() -> None:
        node = Harness(machine="1s4c2t")
        manager = await node.start()
        commit, begun, go = node.store.commit, asyncio.Event(), asyncio.Event()

        async def slowly(batch: object) -> None:
            begun.set()
            # As a thread, which nobody can cancel.
            await asyncio.shield(asyncio.ensure_future(_after(go, lambda: commit(batch))))  # type: ignore[arg-type] # as it came

        node.store.commit = slowly  # type: ignore[method-assign] # a disk that takes its time
        one = asyncio.create_task(node.admit(manifest("one", "2")))
        await begun.wait()
        two = asyncio.create_task(node.admit(manifest("two", "2")))
        await node.settle()
        closing = asyncio.create_task(manager.close())
        await node.settle()
        go.set()
        await closing
        await asyncio.gather(one, two, return_exceptions=True)
        node.store.commit = commit  # type: ignore[method-assign] # the disk is quick again
        owned = [
            cpus for record in node.store.pods.values() for cpus in record.assignments.values()
        ]
        assert owned
        assert sum(map(len, owned)) == len(CPUSet(cpu for cpus in owned for cpu in cpus))
        with pytest.raises(StoreError, match="the agent is stopping"):
            await node.admit(manifest("three", "2"))

    run_virtually(run())


async def _after(go: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    await go.wait()
    await work()


def test_what_is_not_left_in_peace_changes_nothing() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        await node.admit(manifest("one", "2"))
        before, records = manager.books.view, dict(node.store.pods)

        async def disturbed() -> None:
            async with manager.books.change() as draft:
                draft.state = replace(draft.state, ledger=draft.state.ledger.without("uid-one"))
                draft.end(before.pods.active["uid-one"], None)
                raise RuntimeError

        with pytest.raises(RuntimeError):
            await disturbed()
        assert manager.books.view is before
        assert node.store.pods == records
        await node.kill()

    run_virtually(run())


def test_an_owner_moves_between_the_halves_of_a_change() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        books = manager.books
        await node.admit(manifest("one", "2"))
        active, seen = books.view.pods.active["uid-one"], []

        async def move() -> None:
            seen.append((str(node.cgroups.shared), str(books.view.state.ledger.default)))

        async with books.change() as draft:
            ledger = draft.state.ledger.with_assignment("uid-one", "c0", CPUSet([4, 5]))
        # What was looked at only is no change.
        assert str(node.cgroups.shared) == "1,4-7"
        async with books.change() as draft:
            draft.state = replace(draft.state, ledger=ledger)
            draft.put(active, replace(active.record, assignments={"c0": CPUSet([4, 5])}))
            await draft.apply(move=move)
        assert seen == [("1,6-7", "0-3,6-7")], "nobody is on its new CPUs, nor on its old ones"
        assert str(node.cgroups.shared) == "1-3,6-7"
        assert node.store.pods["uid-one"].assignments == {"c0": CPUSet([4, 5])}
        await node.kill()

    run_virtually(run())


def test_what_the_kernel_does_not_do_is_taken_back() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        await node.admit(manifest("shares", ""))
        before = manager.books.view.state
        node.cgroups.faults.fail_at = {node.cgroups.faults.calls + 1}
        with pytest.raises(CgroupError):
            await node.admit(manifest("one", "2"))
        assert manager.books.view.state == before
        assert node.store.pods["uid-one"].assignments == {}
        assert manager.books.counters.cgroup_failures == 1
        node.store.faults.fail_at = {node.store.faults.calls + 1}
        with pytest.raises(StoreError):
            await node.admit(manifest("two", "2"))
        assert manager.books.view.state == before
        node.check()
        await node.kill()

    run_virtually(run())


def test_a_pod_that_got_no_room_is_not_brought_back_by_its_deletion() -> None:
    async def scenario(node: Harness) -> None:
        node.cgroups.set_shared = slow = Slow(node.cgroups.set_shared)  # type: ignore[assignment, method-assign] # a kernel that takes its time
        slow.error = CgroupError("busy")
        commit = node.store.commit
        phases: list[PodPhase] = []

        async def written(batch: Batch) -> None:
            phases.extend(pod.phase for pod in batch.put)
            await commit(batch)

        node.store.commit = written  # type: ignore[method-assign] # one that is looked at
        admission = asyncio.create_task(node.admit(manifest("one", "2")))
        await slow.begun.wait()
        (life,) = node.manager.lives.values()
        deletion = asyncio.create_task(node.manager.release("one"))
        await node.settle()
        slow.go.set()
        with pytest.raises(CgroupError, match="busy"):
            await admission
        await deletion
        assert phases == [PodPhase.ADMITTED, PodPhase.REJECTED]
        assert life.gone.is_set()
        assert not node.store.pods
        assert not node.books.view.pods.active
        node.check()

    run(scenario)


def test_a_pod_that_is_over_is_not_written() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("one", "2"))
        (active,) = node.books.view.pods.active.values()
        await node.manager.release("one")
        async with node.books.change() as draft:
            with pytest.raises(UnknownPodError):
                draft.put(active, active.record)

    run(scenario)


def test_an_owner_that_lost_its_cpus_leaves_anothers_whoever_hangs_up() -> None:
    async def run_it() -> None:
        node = Node()
        await node.start()
        await node.admit(manifest("one", "2"))
        await node.admit(manifest("two", "2"))
        assert node.cpus("one") == {"c0": "2-3"}
        node.cgroups.place = slow = Slow(node.cgroups.place)  # type: ignore[assignment, method-assign] # a kernel that takes its time
        node.cgroups.online = node.cgroups.machine - CPUSet([2, 3])
        admission = asyncio.create_task(node.admit(manifest("three", "1")))
        await slow.begun.wait()
        admission.cancel()
        slow.go.set()
        await asyncio.wait({admission})
        await node.settle()
        node.check()
        assert node.cpus("one") == {"c0": "1,6-7"}
        await node.kill()

    run_virtually(run_it())


def test_what_follows_a_change_follows_without_its_caller() -> None:
    async def scenario(node: Harness) -> None:
        node.store.commit = slow = Slow(node.store.commit)  # type: ignore[assignment, method-assign] # a disk that takes its time
        mirrored = len(node.mirrored)
        admission = asyncio.create_task(node.admit(manifest("one", "2")))
        await slow.begun.wait()
        admission.cancel()
        await asyncio.wait({admission})
        slow.go.set()
        await node.settle()
        assert node.cpus("one") == {"c0": "2-3"}, "it was begun"
        assert len(node.mirrored) > mirrored

        slow.go.clear()
        slow.begun.clear()
        deletion = asyncio.create_task(node.manager.release("one"))
        await slow.begun.wait()
        deletion.cancel()
        await asyncio.wait({deletion})
        slow.go.set()
        await node.settle()
        assert not node.store.pods

    run(scenario)


def test_a_failure_is_told_where_its_caller_has_gone() -> None:
    async def scenario(node: Harness) -> None:
        node.store.commit = slow = Slow(node.store.commit)  # type: ignore[assignment, method-assign] # a disk that takes its time
        slow.error = StoreError("no space left")
        admission = asyncio.create_task(node.admit(manifest("one", "2")))
        await slow.begun.wait()
        admission.cancel()
        await asyncio.wait({admission})
        slow.go.set()
        await node.settle()
        assert any("no space left" in text for text in node.problems)
        assert not node.books.view.pods.active

    run(scenario)


def test_what_was_not_written_of_the_node_is_written_with_the_next_change() -> None:
    async def scenario(node: Harness) -> None:
        written = node.store.node
        assert written is not None
        state = node.books.view.state
        node.store.faults.fail_at = {node.store.faults.calls + 1}
        async with node.books.change() as draft:
            draft.state = replace(state, ledger=replace(state.ledger, policy_name="other"))
            await draft.write(Unwritten.REPORTED)
        async with node.books.change() as draft:
            draft.note("seen")
        assert node.store.node == replace(written, policy_name="other")

    run(scenario)


def test_a_change_that_goes_on_without_its_caller_takes_nothing_more() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("one", "2"))
        (active,) = node.books.view.pods.active.values()
        node.store.commit = slow = Slow(node.store.commit)  # type: ignore[assignment, method-assign] # a disk that takes its time

        async def twice() -> None:
            async with node.books.change() as draft:
                draft.put(active, replace(active.record, message="once"))
                try:
                    await draft.write()
                except asyncio.CancelledError:
                    now = draft.pod("uid-one")
                    assert now is not None
                    draft.put(now, replace(now.record, message="twice"))
                    await draft.write()

        change = asyncio.create_task(twice())
        await slow.begun.wait()
        change.cancel()
        with pytest.raises(RuntimeError, match="takes nothing more"):
            await change
        slow.go.set()
        await node.settle()
        now = node.books.view.pods.active["uid-one"]
        assert node.store.pods["uid-one"].message == now.record.message == "once"

    run(scenario)


def test_a_pool_that_did_not_grow_is_tried_again_soon() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("a", "2"))
        await node.admit(manifest("web", ""))
        real, refuses = node.cgroups.set_shared, True

        async def set_shared(cpus: CPUSet) -> None:
            if refuses:
                raise CgroupError("the kernel refused", "x")
            await real(cpus)

        node.cgroups.set_shared = set_shared  # type: ignore[method-assign] # a kernel that refuses
        await node.manager.release("a")
        for _ in range(60):
            await node.books.settle()
            await asyncio.sleep(1)
        assert list(node.books.problems()) == [
            "the shared pool did not grow: the kernel refused (x)"
        ]
        assert sum("did not grow" in problem for problem in node.problems) == 1
        refuses = False
        await asyncio.sleep(10)
        await node.books.settle()
        assert node.cpus("web") == {"c0": "1-7"}
        assert list(node.books.problems()) == []

    run(scenario)
