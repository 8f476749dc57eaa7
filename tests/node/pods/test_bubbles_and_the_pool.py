"""Bubbles that leave no CPU to the node's shared pool: whom that concerns."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.ports.nri import RefusedError
from pinfold.ports.records import PodPhase
from tests.scenes.lifecycle_harness import BEST_EFFORT, GIB, LifecycleHarness, guaranteed
from tests.scenes.manager_harness import Harness, manifest, run, run_virtually
from tests.scenes.whole_pods import BY_CONTAINER, WHOLE, whole_pod

MACHINE: Final = "1s8c2t"
_STRICT: Final = {"cpu_manager_policy_options": {"strict-cpu-reservation": "true"}}
STRICT: Final = replace(WHOLE, **_STRICT)
"""No pod runs on CPU 0: the shared pool is 1-15."""

EVERYTHING: Final = [("2",), ("1", "2"), ("14",)]
"""Containers with CPUs of their own in a bubble of 15, beside one that shares in it."""


@pytest.mark.parametrize("own", EVERYTHING)
def test_who_shares_in_a_bubble_needs_no_pool(own: tuple[str, ...]) -> None:
    async def work(node: Harness) -> None:
        record = await node.admit(whole_pod("all", "15", *own, shared=1))
        assert (record.phase, str(record.bubble)) == (PodPhase.ADMITTED, "1-15")
        await node.settle()
        assert node.cpus("all").keys() == {"p0", *(f"c{n}" for n in range(len(own)))}
        # For the next there is nothing.
        late = await node.admit(manifest("late", ""))
        assert (late.phase, late.reason) == (PodPhase.REJECTED, UNEXPECTED_ADMISSION_ERROR)
        node.check()

    run(work, machine=MACHINE, config=STRICT)


def test_a_bubble_does_not_take_the_last_cpu_from_others() -> None:
    async def work(node: Harness) -> None:
        assert (await node.admit(manifest("web", ""))).phase is PodPhase.ADMITTED
        record = await node.admit(whole_pod("all", "15", "2", shared=1))
        assert (record.phase, record.reason) == (PodPhase.REJECTED, UNEXPECTED_ADMISSION_ERROR)
        assert "no CPU would be left" in record.message
        assert (await node.admit(whole_pod("most", "14", "2"))).phase is PodPhase.ADMITTED

    run(work, machine=MACHINE, config=STRICT)


def test_by_container_who_shares_needs_the_pool() -> None:
    async def work(node: Harness) -> None:
        record = await node.admit(whole_pod("all", "15", "15", shared=1))
        assert (record.phase, record.reason) == (PodPhase.REJECTED, UNEXPECTED_ADMISSION_ERROR)

    run(work, machine=MACHINE, config=replace(BY_CONTAINER, **_STRICT))


def test_by_container_a_pod_hears_of_no_bubble_that_it_would_never_have() -> None:
    async def work(node: Harness) -> None:
        pod = whole_pod("a", "4", "2", shared=1)
        pod["metadata"]["annotations"] = {"mixed-cpus.pinfold.dev/container.c0": "true"}
        record = await node.admit(pod)
        assert (record.phase, "as a whole" in record.message) == (PodPhase.REJECTED, False)
        assert "no container of a pod with resources of its own can be mixed" in record.message
        assert (await node.admit(whole_pod("b", "4", "2"))).phase is PodPhase.ADMITTED

    run(work, machine=MACHINE, config=replace(BY_CONTAINER, own=OwnPolicies()))


def test_a_kubelets_pod_likewise() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.put(whole_pod("all", "15", "2", shared=1))
        web = await node.pod("web", "burstable")
        first = await node.run(web, "main", BEST_EFFORT)
        pod = await node.pod("all")
        with pytest.raises(RefusedError, match="no CPU would be left"):
            await node.node.create(pod, "c0", guaranteed(2))
        await node.node.stop(first)
        await node.node.remove(first)
        await node.node.stop_pod(web)
        await node.run(pod, "c0", guaranteed(2))
        shares: Any = replace(guaranteed(15), memory=GIB)
        await node.run(pod, "p0", shares)
        assert node.kernel() == {"all/c0": "2-3", "all/p0": "1,4-15"}
        # One that nobody specified would be on the node's pool, of which nothing is left.
        with pytest.raises(RefusedError, match="no CPU would be left"):
            await node.node.create(pod, "debugger", BEST_EFFORT)
        await node.node.stop_pod(pod)

    async def whole() -> None:
        node = LifecycleHarness(machine=MACHINE, config=STRICT)
        await node.start()
        await tale(node)
        await node.settle()
        node.check()
        await node.kill()

    run_virtually(whole())
