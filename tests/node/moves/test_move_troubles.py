"""What goes wrong while CPUs move: nobody runs where another one does, and the plan goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.core.moves.owners import MoveError, Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.moves.moving import Ended
from pinfold.node.reconciler import reconcile
from pinfold.node.tellings import assigned_now
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey, StoreError
from pinfold.ports.records import Batch, PendingMove
from pinfold.ports.runtime import ContainerSpec
from tests.scenes.manager_harness import ALL_MANAGERS, manifest
from tests.scenes.moves_harness import Node, allowed, pods, run

A = ContainerKey("uid-a", "c0")


def graceful(name: str, cpus: str) -> dict[str, Any]:
    """A pod that is told ten seconds before a CPU is taken from it."""
    return manifest(name, cpus, scaleDownGracePeriodSeconds=10)


@pytest.mark.parametrize("exchange", [False, True])
def test_a_narrow_that_is_refused_after_a_restart_holds_up_what_follows(exchange: bool) -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="2", web="")
        assert (await (await node.move(a="2-3,6-7")).ended()).done
        real, refusals = node.cgroups.place, 0

        async def hangs(key: ContainerKey, placement: Placement) -> str:
            if key == A:
                await asyncio.Event().wait()
            return await real(key, placement)

        async def refuses(key: ContainerKey, placement: Placement) -> str:
            nonlocal refusals
            if key == A and refusals < 2:
                refusals += 1
                raise CgroupError("the kernel refused", "x")
            return await real(key, placement)

        node.cgroups.place = hangs  # type: ignore[method-assign] # a kernel that hangs
        await (node.move(a="2-3", b="6-7") if exchange else node.move(a="2-3"))
        await node.settle()
        await node.kill()
        node.cgroups.place = refuses  # type: ignore[method-assign] # a kernel that refuses
        await node.start()
        moving = node.manager.mover.in_flight
        assert moving is not None
        ended = await asyncio.wait_for(moving.ended(), 60)
        assert "the kernel refused" in ended.problem
        assert refusals == 2
        assert node.has() == {"a/c0": "2-3,6-7", "b/c0": "4-5"}
        assert allowed(node, "a", "b") == {"a": "2-3,6-7", "b": "4-5"}

    run(scenario)


def test_nothing_that_fails_ends_the_mover() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        fails = True

        def online() -> CPUSet:
            if fails:
                raise OSError(24, "Too many open files")
            return node.cgroups.online

        moving = await node.move(a="2-5")
        observers = node.books.observers
        node.books.observers = replace(observers, online=online)
        await asyncio.sleep(30)
        (problem,) = node.books.problems()
        assert "Too many open files" in problem
        fails = False
        assert (await asyncio.wait_for(moving.ended(), 60)).done
        assert list(node.books.problems()) == []
        assert node.has() == {"a/c0": "2-5"}

    run(scenario)


def test_what_a_main_process_leaves_behind_is_taken_along() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        await node.resize("a", 6)
        node.cgroups.processes[5555] = A
        real_kill, real_place, stuck = node.cgroups.kill, node.cgroups.place, True

        async def kill(key: ContainerKey, *, wait: float = 5.0) -> None:
            if key == A and stuck:
                raise CgroupError("processes 5555 do not end after SIGKILL", "x")
            await real_kill(key, wait=wait)

        async def refuses(key: ContainerKey, placement: Placement) -> str:
            if key == A:
                raise CgroupError("the kernel refused", "x")
            return await real_place(key, placement)

        node.cgroups.kill = kill  # type: ignore[method-assign] # a kernel that refuses
        (main,) = (one for one in node.runtime.known() if one.key == A)
        node.runtime.exit(main.id, 1)
        await asyncio.sleep(7)
        node.cgroups.place = refuses  # type: ignore[method-assign] # a kernel that refuses
        moving = await node.begin_resize("a", 2)
        await asyncio.sleep(20)
        # Nobody else has what it may still run on.
        assert node.cgroups.allowed(5555) == CPUSet.parse("2-7")
        assert node.has() == {"a/c0": "2-7"}
        node.cgroups.place = real_place  # type: ignore[method-assign] # a kernel that refuses
        assert "the kernel refused" in (await asyncio.wait_for(moving.ended(), 60)).problem
        await node.resize("a", 2)
        assert node.cgroups.allowed(5555) == CPUSet.parse("2-3")
        stuck = False
        node.cgroups.processes.pop(5555, None)
        await asyncio.sleep(20)

    run(scenario)


def test_an_image_that_does_not_come_holds_up_no_moves() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(graceful("a", "2"))
        await pods(node, b="1", web="")
        await node.resize("a", 4)
        asked, comes = asyncio.Event(), asyncio.Event()

        async def pull(spec: ContainerSpec) -> str:
            asked.set()
            await comes.wait()
            return f"image of {spec.key}"

        node.runtime.pull = pull  # type: ignore[attr-defined] # a runtime with images
        moving = await node.begin_resize("a", 2)
        (main,) = (one for one in node.runtime.known() if one.key == A)
        node.runtime.exit(main.id, 1)
        await asyncio.wait_for(asked.wait(), 60)
        assert (await asyncio.wait_for(moving.ended(), 60)).done
        assert await node.resize("b", 2) == "1,4"
        comes.set()
        await node.settle()
        assert node.has() == {"a/c0": "2-3", "b/c0": "1,4"}
        assert allowed(node, "a", "b") == {"a": "2-3", "b": "1,4"}
        assert node.runtime.ran_on[-1] == (A, CPUSet.parse("2-3"))
        images = {str(one.key): one.image for one in node.runtime.specs.values()}
        assert images[str(A)] == f"image of {A}"

    run(scenario)


def test_who_ends_a_pod_does_not_wait_for_its_image() -> None:
    async def scenario(node: Node) -> None:
        async def pull(spec: ContainerSpec) -> str:
            await asyncio.Event().wait()
            return str(spec)

        node.runtime.pull = pull  # type: ignore[attr-defined] # a runtime with images
        await node.admit(manifest("a", "2"), wait=False)
        await node.settle()
        await asyncio.wait_for(node.manager.release("a"), 1)
        assert node.has() == {}

    run(scenario)


def test_whom_moves_wait_for_is_said() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        with node.books.containers.seen.at_work(A):
            moving = await node.begin_resize("a", 4)
            await asyncio.sleep(60)
            (problem,) = node.books.problems()
            assert problem == (
                "moves of CPUs that are under way: pod default/a, container c0: it is being "
                "started or ended"
            )
        assert (await moving.ended()).done
        assert list(node.books.problems()) == []

    run(scenario)


def test_a_resize_waits_for_a_rebalance_that_is_announced() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="4", web="")
        has = node.has()["a/c0"]
        rebalance = await node.move(10.0, a="8-11")
        await node.settle()
        assert await node.resize("a", 4) == "8-11"
        assert (await rebalance.ended()).done
        assert has != node.has()["a/c0"]
        assert node.books.view.pods.active["uid-a"].record.baseline("c0") == CPUSet.parse("8-11")
        assert await node.resize("a", 2) == "prohibitedCPUAllocationError"

    run(scenario, machine="1s8c2t")


def test_nobody_is_narrowed_to_cpus_that_are_all_offline() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(graceful("a", "2"))
        await pods(node, web="")
        await node.resize("a", 4)
        moving = await node.begin_resize("a", 2)
        await node.settle()
        node.cgroups.online -= CPUSet.parse("2-3")
        await node.books.set_offline(CPUSet.parse("2-3"))
        ended = await asyncio.wait_for(moving.ended(), 60)
        assert "all of CPUs 2-3 are offline" in ended.problem
        assert node.has() == {"a/c0": "2-5"}
        assert allowed(node, "a") == {"a": "4-5"}

    run(scenario)


def test_what_cannot_be_heard_is_no_acknowledgement() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(graceful("a", "2"))
        await node.resize("a", 4)

        async def deaf(key: ContainerKey, generation: int) -> None:
            raise OSError(28, f"{key}, {generation}: No space left on device")

        node.teller.acknowledged = deaf  # type: ignore[assignment] # a kernel with no room
        began = asyncio.get_running_loop().time()
        assert (await (await node.begin_resize("a", 2)).ended()).done
        assert asyncio.get_running_loop().time() - began >= 10

    run(scenario)


def test_no_moves_begin_where_there_is_only_room_to_end_pods() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="1")
        entries = len(node.store.entries)
        node.store.problem = "/state: less than 1024 KiB are free"
        for _ in range(3):
            assert await node.resize("a", 99) == "resizeAllocateCPUsError"
        with pytest.raises(StoreError, match="less than 1024 KiB"):
            await node.resize("a", 4)
        with pytest.raises(StoreError, match="less than 1024 KiB"):
            await node.move(a="4-5")
        assert len(node.store.entries) == entries
        assert node.has() == {"a/c0": "2-3", "b/c0": "1"}
        await node.manager.release("b")
        node.store.problem = ""
        assert await node.resize("a", 4) == "2-5"

    run(scenario)


def refuses(node: Node, *places: str) -> Callable[[], None]:
    """The kernel puts nobody onto just these CPUs, until what is returned is called."""
    real = node.cgroups.place

    async def place(key: ContainerKey, placement: Placement) -> str:
        if str(placement.cpus) in places:
            raise CgroupError(f"the kernel refused {placement.cpus}", "x")
        return await real(key, placement)

    def well() -> None:
        node.cgroups.place = real  # type: ignore[method-assign] # a kernel that refuses

    node.cgroups.place = place  # type: ignore[method-assign] # a kernel that refuses
    return well


def stays(node: Node, ended: Ended, *problems: str) -> None:
    """A plan was not undone as a whole, and nobody else is held up for that."""
    for problem in ("cannot be undone as a whole", *problems):
        assert problem in ended.problem
    assert node.books.view.move is None
    undone = [entry for entry in node.store.entries if entry.kind == "undone"]
    assert "cannot be undone as a whole" in undone[-1].document
    node.check()


def test_who_cannot_be_taken_from_on_the_way_back_keeps_it() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="1", web="")
        well = refuses(node, "4-5", "2-3")
        moving = await node.move(a="4-5")
        ended = await asyncio.wait_for(moving.ended(), 60)
        stays(node, ended, "refused 4-5", "refused 2-3")
        assert node.has() == {"a/c0": "2-5", "b/c0": "1"}
        assert allowed(node, "a", "web") == {"a": "2-5", "web": "6-7"}
        assert list(node.books.problems()) == []
        well()
        # What it was admitted with is its baseline still.
        assert await node.resize("a", 2) == "2-3"

    run(scenario)


def test_who_cannot_be_put_back_stays_where_he_is() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="2", web="")
        has = node.has()
        assert has == {"a/c0": "2-3", "b/c0": "4-5"}
        # Only the last step onto 2-3 fails, when a is on 4-5 and b in between.
        well = refuses(node, "2-3", "4-7", "2-5", "2-3,6-7")
        moving = await node.move(a="4-5", b="2-3")
        ended = await asyncio.wait_for(moving.ended(), 100)
        assert not ended.done
        assert node.books.view.move is None
        node.check()
        well()
        assert (await (await node.move(a="4-5", b="2-3")).ended()).done

    run(scenario)


def test_who_is_refused_on_the_way_back_lets_nobody_onto_his_cpus() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="2", c="1", web="")
        for moved in (node.move(c="7"), node.move(a="1,6"), node.move(b="2-3")):
            assert (await (await moved).ended()).done
        real = node.cgroups.place

        async def place(key: ContainerKey, placement: Placement) -> str:
            if key.pod_uid == "uid-c":
                raise CgroupError("the kernel refused", "x")
            return await real(key, placement)

        node.cgroups.place = place  # type: ignore[method-assign] # a kernel that refuses
        moving = await node.move(a="2-3", b="1,4", c="6")
        ended = await asyncio.wait_for(moving.ended(), 100)
        node.cgroups.place = real  # type: ignore[method-assign] # it does so no more
        await reconcile(node.books)
        stays(node, ended, "the kernel refused")

    run(scenario)


def test_cpus_that_stay_offline_hold_up_no_way_back() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="1", web="")
        refuses(node, "4-5")
        moving = await node.move(5.0, a="4-5")
        await node.settle()
        node.cgroups.online -= CPUSet.parse("2-3")
        await node.books.set_offline(CPUSet.parse("2-3"))
        ended = await asyncio.wait_for(moving.ended(), 100)
        stays(node, ended, "all of CPUs 2-3 are offline")
        assert node.has() == {"a/c0": "2-5", "b/c0": "1"}
        assert allowed(node, "a") == {"a": "4-5"}
        assert await node.resize("b", 2) == "1,6"
        node.cgroups.online |= CPUSet.parse("2-3")
        await node.books.set_offline(CPUSet())
        assert await node.resize("a", 2) == "2-3"

    run(scenario)


def test_memory_that_the_memory_manager_gave_is_not_moved() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        owner = Owner("uid-a", "c0")
        nodes = node.books.view.pods.active["uid-a"].record.memory_nodes("c0")
        assert nodes == CPUSet([0])
        has = node.has()
        async with node.books.change() as draft:
            cpus = draft.state.ledger.cpus_of(*owner) or CPUSet()
            wish = Wish(owner, cpus, mems=CPUSet([1]), mems_before=nodes, migrate=True)
            plan = plan_moves(draft.state.ledger, [wish])
            with pytest.raises(MoveError, match="from the memory manager, on NUMA nodes 0"):
                await node.manager.mover.begin(draft, plan, why="rebalance")
        assert node.has() == has
        assert node.books.view.move is None

    run(scenario, machine="2s2c2t", config=ALL_MANAGERS)


def test_nobody_is_told_of_cpus_that_the_kernel_has_refused() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2")
        commit, told = node.store.commit, []

        async def written(batch: Batch) -> None:
            await commit(batch)
            if isinstance(batch.move, PendingMove) and batch.move.plan.back:
                told.append(replace(node.books.view, move=batch.move).confirmed)

        node.store.commit = written  # type: ignore[method-assign] # looks on
        node.cgroups.faults.fail_at = {node.cgroups.faults.calls + 2}
        assert not (await (await node.move(0.0, a="2-5")).ended()).done
        pod = node.books.view.pods.active["uid-a"]
        has = [str(assigned_now(view, pod, pod.container("c0")).cpus) for view in told]
        assert set(has) == {"2-3"}

    run(scenario)
