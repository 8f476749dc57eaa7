"""At the start the shared pool has nothing that a container still has to leave."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.recovery.asked import asking
from tests.scenes.manager_harness import manifest, mixed, parse, run_virtually
from tests.scenes.moves_harness import Node
from tests.scenes.watched_cgroups import WatchedCgroups


@pytest.mark.parametrize("is_mixed", [False, True])
def test_who_shares_waits_on_reserved_cpus_where_the_whole_pool_has_to_be_left(
    is_mixed: bool,
) -> None:
    async def scenario() -> None:
        node = Node(machine="1s2c2t")
        await node.start()
        await node.admit(manifest("web", ""))
        await node.admit(mixed(manifest("a", "3")) if is_mixed else manifest("a", "3"))
        await node.kill()
        pod, known = node.store.pods["uid-a"], node.store.node
        assert str(pod.assignments["c0"]) == "1-3"
        assert known is not None
        shrunk, _ = asking(pod, parse(pod.manifest), "c0", 2)
        node.store.pods["uid-a"] = replace(shrunk, assignments={"c0": CPUSet.parse("1-2")})
        node.store.node = replace(known, default=CPUSet.parse("0,3"))
        assert isinstance(node.cgroups, WatchedCgroups)
        node.effects.clear()
        await node.start()
        await node.settle()
        assert node.cgroups.shared_by_two == []
        shared = [cpus for what, cpus in node.effects if what == "shared"]
        assert shared == ["0", "3"]
        assert str(node.cgroups.shared) == "3"
        node.check()
        await node.kill()

    run_virtually(asyncio.wait_for(scenario(), 100))
