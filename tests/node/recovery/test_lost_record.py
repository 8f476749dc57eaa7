"""A record that knows less than what runs: nobody who lives is ended for that."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.memory.memory import Block
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.reconciler import reconcile
from pinfold.node.recovery.keepsake import MOST, Keepsake
from pinfold.node.recovery.recovery import LostRecordError, OnMismatch
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import DeviceGrant, PodPhase, PodRecord
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import ALL_MANAGERS, Copy, Harness, manifest, run_virtually


def run(scenario: Callable[[Harness], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        it = Harness()
        await it.start()
        await scenario(it)
        it.check()
        await it.kill()

    run_virtually(asyncio.wait_for(whole(), 100))


@pytest.mark.parametrize("promised", [True, False])
def test_a_record_that_was_rolled_back_is_refused_and_nothing_is_changed(promised: bool) -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        before = Copy(node)
        await node.admit(manifest("db", "2"))
        await node.kill()
        before.put_back(node, promised=promised)
        runs, groups = node.runtime.known(), copy.deepcopy(node.cgroups.groups)
        kept = Copy(node).state
        with pytest.raises(
            LostRecordError, match=r"does not know pods that run \(default/db\)"
        ) as it:
            await node.start()
        assert "--on-mismatch=repair" in str(it.value)
        # Without the promise, it is the container that runs who has kept a number.
        assert f"the last {2 if promised else 1} changes are missing" in str(it.value)
        assert node.runtime.known() == runs
        assert node.cgroups.groups == groups
        assert Copy(node).state == kept
        await node.start(OnMismatch.REPAIR)
        assert node.runtime.known() == runs
        assert node.cgroups.groups == groups
        assert "uid-db" in node.store.pods
        assert any("default/db is adopted as it runs: c0" in text for text in node.problems)
        assert {entry.kind for entry in node.store.entries[-2:]} == {"repaired"}
        assert node.store.generation > kept[3] + 1
        # Afterwards all is as if nothing had been.
        await node.kill()
        await node.start()
        await node.manager.release("db")
        assert str(node.books.view.state.ledger.default) == "0-7"

    run(scenario)


def test_changes_that_are_missing_are_refused_though_nobody_is_unknown() -> None:
    """Pods that were deleted would come back."""

    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        before = Copy(node)
        await node.manager.release("db")
        await node.kill()
        before.put_back(node, promised=True)
        with pytest.raises(LostRecordError, match="the last 2 changes are missing"):
            await node.start()
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        assert any("do not run are started" in text for text in node.problems)
        assert node.runtime.known() != ()

    run(scenario)


def test_a_name_that_has_gone_to_another_pod_stays_with_the_one_that_runs() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        before = Copy(node)
        await node.manager.release("db")
        again = manifest("db", "4")
        again["metadata"]["uid"] = "uid-again"
        await node.admit(again)
        await node.kill()
        before.put_back(node, promised=True)
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        assert list(node.books.view.pods.active) == ["uid-again"]
        assert node.store.pods["uid-db"].phase is PodPhase.FAILED
        assert [status.key.pod_uid for status in node.runtime.known()] == ["uid-again"]

    run(scenario)


def test_without_keepsakes_the_kernel_tells_enough() -> None:
    """An older version made the containers; their pods are made up, and never started again."""

    async def scenario(node: Harness) -> None:
        before = Copy(node)
        await node.admit(manifest("web", ""))
        await node.admit(manifest("db", "2", "1"))
        cpus = node.cpus("db")
        await node.kill()
        before.put_back(node, promised=False)
        for container, spec in node.runtime.specs.items():
            node.runtime.specs[container] = replace(spec, keepsake="")
        runs = node.runtime.known()
        with pytest.raises(LostRecordError, match="uid-web"):
            await node.start()
        await node.start(OnMismatch.REPAIR)
        assert node.runtime.known() == runs
        assert node.cpus("db") == cpus
        pod = node.books.view.pods.active["uid-db"]
        assert (pod.name, pod.workload.restarts(pod.workload.pod.containers[0], 1)) == (
            "default/adopted-uiddb",
            False,
        )
        await node.admit(manifest("other", "2"))
        assert node.cpus("db") == cpus

    run(scenario)


@pytest.mark.parametrize("cpus", [3, 5])
@pytest.mark.parametrize("wiped", [True, False])
def test_a_resized_pod_asks_for_what_it_has(wiped: bool, cpus: int) -> None:
    """Its keepsake is of the time before: the kernel tells how many it has."""

    async def scenario(node: Harness) -> None:
        nothing = Copy(node)
        await node.admit(manifest("a", "2"))
        await node.admit(manifest("web", ""))
        admitted = node.cpus("a")["c0"]
        before = nothing if wiped else Copy(node)
        answer = await node.manager.resizing.resize("a", None, cpus)
        assert answer.moving is not None
        await answer.moving.ended()
        has = node.cpus("a")
        await node.kill()
        before.put_back(node, promised=True)
        await node.start(OnMismatch.REPAIR)
        assert node.cpus("a") == has
        assert node.books.view.state.requested["cpu"] == 1000 * cpus
        node.check()
        assert str(node.books.view.pods.active["uid-a"].record.baseline("c0")) == admitted
        # And goes back to what it was admitted with.
        answer = await node.manager.resizing.resize("a", None, 2)
        assert answer.moving is not None, answer.decision
        await answer.moving.ended()
        assert node.cpus("a")["c0"] == admitted

    run(scenario)


def test_what_the_runtime_does_not_know_is_held() -> None:
    """Its cgroup has processes: it keeps its CPUs, and no second instance is started beside it."""

    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        cpus = node.cpus("db")["c0"]
        await node.kill()
        (status,) = node.runtime.known()
        node.runtime.forget(status.id)
        await node.start()
        await node.settle()
        assert node.runtime.known() == ()
        assert status.pid is not None
        assert str(node.cgroups.allowed(status.pid)) == cpus
        assert any("its runtime knows nothing of it" in text for text in node.problems)
        assert await reconcile(node.books) == []
        await node.admit(manifest("web", ""))
        # When its cgroup is empty, it has ended, and is started again.
        node.cgroups.processes.pop(status.pid)
        await reconcile(node.books)
        await asyncio.sleep(60)
        await node.settle()
        assert node.cpus("db") == {"c0": cpus}

    run(scenario)


def test_a_container_tells_what_has_ended_before_it_was_made() -> None:
    """It is newer than the record: its init container is not run again beside it."""

    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "1", init=("2",)), wait=False)
        await node.settle()
        before = Copy(node)
        node.runtime.exit(node.runtime.known()[0].id, 0)
        await node.settle()
        runs, cpus = node.runtime.known(), node.cpus("db")
        assert [status.key.name for status in runs] == ["c0"]
        await node.kill()
        before.put_back(node, promised=False)
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        assert node.runtime.known() == runs
        assert node.cpus("db") == cpus
        assert list(node.books.view.pods.active["uid-db"].record.assignments) == ["c0"]

    run(scenario)


def test_who_was_decided_to_end_is_ended_by_the_next_agent() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        pod = node.store.pods["uid-db"]
        await node.kill()
        node.store.pods["uid-db"] = replace(pod, phase=PodPhase.FAILED).without_resources()
        await node.start(OnMismatch.REPAIR)
        assert node.runtime.known() == ()

    run(scenario)


SHAPES = [("",), ("1",), ("2",), ("500m", ""), ("3",)]
OPERATIONS = st.one_of(
    st.tuples(st.just("admit"), st.integers(0, 4), st.sampled_from(SHAPES)),
    st.tuples(st.just("init"), st.integers(0, 4), st.sampled_from(["1", "2"])),
    st.tuples(st.just("release"), st.integers(0, 4), st.none()),
    st.tuples(st.just("exit"), st.integers(0, 20), st.integers(0, 1)),
    st.tuples(st.just("copy"), st.none(), st.none()),
)


def _beside_an_init_container(shape: tuple[str, ...]) -> list[tuple[str, Any, Any]]:
    """The copy is from before p1 has ended; an init container runs where it was."""
    return [
        ("admit", 1, ("2",)),
        ("admit", 3, shape),
        ("init", 0, "2"),
        ("copy", None, None),
        ("release", 1, None),
        ("exit", 1, 0),
        ("init", 2, "2"),
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(OPERATIONS, min_size=3, max_size=30), st.booleans(), st.booleans())
@example(_beside_an_init_container(("3",)), False, False)  # noqa: FBT003 - as given
@example(_beside_an_init_container(("1",)), False, False)  # noqa: FBT003 - as given
def test_whatever_was_lost_owners_live_on_where_they_are(
    operations: list[tuple[str, Any, Any]], promised: bool, everything: bool
) -> None:
    async def whole() -> None:
        node = Harness(machine="2s2c2t", config=ALL_MANAGERS) if everything else Harness()
        await node.start()
        kept = Copy(node)
        uids = 0
        for kind, what, how in operations:
            known = node.runtime.known()
            with contextlib.suppress(NameTakenError, UnknownPodError):
                if kind in ("admit", "init"):
                    uids += 1
                    shape = {"init": ((how,), ("1",))}.get(kind, ((), how))
                    pod = manifest(f"p{what}", *shape[1], init=shape[0], restartPolicy="Never")
                    pod["metadata"]["uid"] = f"uid-{uids}"
                    await node.admit(pod, wait=False)
                elif kind == "release":
                    await asyncio.wait_for(node.manager.release(f"p{what}"), 60)
                elif kind == "exit" and known:
                    node.runtime.exit(known[what % len(known)].id, how)
                elif kind == "copy":
                    kept = Copy(node)
            await node.settle()
        await node.kill()
        living = {
            status.id: (status, node.cgroups.allowed(status.pid))
            for status in node.runtime.known()
            if status.state is ContainerState.RUNNING and status.pid is not None
        }
        groups = (await node.cgroups.observe()).containers
        exclusive = {key for key, one in groups.items() if one.exclusive}
        kept.put_back(node, promised=promised)
        with contextlib.suppress(LostRecordError):
            await node.start()
            await node.kill()
        assert {s.id for s in node.runtime.known()} >= living.keys(), "a refusal ends nobody"
        await node.start(OnMismatch.REPAIR)
        now = {status.id: status for status in node.runtime.known()}
        for one, (status, cpus) in living.items():
            assert now[one].state is ContainerState.RUNNING, status
            assert status.pid is not None
            if status.key in exclusive:
                assert node.cgroups.allowed(status.pid) == cpus, status
        node.check()
        await node.settle()
        node.check()
        for uid in list(node.books.view.pods.active):
            await asyncio.wait_for(node.manager.release(uid, grace=0), 600)
        assert str(node.books.view.state.ledger.default) == "0-7"
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 6000))


def test_a_keepsake_is_read_back() -> None:
    pod = PodRecord(
        "uid",
        "default",
        "db",
        json.dumps(manifest("db", "2")),
        PodPhase.RUNNING,
        admitted_at=3.5,
        assignments={"c0": CPUSet.parse("2-3")},
        restarts={"c0": 2},
        exit_codes={"c0": 1},
        memory={"c0": (Block((0, 1), "memory", 7),)},
        devices={"c0": {"gpu": DeviceGrant(("a", "b"), b"\xff\0")}},
        bubble=CPUSet.parse("2-5"),
        bubble_memory=(Block((0, 1), "memory", 9),),
    )
    assert Keepsake.decode(Keepsake(7, pod).encode()) == Keepsake(7, pod)
    long = replace(pod, manifest=json.dumps({"x": "y" * MOST}))
    assert Keepsake.decode(Keepsake(7, long).encode()) == Keepsake(7, replace(pod, manifest=""))
    for broken in ("", "{}", "[]", "null", '{"generation": 1}', "x" * 10):
        assert Keepsake.decode(broken) is None
    assert ContainerKey("uid", "c0")


@given(st.integers(0, 400), st.characters(codec="ascii"))
def test_a_keepsake_that_was_changed_is_none_or_makes_sense(at: int, char: str) -> None:
    text = Keepsake(7, PodRecord("uid", "default", "db", "{}", PodPhase.RUNNING)).encode()
    found = Keepsake.decode(text[:at] + char + text[at + 1 :])
    assert found is None or found.pod.uid
