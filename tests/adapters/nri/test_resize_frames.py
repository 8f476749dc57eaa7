"""A kubelet's resizes as frames on a socket: what is in the answer, and what follows unasked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_nri import FakeContainer
from pinfold.ports.nri import RefusedError
from tests.scenes.kubelet_node import watch
from tests.scenes.lifecycle_harness import BEST_EFFORT, guaranteed
from tests.scenes.waiting import PATIENCE, until
from tests.scenes.wired_node import WiredNode, wired_node


async def owner(node: WiredNode) -> FakeContainer:
    """An owner of four CPUs, admitted with two, that is told before it loses any."""
    pod = await node.pod("db")
    told = {"scale-down-grace-period.pinfold.dev/pod": "10"}
    pod = node.node.pods[pod.id] = replace(pod, annotations=told)
    one = await node.run(pod, "main", guaranteed(2))
    await node.node.resize(one, guaranteed(4))
    # In the answer, unless the runtime was just being told something unasked.
    await until(lambda: (str(one.kernel), one.seen.resources.cpus) == ("2-5", "2-5"))
    assert one.seen.resources.cpu_quota == -1
    return one


async def shrink(node: WiredNode, one: FakeContainer, cpus: int) -> None:
    """It is answered at once, and takes nothing."""
    before = one.kernel, one.seen.resources.cpus
    await node.node.resize(one, guaranteed(cpus))
    assert (one.kernel, one.seen.resources.cpus) == before


async def agree(node: WiredNode, one: FakeContainer) -> None:
    """The application agrees to whatever it is told, which ends its time."""
    while node.books.view.move is not None:
        if (told := node.teller.assignments.get(one.key)) is not None:
            await node.teller.acknowledge(one.key, told.generation)
        await asyncio.sleep(0.05)


def play(folder: Path, scenario: Callable[[WiredNode], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60 * PATIENCE), wired_node(folder) as node:
            web = await node.run(await node.pod("web", "burstable"), "main", BEST_EFFORT)
            strangers = watch(node)
            await scenario(node)
            await until(lambda: node.books.view.move is None)
            await until(lambda: node.ledger.behind == 0)
            node.check()
            assert strangers == []
            assert node.recorded() == node.kernel()
            assert web.kernel == node.books.view.pool

    asyncio.run(whole())


def test_a_shrink_is_answered_with_what_it_has_and_follows_unasked(tmp_path: Path) -> None:
    async def scenario(node: WiredNode) -> None:
        db = await owner(node)
        node.wire.unasked.clear()
        await shrink(node, db, 2)
        await agree(node, db)
        await until(lambda: (db.seen.id, "2-3") in node.wire.unasked)
        assert str(db.kernel) == "2-3"
        assert db.seen.resources == replace(guaranteed(2), cpus="2-3", cpu_quota=-1)

    play(tmp_path, scenario)


def test_what_is_infeasible_is_an_error_each_time(tmp_path: Path) -> None:
    async def scenario(node: WiredNode) -> None:
        db = await owner(node)
        for _ in range(20):
            with pytest.raises(RefusedError, match=r"^resizeAllocateCPUsError: .*not enough cpus"):
                await node.node.resize(db, guaranteed(8))
        assert (str(db.kernel), db.seen.resources.cpus) == ("2-5", "2-5")
        kinds = [one.kind for one in await node.store.history(limit=1000)]
        assert kinds.count("infeasible") == 1

    play(tmp_path, scenario)


@pytest.mark.parametrize("second", [3, 4, 5])
def test_a_second_resize_takes_the_place_of_one_that_is_announced(
    tmp_path: Path, second: int
) -> None:
    async def scenario(node: WiredNode) -> None:
        db = await owner(node)
        await shrink(node, db, 2)
        await node.node.resize(db, guaranteed(second))
        if second < 4:
            await agree(node, db)
        await until(lambda: node.books.view.move is None)
        assert len(db.kernel or ()) == second
        assert CPUSet([2, 3]) <= (db.kernel or CPUSet())

    play(tmp_path, scenario)


@pytest.mark.parametrize("how", ["runtime", "agent", "pod", "container"])
def test_what_ends_in_the_delay(tmp_path: Path, how: str) -> None:
    async def scenario(node: WiredNode) -> None:
        db = await owner(node)
        await shrink(node, db, 2)
        if how == "runtime":
            node.peer.hang_up()
            await node.taken()
        elif how == "agent":
            await node.kill()
            await node.start()
        elif how == "pod":
            await node.node.stop_pod(db.pod)
        else:
            await node.node.stop(db)
            db = await node.run(db.pod, "main", guaranteed(2))
        if how != "pod":
            await agree(node, db)
        await until(lambda: node.books.view.move is None)
        has = node.books.view.state.ledger.cpus_of("uid-db", "main")
        assert has == (None if how == "pod" else CPUSet([2, 3]))

    play(tmp_path, scenario)
