"""Pods come to their end, whatever fails on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pinfold.ports.errors import ContainerKey, RuntimeFailedError, StoreError
from pinfold.ports.records import PodPhase
from tests.scenes.manager_harness import Harness, manifest, run


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
