"""Pods come to their end, whatever fails on the way."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from typing import Any

import pytest

from pinfold.node.settings import NodeSettings
from pinfold.ports.errors import CgroupError, ContainerKey, RuntimeFailedError, StoreError
from pinfold.ports.records import PodPhase
from pinfold.ports.runtime import ContainerSpec, ContainerState, ContainerStatus
from tests.scenes.manager_harness import Harness, manifest, run, run_virtually


def test_sigterm_that_cannot_be_sent_is_tried_again_until_the_grace_period_is_over() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("app", "2", terminationGracePeriodSeconds=30))
        failed = node.runtime.faults.calls + 1
        node.runtime.faults.fail_at = {failed}
        await asyncio.wait_for(node.manager.release("app"), 5)
        (problem,) = node.problems
        assert "container c0 is not told to end" in problem
        assert node.books.view.pods.active == {}
        assert node.runtime.known() == ()

    run(scenario)


@pytest.mark.parametrize("error", [RuntimeFailedError("away"), RuntimeError("no new thread")])
def test_whatever_fails_at_the_end_of_a_pod_it_ends(error: Exception) -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("app", "2", terminationGracePeriodSeconds=30))
        kill, tries = node.cgroups.kill, 0

        async def no_signal(container_id: str, signal: int) -> None:
            del container_id, signal
            raise error

        async def fails_once(key: ContainerKey, *, wait: float = 5.0) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise error
            await kill(key, wait=wait)

        node.runtime.signal = no_signal  # type: ignore[method-assign] # a runtime that is away
        node.cgroups.kill = fails_once  # type: ignore[method-assign] # and a kernel out of memory
        first = asyncio.create_task(node.manager.release("app"))
        await asyncio.sleep(1)
        await asyncio.wait_for(node.manager.release("app"), 60)
        await first
        assert tries == 2
        assert node.books.view.pods.active == {}
        assert node.runtime.known() == ()

    run(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_a_pod_that_ends_while_it_is_deleted_is_ended_once(*, fails: bool) -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("job", "2", restartPolicy="Never"))
        pod = node.manager.lives["uid-job"]
        commit = node.store.commit

        async def slowly(batch: Any) -> None:
            if batch.put and batch.put[0].phase is PodPhase.TERMINATING:
                node.manager.ended_by_itself(pod, PodPhase.SUCCEEDED)
                if fails:
                    raise StoreError("no space left on device")
            await commit(batch)

        node.store.commit = slowly  # type: ignore[method-assign] # something happens meanwhile
        if fails:
            with pytest.raises(StoreError):
                await node.manager.release("job")
        else:
            await node.manager.release("job")
        await asyncio.wait_for(pod.gone.wait(), 5)
        assert node.books.view.pods.active == {}
        assert node.problems == []

    run(scenario)


@pytest.mark.parametrize("then", ["is away", "refuses"])
def test_an_agent_that_stops_while_it_starts_a_container_leaves_it_to_the_next(then: str) -> None:
    async def scenario(node: Harness) -> None:
        asked, begin = asyncio.Event(), node.runtime.start

        async def slowly(container_id: str) -> ContainerStatus:
            asked.set()
            await asyncio.sleep(5)
            return await begin(container_id)

        node.runtime.start = slowly  # type: ignore[method-assign] # it takes its time
        await node.admit(manifest("app", "2"), wait=False)
        await asked.wait()
        node.runtime.is_away = then == "is away"
        node.runtime.faults.fail_all = then == "refuses"
        await asyncio.wait_for(node.kill(), 10)
        assert node.problems == []
        (left,) = node.runtime.known()
        assert left.state is ContainerState.CREATED
        await node.start()
        await asyncio.wait_for(node.manager.lives["uid-app"].started.wait(), 5)
        (status,) = node.runtime.known()
        assert (status.id, status.state) == (left.id, ContainerState.RUNNING)

    run(scenario)


def test_a_task_that_takes_its_cancellation_for_a_failure_ends_all_the_same() -> None:
    async def deaf() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        await asyncio.sleep(100)

    async def scenario(node: Harness) -> None:
        node.books.spawn(deaf(), name="deaf")
        await asyncio.sleep(0)
        await asyncio.wait_for(node.kill(), 10)
        await node.start()

    run(scenario)


@pytest.mark.parametrize("is_away", [False, True])
def test_what_a_failed_start_leaves_is_gone_before_the_next(*, is_away: bool) -> None:
    async def scenario(node: Harness) -> None:
        enter, remove = node.cgroups.enter, node.runtime.remove
        refusals = [RuntimeFailedError("too many open files", is_away=is_away)] * 2

        async def enters_later(key: ContainerKey, pid: int, *, start: int | None = None) -> None:
            if refusals:
                raise CgroupError("no file for its process")
            await enter(key, pid, start=start)

        async def removes_later(container_id: str) -> None:
            if refusals:
                raise refusals.pop()
            await remove(container_id)

        node.cgroups.enter = enters_later  # type: ignore[method-assign] # for a moment
        node.runtime.remove = removes_later  # type: ignore[method-assign] # both are short of files
        await node.admit(manifest("app", "2", restartPolicy="Always"))
        await asyncio.sleep(100)
        (status,) = node.runtime.known()
        assert (status.attempt, status.state) == (1, ContainerState.RUNNING)
        assert "no file for its process" in node.problems[0]
        await node.manager.release("app")
        assert node.runtime.known() == ()
        assert node.cgroups.processes == {}
        await node.kill()
        await node.start()

    run(scenario)


def test_all_attempts_of_a_container_end_with_its_pod() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("app", "2"))
        (status,) = node.runtime.known()
        await node.runtime.create(node.runtime.specs[status.id])
        await node.manager.release("app")
        assert node.runtime.known() == ()
        assert node.cgroups.processes == {}

    run(scenario)


def test_the_next_pod_of_a_uid_begins_when_the_last_has_told_its_end() -> None:
    """What its application reads is in the same places, and would be removed with the old."""

    async def scenario(node: Harness) -> None:
        free, retract = asyncio.Event(), node.files.retract

        async def retracts_later(pod_uid: str) -> None:
            await free.wait()
            await retract(pod_uid)

        node.files.retract = retracts_later  # type: ignore[method-assign] # a slow disk
        await node.admit(manifest("app", "2", restartPolicy="Never"))
        await node.settle()
        node.runtime.exit(node.runtime.known()[0].id, 0)
        await node.settle()
        assert node.books.view.pods.active == {}
        await node.admit(manifest("app", "2", restartPolicy="Never"), wait=False)
        await node.settle()
        assert not node.books.is_changing
        assert node.runtime.known() == (), "it would be told before the last one's is removed"
        free.set()
        await node.settle()
        (status,) = node.runtime.known()
        assert status.key.pod_uid in node.files.documents
        assert status.key in node.teller.assignments
        assert not any("was removed" in problem for problem in node.problems)
        await node.manager.release("app")
        assert node.files.documents == {}
        assert node.teller.assignments == {}

    run(scenario)


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_an_image_that_does_not_come_is_no_restart(policy: str) -> None:
    """Whatever is to be restarted: there is no container yet, and the pod's others run."""

    async def whole() -> None:
        node, tries = Harness(settings=NodeSettings(backoff=10)), list[float]()

        async def pull(spec: ContainerSpec) -> str:
            if spec.key.name == "c0":
                tries.append(asyncio.get_running_loop().time())
                if len(tries) <= 3:
                    raise RuntimeFailedError("not found", "push it")
            return f"image of {spec.key.name}"

        node.runtime.pull = pull  # type: ignore[attr-defined] # a runtime with images
        await node.start()
        await node.admit(manifest("app", "2", "1", restartPolicy=policy))
        await asyncio.sleep(60)
        assert [status.key.name for status in node.runtime.known()] == ["c1"]
        assert "container c0 waits for its image: not found" in node.problems[0]
        await asyncio.sleep(60)
        assert [after - before for before, after in pairwise(tries)] == [10, 20, 40]
        attempts = {status.key.name: status.attempt for status in node.runtime.known()}
        assert attempts == {"c0": 0, "c1": 0}
        assert not any(node.books.view.pods.active["uid-app"].record.restarts.values())
        node.check()
        await node.kill()

    run_virtually(whole())


def test_who_waits_for_an_image_can_be_deleted() -> None:
    async def scenario(node: Harness) -> None:
        async def pull(spec: ContainerSpec) -> str:
            raise RuntimeFailedError(f"no image of {spec.key.name}")

        node.runtime.pull = pull  # type: ignore[attr-defined] # a runtime with images
        await node.admit(manifest("app", "2"))
        await asyncio.wait_for(node.manager.release("app"), 5)
        assert node.books.view.pods.active == {}

    run(scenario)
