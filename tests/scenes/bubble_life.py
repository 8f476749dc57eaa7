"""The life of one pod that a kubelet gives CPUs as a whole, at a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pinfold.planning.fake_nri import FakeContainer
from pinfold.ports.nri import PodSandbox, Resources
from tests.scenes.lifecycle_harness import GIB, LifecycleHarness, guaranteed
from tests.scenes.manager_harness import run_virtually
from tests.scenes.whole_pods import WHOLE, whole_pod

MACHINE: Final = "1s8c2t"
APP: Final = whole_pod("app", "6", "2", "1", shared=1, init=("2",), sidecars=("1",))
"""On an empty node of one socket its bubble is 2-7."""
SHARES: Final = Resources(cpu_shares=6144, cpu_quota=600_000, cpu_period=100_000, memory=GIB)
"""What a kubelet asks for a container without resources of its own: its pod's are its limits."""

Tale = Callable[[LifecycleHarness], Coroutine[Any, Any, None]]


def run(tale: Tale, **harness: Any) -> None:
    async def whole() -> None:
        node = LifecycleHarness(**{"machine": MACHINE, "config": WHOLE, **harness})
        await node.start()
        await tale(node)
        await node.settle()
        node.check()
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 600))


async def begin(node: LifecycleHarness, *names: str) -> tuple[PodSandbox, dict[str, FakeContainer]]:
    """Run containers of the pod ``app``, which the API server has."""
    node.api.put(APP)
    pod = await node.pod("app")
    asks = {"i0": guaranteed(2), "c0": guaranteed(2), "c1": guaranteed(1), "s0": guaranteed(1)}
    ran = {name: await node.run(pod, name, asks.get(name, SHARES)) for name in names}
    return pod, ran
