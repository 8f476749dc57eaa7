"""Resizes of running containers on fakes: the rules of KEP-5554, the record, the kernel."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.pod_table import UnknownContainerError, UnknownPodError
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey
from tests.scenes.manager_harness import manifest
from tests.scenes.moves_harness import Node, allowed, pods, run


def recorded(node: Node, pod: str) -> tuple[str, str]:
    """What a pod asks for on record, and what it is counted for."""
    (one,) = json.loads(node.store.pods[f"uid-{pod}"].manifest)["spec"]["containers"]
    limits = node.books.view.pods.active[f"uid-{pod}"].workload.pod.containers[0].limits
    assert one["resources"]["requests"]["cpu"] == one["resources"]["limits"]["cpu"]
    assert str(limits["cpu"]) == one["resources"]["limits"]["cpu"]
    return one["resources"]["limits"]["cpu"], str(node.books.view.state.requested["cpu"])


def graceful(name: str, cpus: str, seconds: int) -> dict[str, Any]:
    pod = manifest(name, cpus)
    pod["spec"]["scaleDownGracePeriodSeconds"] = seconds
    return pod


@pytest.mark.parametrize("again", [False, True], ids=["the same agent", "another agent"])
def test_a_resized_container_restarts_with_the_limits_of_now(again: bool) -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2")
        if again:
            await node.kill()
            await node.start()
        for cpus in (6, 3):
            assert await node.resize("a", cpus) != ""
            (status,) = node.runtime.known()
            node.runtime.exit(status.id, 1)
            await asyncio.sleep(5)
            await node.settle()
            (anew,) = node.runtime.known()
            assert anew.attempt == status.attempt + 1
            limits = node.cgroups.groups[anew.key].placement.limits
            assert limits.cpu_shares == 1024 * cpus
            node.check()
        await node.manager.release("a")
        assert not any(node.books.view.state.requested.values())

    run(scenario)


def test_growing_and_shrinking_keep_the_baseline() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        assert await node.resize("a", 4) == "2-5"
        assert recorded(node, "a") == ("4", "4000")
        assert node.has() == {"a/c0": "2-5"}
        assert node.store.pods["uid-a"].baselines == {"c0": CPUSet([2, 3])}
        assert await node.resize("a", 3) == "2-4"
        assert await node.resize("a", 1) == "prohibitedCPUAllocationError"
        assert await node.resize("a", 2) == "2-3"
        assert recorded(node, "a") == ("2", "2000")
        assert node.store.pods["uid-a"].baselines == {}
        assert allowed(node, "a", "web") == {"a": "2-3", "web": "1,4-7"}
        assert await node.resize("web", 2) == "inconsistentCPUAllocationError"
        assert await node.resize("a", 9) == "resizeAllocateCPUsError"

    run(scenario)


def test_who_is_asked_for_has_to_be_there() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("a", "1", "1"))
        with pytest.raises(UnknownPodError):
            await node.resize("b", 2)
        with pytest.raises(UnknownContainerError, match="c0, c1"):
            await node.resize("a", 2)
        with pytest.raises(UnknownContainerError, match="'x'"):
            await node.resize("a", 2, "x")

    run(scenario)


def test_a_second_resize_while_the_first_is_announced() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(graceful("a", "2", 10))
        await pods(node, web="")
        assert await node.resize("a", 6) == "2-7"
        loop, first = asyncio.get_running_loop(), await node.begin_resize("a", 4)
        began = loop.time()
        await asyncio.sleep(5)
        assert node.has() == {"a/c0": "2-7"}
        assert recorded(node, "a")[0] == "6"
        second = await node.begin_resize("a", 2)
        assert (await first.ended()).replaced
        assert (await second.ended()).done
        assert loop.time() >= began + 15
        assert node.has() == {"a/c0": "2-3"}

        assert await node.resize("a", 6) == "2-7"
        first = await node.begin_resize("a", 3)
        await asyncio.sleep(5)
        node.effects.clear()
        assert await node.resize("a", 6) == "2-7"
        assert (await first.ended()).replaced
        assert recorded(node, "a")[0] == "6"
        assert node.books.view.move is None
        assert {value for what, value in node.effects if what == "c0"} == {"2-7"}

        first = await node.begin_resize("a", 3)
        await asyncio.sleep(5)
        assert await node.resize("a", 5) == "2-4,6-7"
        assert recorded(node, "a") == ("5", "5000")

    run(scenario)


def test_a_grow_that_the_kernel_refuses_leaves_nothing() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        for at in (1, 2):
            node.cgroups.faults.calls = 0
            node.cgroups.faults.fail_at = {at}
            moving = await node.begin_resize("a", 4)
            assert "the kernel refused" in (await moving.ended()).problem
            assert recorded(node, "a") == ("2", "2000")
            assert node.has() == {"a/c0": "2-3"}
            assert node.store.pods["uid-a"].baselines == {}

    run(scenario)


def test_a_pod_that_is_deleted_while_it_shrinks() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(graceful("a", "2", 10))
        await pods(node, web="")
        await node.resize("a", 6)
        moving = await node.begin_resize("a", 4)
        await node.manager.release("a")
        await moving.ended()
        assert node.has() == {}
        assert node.store.pods.keys() == {"uid-web"}
        assert allowed(node, "web") == {"web": "1-7"}

    run(scenario)


def test_others_wait_for_their_turn() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(graceful("a", "2", 10))
        await node.admit(manifest("b", "1"))
        await node.resize("a", 4)
        shrink = await node.begin_resize("a", 2)
        grow = asyncio.create_task(node.resize("b", 2))
        await asyncio.sleep(5)
        assert not grow.done()
        assert (await shrink.ended()).done
        assert len(CPUSet.parse(await grow)) == 2

    run(scenario)


@pytest.mark.parametrize("tries", [1, 3])
def test_limits_that_are_refused_at_the_end_of_a_resize_are_tried_again(tries: int) -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2")
        assert await node.resize("a", 6) == "2-7"
        limits = node.cgroups.groups[ContainerKey("uid-a", "c0")].placement.limits
        before = len(node.store.entries)
        real, refused = node.cgroups.place, 0

        async def place(key: ContainerKey, placement: Placement) -> str:
            nonlocal refused
            if placement.limits != limits and refused < tries:
                refused += 1
                raise CgroupError("cpu.weight: Input/output error", "look at dmesg")
            return await real(key, placement)

        node.cgroups.place = place  # type: ignore[method-assign] # refuses
        assert await node.resize("a", 4) == "2-5"
        assert refused == 1
        for _ in range(tries):
            assert node.cgroups.groups[ContainerKey("uid-a", "c0")].placement.limits == limits
            await asyncio.sleep(30)
            await node.books.settle()
        node.check()
        # It never was away from its CPUs.
        kinds = {entry.kind for entry in node.store.entries[before:]}
        assert not kinds & {"returned", "displaced"}

    run(scenario)


def test_a_mixed_container_asks_for_its_part_of_the_pool_on_record() -> None:
    async def scenario(node: Node) -> None:
        pod = manifest("a", "2500m")
        pod["metadata"]["annotations"] = {"mixed-cpus.pinfold.dev/pod": "true"}
        await node.admit(pod)
        assert await node.resize("a", 3) == "1-3"
        assert recorded(node, "a") == ("3500m", "3500")
        assert await node.resize("a", 2) == "2-3"
        assert recorded(node, "a") == ("2500m", "2500")
        assert await node.resize("a", 3.5) == "1-3"
        assert recorded(node, "a") == ("3500m", "3500")
        for other in (3.7, 0.5):
            assert await node.resize("a", other) == "inconsistentCPUAllocationError"

    run(scenario)


def test_the_same_infeasible_resize_is_one_entry_a_minute() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="2")

        def told() -> list[tuple[str | None, int]]:
            entries = [one for one in node.store.entries if one.kind == "infeasible"]
            return [(one.pod, json.loads(one.document)["cpus"]) for one in entries]

        for _ in range(20):
            for pod, cpus in (("a", 99), ("b", 99), ("a", 1)):
                assert await node.resize(pod, cpus) != ""
            await asyncio.sleep(1)
        first = [("default/a", 99), ("default/b", 99), ("default/a", 1)]
        assert told() == first
        await asyncio.sleep(40)
        await node.resize("a", 99)
        assert told() == [*first, ("default/a", 99)]

    run(scenario)


def test_who_was_moved_back_by_somebody_else_is_seen_before_others_have_its_cpus() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        assert await node.resize("a", 4) == "2-5"
        real, key, moved_back = node.cgroups.place, ContainerKey("uid-a", "c0"), False

        async def place(key: ContainerKey, placement: Placement) -> str:
            nonlocal moved_back
            before = node.cgroups.groups[key].cpus
            said = await real(key, placement)
            if not moved_back:
                moved_back, node.cgroups.groups[key].cpus = True, before
            return said

        node.cgroups.place = place  # type: ignore[method-assign] # another one writes, too
        assert await node.resize("a", 2) == "2-3"
        assert moved_back
        assert str(node.cgroups.groups[key].cpus) == "2-3"

    run(scenario)
