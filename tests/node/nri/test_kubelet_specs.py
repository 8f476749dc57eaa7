"""When a pod's specification is asked for, how long that is waited for, and when again."""

from __future__ import annotations

import asyncio

from tests.scenes.bubble_life import APP, begin, run
from tests.scenes.lifecycle_harness import BEST_EFFORT, LifecycleHarness, guaranteed


def test_a_pod_is_asked_for_when_its_sandbox_is_there() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.put(APP)
        node.api.delay = 0.3
        pod = await node.pod("app")
        await asyncio.sleep(0.3)
        began = asyncio.get_running_loop().time()
        await node.run(pod, "c0", guaranteed(2))
        assert asyncio.get_running_loop().time() - began < 0.1
        assert node.kernel() == {"app/c0": "4-5"}
        assert node.api.asked == ["app"]

    run(tale)


def test_what_was_asked_in_vain_for_the_sandbox_is_asked_for_the_first_container() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.faults.fail_at.add(1)
        node.api.put(APP)
        pod = await node.pod("app")
        await asyncio.sleep(0.1)
        await node.run(pod, "c0", guaranteed(2))
        assert node.kernel() == {"app/c0": "4-5"}
        assert (node.problems, node.specs.asked, node.specs.unread) == ([], 2, 0)

    run(tale)


def test_who_shares_for_want_of_an_answer_is_asked_for_again_when_nothing_of_it_runs() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.faults.fail_at.add(1)
        pod, ran = await begin(node, "i0")
        assert node.kernel() == {"app/i0": "1-15"}
        await node.node.stop(ran["i0"])
        await node.run(pod, "c0", guaranteed(2))
        assert node.kernel() == {"app/c0": "4-5"}
        assert str(node.books.view.state.ledger.bubbles["uid-app"]) == "2-7"

    run(tale)


def test_who_shares_for_want_of_an_answer_is_asked_for_again_when_all_are_shown() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.faults.fail_at.add(1)
        await begin(node, "c0", "p0")
        assert node.kernel() == {"app/c0": "1-15", "app/p0": "1-15"}
        assert node.node.plugin is not None
        await node.node.connect(node.node.plugin)
        await node.settle()
        assert node.kernel() == {"app/c0": "4-5", "app/p0": "6-7"}

    run(tale)


def test_a_hundred_pods_are_read_at_once_and_none_waits_in_vain_for_the_others() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.delay = 0.2
        with node.unheard():
            for number in range(100):
                pod = await node.pod(f"p{number}")
                node.api.put(
                    {"metadata": {"name": pod.name, "uid": pod.uid}, "spec": {"containers": []}}
                )
                await node.run(pod, "main", BEST_EFFORT)
        assert node.node.plugin is not None
        began = asyncio.get_running_loop().time()
        await node.node.connect(node.node.plugin)
        assert asyncio.get_running_loop().time() - began < 2.0
        assert (node.specs.asked, node.specs.unread) == (100, 0)
        # With one that never answers all are bounded, too.
        for runtime_pod in node.pods.by_uid.values():
            runtime_pod.spec = None
        node.api.delay = 60.0
        began = asyncio.get_running_loop().time()
        await node.node.connect(node.node.plugin)
        assert asyncio.get_running_loop().time() - began < 2.0
        assert node.specs.unread == 100

    run(tale, machine="1s64c2t")
