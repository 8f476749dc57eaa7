"""The books have one writer, and say what the record says, whoever is cancelled."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.view import View
from pinfold.ports.errors import CgroupError, StoreError
from tests.roots import ROOT
from tests.scenes.manager_harness import Harness, manifest, run_virtually

NODE = ROOT / "src" / "pinfold" / "node"
BOOKS = NODE / "books.py"


def calls(name: str) -> Iterator[str]:
    """Where the live node calls a method of that name, but for the books."""
    for path in NODE.rglob("*.py"):
        if path != BOOKS:
            for one in ast.walk(ast.parse(path.read_text())):
                called = one.func if isinstance(one, ast.Call) else None
                if isinstance(called, ast.Attribute) and called.attr == name:
                    yield ast.unparse(called)


@pytest.mark.parametrize("effect", ["commit", "set_shared", "take_offline"])
def test_only_the_books_write_and_move_everybody(effect: str) -> None:
    allowed = {"take_offline": {"change.take_offline"}}
    assert set(calls(effect)) == allowed.get(effect, set())


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
