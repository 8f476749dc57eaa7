"""The manager when the record cannot be written: one pod waits, and nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.drafted import Unwritten
from pinfold.node.pods.caller import Caller, GoneError
from pinfold.node.pods.manager import Manager
from pinfold.node.reconciler import reconcile
from pinfold.node.settings import NodeSettings
from pinfold.ports.errors import CgroupError, RuntimeFailedError, StoreError
from pinfold.ports.records import Batch, PodPhase, PodRecord
from tests.scenes.manager_harness import Harness, manifest, parse, run_virtually


class Logs:
    """Logs that are names."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.fails = False
        self.no_threads = False
        self.free = asyncio.Event()
        self.free.set()

    async def remove(self, pod: PodRecord) -> None:
        if self.no_threads:
            raise RuntimeError("can't start new thread")
        await self.free.wait()
        if self.fails:
            raise RuntimeFailedError("the folder is busy")
        self.removed.append(pod.name)

    def folder(self, pod: PodRecord) -> Path:
        raise NotImplementedError

    async def retain(self, pods: Collection[PodRecord]) -> list[str]:
        raise NotImplementedError


def test_a_pod_that_ends_waits_alone() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        for name in ("one", "two"):
            await node.admit(manifest(name, "2", restartPolicy="Never"))
        one = manager.lives["uid-one"]
        # That it is to go can still be written, that it is gone cannot.
        node.store.faults.fail_at = {node.store.faults.calls + 2}
        gone = asyncio.create_task(manager.release("one"))
        await until_told(node, "trying again in 0.1 s")
        node.store.faults.fail_all = True
        await asyncio.sleep(5)
        assert not manager.books.is_changing
        assert not gone.done()
        assert str(manager.books.view.state.ledger.cpus_of_pod("uid-one")) != ""
        with pytest.raises(StoreError):
            await node.admit(manifest("three", "1"))
        with pytest.raises(StoreError):
            await manager.release("two")
        assert await reconcile(manager.books) == []
        node.check()
        node.store.faults.fail_all = False
        await gone
        assert one.gone.is_set()
        await manager.release("two")
        node.check()
        assert manager.books.view.state.ledger.assignments == {}
        await node.kill()

    run_virtually(run())


async def until_told(node: Harness, text: str) -> None:
    while not any(text in problem for problem in node.problems):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)


def test_an_admission_that_can_neither_hold_nor_be_taken_back_is_ended() -> None:
    """The CPUs could not be had, and that cannot be written: the record has an admitted pod."""

    async def run() -> None:
        node = Harness()
        manager = await node.start()
        await node.admit(manifest("shares", ""))
        node.cgroups.faults.fail_at = {node.cgroups.faults.calls + 1}
        node.store.faults.fail_at = {node.store.faults.calls + n for n in (2, 3, 4)}
        with pytest.raises(CgroupError):
            await node.admit(manifest("one", "2"))
        # It owns what the others have not left, and nothing of it ever runs.
        one = manager.lives["uid-one"]
        assert one.ending
        while manager.books.view.pods.active.keys() != {"uid-shares"}:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)
        assert not one.started.is_set()
        assert {spec.key.pod_uid for spec in node.runtime.specs.values()} == {"uid-shares"}
        record = manager.books.view.pods.ended["uid-one"]
        assert record.phase is PodPhase.FAILED
        assert "could not be taken from the shared pool" in (record.message or "")
        assert node.store.pods["uid-one"].phase is PodPhase.FAILED
        node.check()
        await node.kill()

    run_virtually(run())


def test_a_pod_can_be_deleted_while_its_start_cannot_be_written() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        before = node.store.faults.calls
        node.store.faults.fail_at = set(range(before + 2, before + 6))
        await node.admit(manifest("one", "2"))
        await node.settle()
        assert manager.books.view.pods.active["uid-one"].record.phase is PodPhase.RUNNING
        node.store.faults.fail_at = set()
        await manager.release("one")
        assert node.store.pods == {}
        await node.kill()

    run_virtually(run())


def test_nobody_is_admitted_without_room_and_everybody_can_go() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        await node.admit(manifest("one", "2"))
        node.store.problem = "/state: less than 1024 KiB are free"
        with pytest.raises(StoreError, match="less than 1024 KiB"):
            await node.admit(manifest("two", "1"))
        await manager.release("one")
        assert node.store.pods == {}
        await node.kill()

    run_virtually(run())


def test_a_caller_who_is_gone_changes_nothing() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        text = '{"x": 1}'
        workload = parse(json.dumps(manifest("one", "2")))
        with pytest.raises(GoneError):
            await manager.admit(workload, manifest=text, caller=Caller(gone=True))
        assert (node.store.pods, node.store.entries) == ({}, [])
        await node.admit(manifest("one", "2"))
        with pytest.raises(GoneError):
            await manager.release("one", caller=Caller(gone=True))
        assert manager.lives["uid-one"].ending is False
        caller = Caller()
        await manager.release("one", caller=caller)
        assert caller.begun
        await node.kill()

    run_virtually(run())


def test_what_cannot_be_written_is_owed_and_paid_with_the_next() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        record = (await node.admit(manifest("one", ""))) and node.store.pods["uid-one"]
        node.store.faults.fail_at = {node.store.faults.calls + 1, node.store.faults.calls + 2}
        async with manager.books.change() as draft:
            draft.end(manager.books.view.pods.active["uid-one"], None)
            draft.note("released", ("uid-one", "default/one"))
            await draft.write(Unwritten.OWED)
            draft.remember(replace(record, uid="uid-2", name="two"))
            with pytest.raises(StoreError):
                await draft.write()
            assert node.store.pods.keys() == {"uid-one"}
            await draft.write()
        assert node.store.pods.keys() == {"uid-2"}
        assert node.store.entries[-1].kind == "released"
        # And without a next one, by itself.
        node.store.faults.fail_at = {node.store.faults.calls + n for n in range(1, 5)}
        async with manager.books.change() as draft:
            draft.forget("uid-2")
            await draft.write(Unwritten.OWED)
        await asyncio.sleep(60)
        assert node.store.pods == {}
        await node.kill()

    run_virtually(run())


BATCHES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "drop", "both"])), max_size=6
)


@given(BATCHES)
def test_batches_in_one_are_as_one_after_the_other(steps: list[tuple[str, str]]) -> None:
    def batch(number: int, uid: str, kind: str) -> Batch:
        pod = PodRecord(uid, "default", f"{uid}-{number}", "{}", PodPhase.RUNNING)
        return Batch(None, () if kind == "drop" else (pod,), () if kind == "put" else (uid,))

    async def run() -> None:
        one_by_one, together = Harness().store, Harness().store
        whole = Batch()
        for number, (uid, kind) in enumerate(steps):
            await one_by_one.commit(batch(number, uid, kind))
            whole = whole.then(batch(number, uid, kind))
        await together.commit(whole)
        assert together.pods == one_by_one.pods

    run_virtually(run())


async def with_logs(node: Harness, logs: Logs) -> Manager:
    manager = await node.start()
    manager.books.containers.logs = logs
    return manager


def test_logs_stay_as_long_as_their_pod_is_remembered() -> None:
    async def run() -> None:
        node, logs = Harness(settings=NodeSettings(backoff=0.01, kept_pods=2)), Logs()
        manager = await with_logs(node, logs)
        for name in ("one", "two", "three"):
            await node.admit(manifest(name, "1", restartPolicy="Never"))
            (status,) = (s for s in node.runtime.known() if s.key.pod_uid == f"uid-{name}")
            active = manager.lives[f"uid-{name}"]
            node.runtime.exit(status.id, 1)
            await active.gone.wait()
        assert logs.removed == ["one"]  # pushed out
        await manager.release("two")
        assert logs.removed == ["one", "two"]
        await node.admit(manifest("three", "1"))  # in place of the one that has ended
        assert logs.removed == ["one", "two", "three"]
        await manager.release("three")
        assert logs.removed == ["one", "two", "three", "three"]
        logs.fails = True
        await node.admit(manifest("four", "1"))
        await manager.release("four")
        assert node.problems[-1] == "default/four: the folder is busy"
        await node.kill()

    run_virtually(run())


def test_logs_that_cannot_be_removed_change_nothing_else() -> None:
    async def run() -> None:
        node, logs = Harness(settings=NodeSettings(backoff=0.01, kept_pods=1)), Logs()
        manager = await with_logs(node, logs)
        for name in ("one", "two"):
            await node.admit(manifest(name, "2", restartPolicy="Never"))
        await end(node, "one")
        logs.no_threads = True
        await node.admit(manifest("one", "2"))  # in place of the one that has ended
        node.check()
        await node.admit(manifest("three", "2", restartPolicy="Never"))
        node.check()
        for name in ("two", "three"):
            await asyncio.wait_for(end(node, name), 5)  # one pushes the other out
        await manager.release("three")
        await manager.release("one")
        await node.settle()
        told = {problem.partition(": RuntimeError")[0] for problem in node.problems}
        assert told == {f"None: the logs of default/{name}" for name in ("one", "two", "three")}
        node.check()
        await node.kill()
        await node.start()
        node.check()
        await node.kill()

    run_virtually(run())


async def end(node: Harness, name: str) -> None:
    """Let the container of a pod end by itself."""
    active = node.manager.lives[f"uid-{name}"]
    (status,) = (s for s in node.runtime.known() if s.key.pod_uid == active.uid)
    node.runtime.exit(status.id, 1)
    await active.gone.wait()


def test_logs_that_take_long_hold_up_only_the_next_of_their_pod() -> None:
    async def run() -> None:
        node, logs = Harness(), Logs()
        manager = await with_logs(node, logs)
        await node.admit(manifest("one", "2", restartPolicy="Never"))
        await end(node, "one")
        logs.free.clear()
        await asyncio.wait_for(node.admit(manifest("one", "2"), wait=False), 5)
        assert not manager.books.is_changing
        await asyncio.wait_for(node.admit(manifest("two", "1")), 5)
        await node.settle()
        # What it wrote would go with what the last one has written.
        assert {status.key.pod_uid for status in node.runtime.known()} == {"uid-two"}
        logs.free.set()
        await asyncio.wait_for(manager.lives["uid-one"].started.wait(), 5)
        logs.free.clear()
        deleting = asyncio.create_task(manager.release("two"))
        await asyncio.sleep(1)
        assert (deleting.done(), manager.books.is_changing) == (False, False)
        assert "uid-two" not in manager.books.view.pods.active
        logs.free.set()
        await deleting
        assert logs.removed == ["one", "two"]
        node.check()
        await node.kill()

    run_virtually(run())


def test_an_admission_goes_on_though_the_cpus_cannot_be_read_again() -> None:
    async def run() -> None:
        node = Harness()
        manager = await node.start()
        looks = 0

        def online() -> CPUSet:
            nonlocal looks
            looks += 1
            if looks == 2:
                raise OSError("too many open files")
            return node.cgroups.online

        manager.books.observers = replace(manager.books.observers, online=online)
        await asyncio.wait_for(node.admit(manifest("one", "2")), 5)
        assert node.problems == ["default/one: the CPUs that are online: too many open files"]
        node.check()
        await node.kill()

    run_virtually(run())
