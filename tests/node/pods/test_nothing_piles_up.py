"""What an agent holds is bounded, however many pods have come and gone: objects, not bytes."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from types import CoroutineType
from typing import Final

from pinfold.core.pod.workload import Workload
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.settings import NodeSettings
from pinfold.ports.records import PodRecord
from tests.scenes.manager_harness import Harness, manifest, run

KEPT: Final = 4
COUNTED: Final = (
    asyncio.Future,
    asyncio.Task,
    asyncio.Event,
    asyncio.Lock,
    CoroutineType,
    PodRecord,
    AdmittedPod,
    Workload,
)
"""The fakes themselves remember every container, so that their rows are not counted."""


def held() -> Counter[str]:
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in COUNTED)


async def come_and_go(node: Harness, names: range) -> None:
    """Owners and others that are deleted, those that end by themselves, and refused ones."""
    for number in names:
        name = f"p{number}"
        await node.admit(manifest(name, "2" if number % 2 else "", restartPolicy="Never"))
        if number % 3:
            await node.manager.release(name)
        else:
            (status,) = [
                s for s in await node.runtime.containers() if s.key.pod_uid == f"uid-{name}"
            ]
            node.runtime.exit(status.id, 0)
            await node.settle()
        await node.admit(manifest(f"too-big-{number}", "100"))


def test_pods_that_have_gone_leave_what_is_remembered_and_nothing_else() -> None:
    async def scenario(node: Harness) -> None:
        await come_and_go(node, range(30))
        before = held()
        await come_and_go(node, range(30, 130))
        assert node.books.view.pods.active == {}
        assert len(node.books.view.pods.ended) == KEPT
        grown = held() - before
        assert all(count <= KEPT for count in grown.values()), grown

    run(scenario, settings=NodeSettings(backoff=0.01, kept_pods=KEPT))
