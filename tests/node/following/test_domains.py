"""Partitions: wished by the configuration and the pod, read back, told and tried again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.following.domains import FIRST_PAUSE, DomainFollower
from pinfold.ports.cgroups import Partition
from pinfold.ports.errors import ContainerKey
from tests.scenes.manager_harness import Harness, manifest, mixed, run

ISOLATED = replace(Harness().settings, partition=Partition.ISOLATED)
KEY = ContainerKey("uid-a", "c0")


def unbalanced(pod: dict[str, Any]) -> dict[str, Any]:
    said = pod["metadata"].get("annotations", {})
    annotations = {**said, "load-balance.pinfold.dev/pod": "false"}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


def wished(node: Harness, key: ContainerKey = KEY) -> Partition:
    return node.books.placement(key).partition


async def entries(node: Harness) -> list[dict[str, Any]]:
    found = await node.store.history(limit=50)
    return [json.loads(one.document) for one in found if one.kind == "domain"]


def test_only_who_opts_in_is_isolated() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(unbalanced(manifest("a", "1")))
        await node.admit(manifest("b", "1"))
        await node.admit(unbalanced(manifest("s", "")))
        assert wished(node) is Partition.ISOLATED
        assert wished(node, ContainerKey("uid-b", "c0")) is Partition.MEMBER
        assert wished(node, ContainerKey("uid-s", "c0")) is Partition.MEMBER
        seen = DomainFollower(node.books, 10.0)
        await seen.follow()
        assert list(seen.domains) == [KEY]
        assert seen.domains[KEY].in_force
        (entry,) = await entries(node)
        assert (entry["wished"], entry["found"], entry["problem"]) == ("isolated", "isolated", "")
        await seen.follow()
        assert len(await entries(node)) == 1
        await node.manager.release("uid-a")
        await seen.follow()
        assert not seen.domains

    run(scenario, settings=ISOLATED)


def test_root_is_for_all_and_member_for_none() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("a", "1"))
        assert wished(node) is node.settings.partition
        seen = DomainFollower(node.books, 10.0)
        await seen.follow()
        assert len(seen.domains) == (node.settings.partition is Partition.ROOT)

    for partition in (Partition.ROOT, Partition.MEMBER):
        run(scenario, settings=replace(ISOLATED, partition=partition))


def test_what_the_kernel_takes_back_is_told_and_tried_again() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(unbalanced(manifest("a", "1")))
        seen = DomainFollower(node.books, 10.0)
        await seen.follow()
        # It is made anew at once.
        node.cgroups.invalidate(KEY, "Cpu list in cpuset.cpus not exclusive")
        await seen.follow()
        assert seen.domains[KEY].in_force
        # It cannot be: said once, and tried again later, less and less often.
        node.cgroups.no_partition = "another one has these CPUs"
        node.cgroups.invalidate(KEY, "not exclusive")
        for _ in range(5):
            await seen.follow()
        assert not seen.domains[KEY].in_force
        assert "another one has these CPUs" in seen.domains[KEY].problem
        assert sum("another one has" in text for text in node.problems) == 1
        assert (await entries(node))[0]["found"] == "member"
        node.cgroups.no_partition = ""
        await seen.follow()
        assert not seen.domains[KEY].in_force
        await asyncio.sleep(FIRST_PAUSE)
        await seen.follow()
        assert seen.domains[KEY].in_force
        assert (await entries(node))[0]["problem"] == ""

    run(scenario, settings=ISOLATED)


def test_one_that_uses_the_pool_is_told_why_not() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(unbalanced(mixed(manifest("a", "1"))))
        seen = DomainFollower(node.books, 10.0)
        await seen.follow()
        assert "uses the shared pool" in seen.domains[KEY].problem

    run(scenario, settings=ISOLATED)


def test_cgroups_without_partitions_are_said() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(unbalanced(manifest("a", "1")))
        node.cgroups.groups[KEY].partition = None
        seen = DomainFollower(node.books, 10.0)
        for _ in range(3):
            await seen.follow()
        assert "need cgroup v2" in seen.domains[KEY].problem
        assert sum("need cgroup v2" in text for text in node.problems) == 1
        assert node.books.view.state.ledger.exclusive == CPUSet(seen.domains[KEY].cpus)

    run(scenario, settings=ISOLATED)
