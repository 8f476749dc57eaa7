"""Huge pages that come and go under a node at work: what it tells, admits and keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.hugetlb import HugePagePoolError, KeptPages
from pinfold.admission.node_status import node_status
from pinfold.agent.loops.hugepages import HugepageFollower
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.machine import HugepagePool
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.memory.memory import Block, MemoryState
from pinfold.core.values.quantity import Quantity
from pinfold.node.hugepage_changes import PageCounts, follow_pages, pages_of, with_pages
from pinfold.planning.planner import Planner
from pinfold.ports.errors import PortError
from tests.scenes.manager_harness import ALL_MANAGERS, Harness, manifest, parse, run_virtually
from tests.scenes.memory_scene import machine_with_pages
from tests.scenes.published_schemas import node_status_document

MIB, GIB = 1 << 20, 1 << 30
PAGE = 2 * MIB
HUGE = "hugepages-2Mi"


@dataclass
class Kernel:
    """Pages of 2Mi on two nodes, read as the agent reads them."""

    pages: dict[int | None, dict[int, int]]
    fault: str = ""
    reads: int = field(default=0)

    def read(self) -> PageCounts:
        self.reads += 1
        if self.fault:
            raise PortError(self.fault)
        return {node: dict(pages) for node, pages in self.pages.items()}


@dataclass
class World:
    node: Harness
    planner: Planner
    kernel: Kernel
    follower: HugepageFollower

    @classmethod
    async def start(cls, first: int = 256, second: int = 128) -> World:
        node = Harness(machine="2s4c1t", config=ALL_MANAGERS)
        manager = await node.start()
        planner = Planner(machine_with_pages((first, second)), node.config, rules=SOUND)
        async with manager.books.change() as draft:
            draft.node, draft.state = planner.node, planner.empty
        kernel = Kernel({0: {PAGE: first}, 1: {PAGE: second}})
        return cls(node, planner, kernel, HugepageFollower(planner, manager.books, kernel.read))

    async def set(self, first: int, second: int) -> None:
        self.kernel.pages = {0: {PAGE: first}, 1: {PAGE: second}}
        await self.follower.look()

    async def admit(self, name: str, pages: str) -> str | None:
        text = json.dumps(manifest(name, "1", more={HUGE: pages}))
        record = await self.node.manager.admit(parse(text), manifest=text)
        reason: str | None = record.reason
        return reason

    def table(self, node: int, resource: str = HUGE) -> tuple[int, int, int]:
        memory = self.node.books.view.state.memory
        assert memory is not None
        table = memory.machine[node].table(resource)
        return table.allocatable // MIB, table.reserved // MIB, table.free // MIB

    def told(self) -> dict[str, Any]:
        planner, manager = self.planner, self.node.manager
        status = node_status(
            planner.machine,
            planner.view,
            planner.config,
            manager.books.view.node,
            manager.books.view.state,
        )
        return node_status_document(status)


def test_pages_are_followed_by_the_next_look_where_one_was_given_up() -> None:
    async def scenario() -> None:
        world = await World.start(0, 0)
        async with world.node.books.change():
            look = asyncio.create_task(world.set(0, 512))
            await world.node.settle()
            look.cancel()
            await asyncio.wait({look})
        await world.follower.look()
        assert world.told()["capacity"][HUGE] == "1Gi"
        await world.node.kill()

    run_virtually(scenario())


def test_memory_is_given_by_the_same_rules_after_pages_have_changed() -> None:
    async def scenario() -> None:
        world = await World.start()
        await world.set(512, 64)
        policy = world.node.books.view.node.memory_policy
        assert policy is not None
        assert policy.rules == SOUND

    run_virtually(scenario())


def test_pages_that_come_are_told_and_given() -> None:
    async def scenario() -> None:
        world = await World.start(0, 0)
        assert world.told()["capacity"][HUGE] == "0"
        assert await world.admit("early", "4Mi") == "UnexpectedAdmissionError"
        memory = Quantity.parse(world.told()["allocatable"]["memory"]).value()
        await world.set(0, 512)
        found = world.told()
        assert (found["capacity"][HUGE], found["allocatable"][HUGE]) == ("1Gi", "1Gi")
        # What is made pages is memory no more.
        assert Quantity.parse(found["allocatable"]["memory"]).value() == memory - GIB
        assert HUGE not in found["zones"][0]["resources"]
        assert found["zones"][1]["resources"][HUGE]["available"] == "1Gi"
        assert await world.admit("now", "4Mi") is None
        record = world.node.books.view.pods.active["uid-now"].record
        assert Block((1,), HUGE, 4 * MIB) in record.memory["c0"]
        assert world.table(1) == (1024, 4, 1020)
        assert world.node.problems == []
        await world.node.kill()

    run_virtually(scenario())


def test_pages_that_go_are_not_given_and_memory_is() -> None:
    async def scenario() -> None:
        world = await World.start()
        assert await world.admit("one", "256Mi") is None
        before = world.table(1, "memory")
        await world.set(256, 0)
        assert world.told()["capacity"][HUGE] == "512Mi"
        assert world.table(1) == (0, 0, 0)
        assert world.table(1, "memory")[0] == before[0] + 256
        # In total there would be enough for one more, on node 0.
        assert await world.admit("two", "256Mi") is None
        assert await world.admit("three", "2Mi") is not None
        await world.node.kill()

    run_virtually(scenario())


def test_what_was_given_stays_given_when_the_pages_go() -> None:
    async def scenario() -> None:
        world = await World.start()
        assert await world.admit("one", "256Mi") is None
        given = world.node.books.view.pods.active["uid-one"].record.memory
        await world.set(64, 128)
        assert world.node.books.view.pods.active["uid-one"].record.memory == given
        assert world.table(0) == (128, 256, 0)
        (problem,) = world.node.problems
        assert problem.endswith(
            "pod default/one, container c0: 256Mi of hugepages-2Mi on NUMA node 0 do not fit, "
            "128Mi are missing; end the pod, or `pinfold hugepages allocate 2Mi 64 --node 0`"
        )
        assert world.follower.problem in problem
        # Nobody is given what is not there; node 1 has some.
        assert await world.admit("two", "300Mi") is not None
        for _ in range(3):
            await world.follower.look()
        assert len(world.node.problems) == 1
        world.node.check()
        await world.node.manager.release("one")
        await world.follower.look()
        assert world.table(0) == (128, 0, 128)
        assert world.follower.problem == ""
        policy = world.node.books.view.node.memory_policy
        assert policy is not None
        assert world.node.books.view.state.memory == policy.empty_state
        await world.node.kill()

    run_virtually(scenario())


def test_a_reservation_that_no_longer_fits_leaves_the_memory_manager_as_it_was() -> None:
    async def scenario() -> None:
        world = await World.start()
        state = world.node.books.view.state
        await world.set(4000, 128)
        assert world.node.books.view.state == state
        assert world.told()["capacity"][HUGE] == "8256Mi"
        (problem,) = world.node.problems
        assert "reservedMemory keeps 1Gi of memory of NUMA node 0" in problem
        await world.set(256, 128)
        assert world.follower.problem == ""
        assert world.node.books.view.state == state
        await world.node.kill()

    run_virtually(scenario())


def test_nothing_is_done_while_nothing_changes() -> None:
    async def scenario() -> None:
        world = await World.start()
        node, machine = world.node.books.view.node, world.planner.machine
        for _ in range(5):
            await world.follower.look()
        assert world.kernel.reads == 5
        assert world.node.books.view.node is node
        assert world.planner.machine is machine
        await world.node.kill()

    run_virtually(scenario())


def test_a_kernel_that_cannot_be_read_is_told_of_once() -> None:
    async def scenario() -> None:
        world = await World.start()
        world.kernel.fault = "nr_hugepages: gone"
        for _ in range(3):
            await world.follower.look()
        assert world.node.problems == ["None: nr_hugepages: gone"]
        world.kernel.fault = ""
        await world.set(0, 0)
        assert world.told()["capacity"][HUGE] == "0"
        await world.node.kill()

    run_virtually(scenario())


def test_without_a_memory_manager_admission_counts_the_new_numbers() -> None:
    async def scenario() -> None:
        world = await World.start(2, 0)
        config = replace(ALL_MANAGERS, memory_manager_policy="None", reserved_memory=())
        planner = Planner(machine_with_pages((2, 0)), config, rules=SOUND)
        manager = world.node.manager
        async with manager.books.change() as draft:
            draft.node, draft.state = planner.node, planner.empty
        world.planner, world.follower = (
            planner,
            HugepageFollower(planner, manager.books, world.kernel.read),
        )
        assert await world.admit("one", "8Mi") == f"OutOf{HUGE}"
        await world.set(2, 2)
        assert await world.admit("two", "8Mi") is None
        await world.node.kill()

    run_virtually(scenario())


# ------------------------------------------------------------------------------------ pure parts

COUNTS = st.tuples(st.integers(0, 2000), st.integers(0, 2000))


@settings(max_examples=80, deadline=None)
@given(
    before=COUNTS,
    after=COUNTS,
    held=st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=3),
)
def test_tables_are_those_of_the_machine_and_lose_no_container(
    before: tuple[int, int], after: tuple[int, int], held: list[tuple[int, bool]]
) -> None:
    """Some pods have their pages as a whole, and two containers that use all of them."""
    planner = Planner(machine_with_pages(before), ALL_MANAGERS, rules=SOUND)
    policy = planner.node.memory_policy
    assert policy is not None
    assignments: dict[str, Mapping[str, tuple[Block, ...]]] = {}
    bubbles: dict[str, tuple[Block, ...]] = {}
    left = list(before)
    for number, (pages, whole) in enumerate(held):
        node = max((0, 1), key=lambda n: left[n])
        if left[node] >= pages:
            left[node] -= pages
            blocks = (Block((node,), HUGE, pages * PAGE),)
            assignments[f"u{number}"] = {"c": blocks, "d": blocks} if whole else {"c": blocks}
            if whole:
                bubbles[f"u{number}"] = blocks
    memory = MemoryState.of(policy.nodes, assignments, bubbles)
    now = with_pages(planner.machine, {n: {PAGE: after[n]} for n in (0, 1)})
    later = Planner(now, ALL_MANAGERS, rules=SOUND)
    state = replace(planner.empty, memory=memory)
    followed = follow_pages(planner.node, state, now, later.view, ALL_MANAGERS)
    assert followed.node.allocatable == later.node.allocatable
    assert followed.state.memory is not None
    assert followed.state.memory.assignments == memory.assignments
    assert followed.state.memory.bubbles == memory.bubbles
    overdrawn = False
    for node in (0, 1):
        table = followed.state.memory.machine[node].table(HUGE)
        taken = before[node] - left[node]
        overdrawn |= taken > after[node]
        assert (table.total, table.reserved) == (after[node] * PAGE, taken * PAGE)
        assert table.free == max(after[node] - taken, 0) * PAGE
    assert bool(followed.problem) == overdrawn


@pytest.mark.parametrize(
    ("machine", "remedy"),
    [
        ("1s4c1t", "`pinfold hugepages allocate 2Mi 3`"),
        ("2s2c1t", "`pinfold hugepages allocate 2Mi 3 --node 0`"),
    ],
)
def test_the_remedy_names_a_node_where_there_are_several(machine: str, remedy: str) -> None:
    short = parse_short_form(machine)
    pool = {PAGE: HugepagePool(16, 0)}
    nodes = tuple(replace(n, memory_bytes=8 * GIB, hugepages=pool) for n in short.numa_nodes)
    before = replace(short, numa_nodes=nodes, memory_bytes=len(nodes) * 8 * GIB)
    planner = Planner(before, ALL_MANAGERS, rules=SOUND)
    policy = planner.node.memory_policy
    assert policy is not None
    memory = MemoryState.of(policy.nodes, {"u": {"c": (Block((0,), HUGE, 8 * PAGE),)}})
    now = with_pages(before, {0: {PAGE: 5}})
    view = Planner(now, ALL_MANAGERS, rules=SOUND).view
    followed = follow_pages(
        planner.node, replace(planner.empty, memory=memory), now, view, ALL_MANAGERS
    )
    assert followed.problem.endswith(f"; end the pod, or {remedy}")


def test_a_machine_with_the_same_pages_is_the_same() -> None:
    machine = machine_with_pages()
    assert with_pages(machine, pages_of(machine)) is machine
    assert with_pages(machine, {}) is machine
    # A node that came later, and a size that the kernel was not booted with.
    assert with_pages(machine, {7: {PAGE: 9}, 0: {GIB: 1, PAGE: 256}}) is machine


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


NODE = "sys/devices/system/node/node{}/hugepages/hugepages-2048kB/{}_hugepages"


def test_surplus_pages_do_not_count(tmp_path: Path) -> None:
    files = {}
    for node, (total, surplus) in enumerate(((8, 0), (5, 2))):
        files[NODE.format(node, "nr")] = f"{total}\n"
        files[NODE.format(node, "surplus")] = f"{surplus}\n"
    pages = KeptPages(tree(tmp_path, files))
    assert pages.read() == {0: {PAGE: 8}, 1: {PAGE: 3}}
    (tmp_path / NODE.format(1, "nr")).write_text("7\n")
    assert pages.read() == {0: {PAGE: 8}, 1: {PAGE: 5}}
    (tmp_path / NODE.format(1, "nr")).write_text("many\n")
    with pytest.raises(HugePagePoolError, match=r"node1.*nr_hugepages: 'many' is no number"):
        pages.read()
    (tmp_path / NODE.format(1, "nr")).unlink()
    with pytest.raises(HugePagePoolError, match=r"node1.*nr_hugepages: No such file"):
        pages.read()


def test_a_kernel_without_nodes_or_without_pages(tmp_path: Path) -> None:
    assert KeptPages(tmp_path).read() == {}
    place = "sys/kernel/mm/hugepages/hugepages-2048kB"
    tree(tmp_path, {f"{place}/nr_hugepages": "3\n", f"{place}/surplus_hugepages": "0\n"})
    pages = KeptPages(tmp_path)
    assert pages.read() == {None: {PAGE: 3}}
