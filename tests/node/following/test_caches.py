"""Caches follow the owners: who comes, moves, goes, whose class is what, and what runs out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.cache.offers import Cache, Group, Offer, Schemata
from pinfold.core.cache.options import CacheClass, CacheOptions
from pinfold.core.cache.plan import Why
from pinfold.core.cache.steps import Assign
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.following.caches import CacheFollower
from pinfold.planning.fake_cache_groups import FakeCacheGroups
from pinfold.ports.cache_groups import CacheError, CacheGroups, NoCacheGroupsError
from tests.scenes.fuse_folder import why_no_fuse
from tests.scenes.manager_harness import Harness, manifest, run
from tests.scenes.moves_harness import Node
from tests.scenes.moves_harness import run as run_node
from tests.scenes.resctrl_kernel import Resource
from tests.scenes.resctrl_world import ResctrlWorld, resctrl_world

ALL = {0: CPUSet(range(8))}
FAST = CacheOptions(
    use=True, classes={"fast": CacheClass(l3="4"), "thin": CacheClass(l3="1")}, exclusive="fast"
)


def machine(ids: int = 8, foreign: tuple[Group, ...] = ()) -> FakeCacheGroups:
    cache = Cache(3, ("L3",), 0xFFF, 1, 0, sparse=False, domains=ALL)
    return FakeCacheGroups(Offer(ids, (cache,)), CPUSet(range(8)), foreign)


def follower(node: Harness, groups: CacheGroups, options: CacheOptions = FAST) -> CacheFollower:
    return CacheFollower(node.books, groups, options, 10.0)


def saying(pod: dict[str, Any], said: str) -> dict[str, Any]:
    annotations = {"cache-class.pinfold.dev/pod": said}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


async def entries(node: Harness) -> list[dict[str, Any]]:
    found = await node.store.history(limit=50)
    return [json.loads(one.document) for one in found if one.kind == "cache"]


def has(seen: CacheFollower) -> dict[str, tuple[str, Schemata]]:
    plan = seen.last.plan
    return {
        owner.removeprefix("uid-"): (str(plan.groups[name].cpus), plan.groups[name].schemata)
        for owner, name in plan.placed.items()
    }


def refused(seen: CacheFollower) -> Mapping[str, Why]:
    return {owner.removeprefix("uid-"): one.why for owner, one in seen.last.plan.refused.items()}


def test_an_owner_comes_and_goes() -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        seen = follower(node, kernel)
        await node.admit(manifest("shares", ""))
        await seen.follow()
        assert kernel.done == []

        await node.admit(manifest("a", "2"))
        own = str(node.books.view.state.ledger.exclusive)
        await seen.follow()
        assert has(seen) == {"a/c0": (own, {"L3": {0: 0x00F}})}
        assert kernel.now.default.schemata["L3"] == {0: 0xFF0}
        (entry,) = await entries(node)
        assert (entry["container"], entry["schemata"], entry["reason"]) == ("c0", "L3:0=f", None)
        # Nothing new, nothing written.
        done = len(kernel.done)
        await seen.follow()
        assert (len(kernel.done), len(await entries(node))) == (done, 1)

        await node.manager.release("uid-a")
        await node.settle()
        await seen.follow()
        assert kernel.now.ours == {}
        assert kernel.now.default == Group("", CPUSet(range(8)), {"L3": {0: 0xFFF}})

    run(scenario)


def test_the_pod_has_the_last_word() -> None:
    async def scenario(node: Harness) -> None:
        seen = follower(node, machine())
        await node.admit(saying(manifest("a", "1"), "thin"))
        await node.admit(saying(manifest("b", "1"), "none"))
        await node.admit(saying(manifest("c", "1"), "gold"))
        await node.admit(saying(manifest("d", ""), "thin"))
        await node.admit(saying(manifest("e", "1"), "no name"))
        await seen.follow()
        assert list(has(seen)) == ["a/c0", "e/c0"]
        assert has(seen)["a/c0"][1] == {"L3": {0: 0x001}}
        assert refused(seen) == {"c/c0": Why.UNKNOWN_CLASS, "d/c0": Why.NO_CPUS}
        reasons = {one["container"]: one["reason"] for one in await entries(node)}
        assert reasons["c0"] in ("NoExclusiveCPUs", "UnknownCacheClass", None)

    run(scenario)


def test_ids_and_ways_run_out_by_name_and_come_back() -> None:
    async def scenario(node: Harness) -> None:
        seen = follower(node, machine(ids=3))
        for name in "abc":
            await node.admit(saying(manifest(name, "1"), "thin"))
        await seen.follow()
        assert refused(seen) == {"c/c0": Why.OUT_OF_IDS}
        await node.manager.release("uid-a")
        await node.settle()
        await seen.follow()
        assert refused(seen) == {}
        assert has(seen).keys() == {"b/c0", "c/c0"}
        seen = follower(node, machine())
        for name in "de":
            await node.admit(manifest(name, "1"))
        await node.admit(manifest("f", "1"))
        await seen.follow()
        # 4, 4, 1 and 1 of 12 ways are given out, and one is left for all others.
        assert refused(seen) == {"f/c0": Why.OUT_OF_WAYS}

    run(scenario)


def test_pods_are_rejected_for_what_is_not_left_where_that_is_configured() -> None:
    async def scenario(node: Harness) -> None:
        rejects = CacheOptions(use=True, classes=FAST.classes, exclusive="fast", when_full="reject")
        kernel = machine()
        seen = follower(node, kernel, rejects)
        await seen.follow()
        for name in "ab":
            assert (await node.admit(manifest(name, "1"))).reason is None
            await seen.follow()
        full = await node.admit(manifest("c", "1"), wait=False)
        assert (full.reason, full.message) == (
            "CacheClassError",
            (
                "cache: container c0, class fast: 4 ways of L3 are not left; of its 12 ways 12 "
                "can be somebody's own, and all others need 1 (OutOfCacheWays)"
            ),
        )
        unknown = await node.admit(saying(manifest("d", "1"), "gold"), wait=False)
        assert unknown.reason == "CacheClassError"
        assert "there is no class gold" in (unknown.message or "")
        # Who asks for less, shares, or has nothing to do with it is admitted.
        for pod in (
            saying(manifest("e", "1"), "thin"),
            saying(manifest("f", "1"), "none"),
            manifest("g", ""),
            saying(manifest("h", "1", init=["1"]), "thin"),
        ):
            assert (await node.admit(pod, wait=False)).reason is None, pod
        # What has just gone is not waited for.
        await node.manager.release("uid-a")
        assert (await node.admit(manifest("i", "1"))).reason is None
        await node.settle()
        await seen.follow()
        assert "i/c0" in has(seen)

        absent = follower(node, _Absent(Offer(8), CPUSet()), rejects)
        await absent.follow()
        nothing = await node.admit(manifest("j", "1"), wait=False)
        assert nothing.message == "cache: this machine has no resctrl"

    run(scenario)


def test_cpus_leave_a_class_before_others_get_them() -> None:
    async def scenario(node: Node) -> None:
        kernel = machine()
        seen = follower(node, kernel)
        await node.admit(manifest("a", "2"))
        await node.admit(manifest("b", "2"))
        await seen.follow()
        before = {name: group.cpus for name, group in kernel.now.ours.items()}
        moving = await node.move(a=node.has()["b/c0"], b=node.has()["a/c0"])
        owned: set[str] = set()
        while node.books.view.move is not None:
            del kernel.done[:]
            await seen.follow()
            left = dict(before)
            for step in kernel.done:
                if isinstance(step, Assign):
                    taken = step.cpus - left.get(step.group, CPUSet())
                    for other, cpus in left.items():
                        assert other == step.group or not cpus & taken, "it had not left"
                    left[step.group] = step.cpus
            before = {name: group.cpus for name, group in kernel.now.ours.items()}
            owned |= {cpus for cpus, _ in has(seen).values()}
            view = node.books.view
            await node.books.until_news(view, 1)
        assert (await moving.ended()).done
        await seen.follow()
        assert {owner: cpus for owner, (cpus, _) in has(seen).items()} == node.has()
        assert len(owned) > 2, "nobody looked while they moved"

    run_node(scenario)


def test_an_init_container_has_its_pods_cpus_while_it_runs() -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        seen = follower(node, kernel)
        await node.admit(manifest("a", "2", init=["2"]), wait=False)
        await node.settle()
        await seen.follow()
        assert list(has(seen)) == ["a/i0"]
        assert refused(seen) == {}
        (status,) = node.books.statuses.values()
        node.runtime.exit(status.id, 0)
        await node.settle()
        await seen.follow()
        assert list(has(seen)) == ["a/c0"]

    run(scenario)


class _Absent(FakeCacheGroups):
    def read(self) -> Any:
        raise NoCacheGroupsError("this machine has no resctrl")


class _Broken(FakeCacheGroups):
    def read(self) -> Any:
        raise CacheError("/sys/fs/resctrl/schemata: Input/output error")


def test_without_the_hardware_it_is_said_once() -> None:
    async def scenario(node: Harness) -> None:
        seen = follower(node, _Absent(Offer(8), CPUSet()))
        await node.admit(manifest("a", "1"))
        for _ in range(3):
            await seen.follow()
        assert seen.problem == "this machine has no resctrl"
        assert sum("no resctrl" in text for text in node.problems) == 1
        assert refused(seen) == {"a/c0": Why.NOT_OFFERED}
        assert [one["message"] for one in await entries(node)] == ["this machine has no resctrl"]
        broken = follower(node, _Broken(Offer(8), CPUSet()))
        with pytest.raises(CacheError):
            await broken.follow()

    run(scenario)


def test_it_hears_of_every_change() -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        going = asyncio.create_task(follower(node, kernel).go_on())
        try:
            began = asyncio.get_running_loop().time()
            await node.admit(manifest("a", "1"))
            await node.settle()
            assert len(kernel.now.ours) == 1
            assert asyncio.get_running_loop().time() < began + 10.0
            (name,) = kernel.now.ours
            kernel.carry_out(Assign(name, CPUSet()))
            await asyncio.sleep(11)
            assert kernel.now.ours[name].cpus == node.books.view.state.ledger.exclusive
        finally:
            going.cancel()

    run(scenario)


@pytest.mark.skipif(bool(why_no_fuse()), reason=why_no_fuse())
class TestThroughTheKernelsFiles:
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[ResctrlWorld]:
        with resctrl_world(tmp_path, Resource("L3", 0xFFF, closids=3), domains=ALL) as found:
            yield found

    def test_an_agent_dies_and_the_next_one_keeps_what_is_wanted(self, world: ResctrlWorld) -> None:
        async def scenario(node: Harness) -> None:
            await node.admit(manifest("a", "2"))
            await node.admit(manifest("b", "1"))
            await follower(node, world.groups()).follow()
            given = {n: (g.cpus, g.values) for n, g in world.kernel.groups.items()}
            assert len(given) == 3
            await node.kill()
            await node.start()
            await node.manager.release("uid-b")
            await node.settle()
            seen = follower(node, world.groups())
            await seen.follow()
            assert len(world.kernel.groups) == 2
            (kept,) = world.kernel.groups.keys() - {""}
            assert (world.kernel.groups[kept].cpus, world.kernel.groups[kept].values) == given[kept]
            # Without the option, the next one puts right what is left.
            await node.kill()
            await node.start()
            await follower(node, world.groups(), CacheOptions()).follow()
            assert world.kernel.groups.keys() == {""}
            assert world.kernel.groups[""].values["L3"] == {0: 0xFFF}
            assert world.kernel.groups[""].cpus == CPUSet(range(8))
            await follower(node, world.groups(), CacheOptions()).follow()
            assert not world.record.exists()

        run(scenario)

    def test_the_kernel_has_fewer_ids_than_it_said(self, world: ResctrlWorld) -> None:
        async def scenario(node: Harness) -> None:
            await node.admit(manifest("a", "1"))
            await node.admit(manifest("b", "1"))
            made = world.kernel.calls

            def others_are_quicker(_path: str, text: str) -> None:
                if text == "mkdir":
                    world.kernel.resources["L3"].closids = 2

            world.kernel.calls = others_are_quicker
            seen = follower(node, world.groups())
            await seen.follow()
            world.kernel.calls = made
            assert list(refused(seen).values()) == [Why.OUT_OF_IDS]
            assert "Out of CLOSIDs" in next(iter(seen.last.plan.refused.values())).message
            assert len(has(seen)) == 1

        run(scenario)
