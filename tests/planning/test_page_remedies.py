"""How many huge pages more a refused pod needs, and what is said of sizes that are not there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold import Planner
from pinfold.core.machine.machine import HugepagePool, Machine
from pinfold.core.memory.hugepage_pools import parse_page_size
from pinfold.core.pod.pod import Pod
from pinfold.planning.explaining.decision import explain_pod
from tests.scenes.resource_world import GIB, machine, one, static

MIB = 1 << 20
TWO = "hugepages-2Mi"
ONE_GIB = "hugepages-1Gi"
NOBODY_COUNTS: dict[str, Any] = {"memory_manager_policy": "None", "reserved_memory": ()}
COMMAND = re.compile(r"`pinfold hugepages allocate (\w+) (\d+)(?: --node (\d+))?`")


def having(pages: Mapping[int, tuple[int, int]]) -> Machine:
    """A machine of two NUMA nodes with pages by size."""
    plain = machine(pages=0)
    nodes = tuple(
        replace(node, hugepages={size: HugepagePool(n[at], n[at]) for size, n in pages.items()})
        for at, node in enumerate(plain.numa_nodes)
    )
    whole = {size: HugepagePool(sum(n), sum(n)) for size, n in pages.items()}
    return replace(plain, numa_nodes=nodes, hugepages=whole)


def remedies(
    pages: Mapping[int, tuple[int, int]], *before: Pod, config: Any = None, **amounts: str
) -> tuple[str, ...]:
    planner = Planner(having(pages), config or static())
    wanted = one("a", cpu="2", memory="1Gi", **amounts)
    return explain_pod(planner, [*before, wanted], "a").remedies


def test_too_few_pages() -> None:
    assert remedies({2 * MIB: (0, 0)}, **{TWO: "64Mi"}) == (
        "make more huge pages: `pinfold hugepages allocate 2Mi 32 --node 0`",
    )
    assert remedies({2 * MIB: (0, 0)}, config=static(**NOBODY_COUNTS), **{TWO: "64Mi"}) == (
        "make more huge pages: `pinfold hugepages allocate 2Mi 32`",
    )
    assert remedies({2 * MIB: (0, 20)}, **{TWO: "64Mi"}) == (
        "ask for 40Mi hugepages-2Mi instead of 64Mi in container main (requests and limits)",
        "make more huge pages: `pinfold hugepages allocate 2Mi 12 --node 1`",
    )


def test_pages_that_others_have_count() -> None:
    other = one("b", cpu="1", memory="1Gi", **{TWO: "20Mi"})
    found = remedies({2 * MIB: (10, 10)}, other, **{TWO: "64Mi"})
    assert "make more huge pages: `pinfold hugepages allocate 2Mi 22 --node 1`" in found


def test_two_sizes_at_once() -> None:
    found = remedies({2 * MIB: (0, 0), GIB: (1, 1)}, **{TWO: "4Mi", ONE_GIB: "3Gi"})
    commands = [f"`pinfold hugepages allocate {size} 2 --node 0`" for size in ("2Mi", "1Gi")]
    assert found == (f"make more huge pages: {' and '.join(commands)}",)


def test_no_more_pages_than_there_is_memory() -> None:
    assert remedies({GIB: (1, 1)}, **{ONE_GIB: "60Gi"}) == (
        "ask for 1Gi hugepages-1Gi instead of 60Gi in container main (requests and limits)",
    )


@pytest.mark.parametrize(
    ("pages", "told"),
    [
        ({2 * MIB: (0, 0), GIB: (1, 1)}, "the huge pages here are of 2Mi and 1Gi"),
        ({2 * MIB: (5, 5)}, "the huge pages here are of 2Mi"),
        ({}, "no huge pages of any size are known here"),
    ],
)
def test_a_size_that_the_machine_has_not(pages: dict[int, tuple[int, int]], told: str) -> None:
    found = f"ask for no hugepages-16Mi instead of 64Mi in container main: {told}"
    for config in (static(), static(**NOBODY_COUNTS)):
        assert remedies(pages, config=config, **{"hugepages-16Mi": "64Mi"}) == (found,)


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(0, 20), st.integers(0, 6)),
    st.sampled_from(["none", "best-effort", "single-numa-node"]),
    st.booleans(),
)
def test_the_pages_that_are_named_are_enough_and_no_fewer_are(
    small: tuple[int, int],
    large: tuple[int, int],
    asked: tuple[int, int],
    policy: str,
    booked: bool,
) -> None:
    more: dict[str, Any] = {} if booked else NOBODY_COUNTS
    config = static(topology_manager_policy=policy, **more)
    amounts = {TWO: f"{2 * asked[0]}Mi", ONE_GIB: f"{asked[1]}Gi"}
    pages = {2 * MIB: small, GIB: large}
    for remedy in remedies(pages, config=config, **amounts):
        named = COMMAND.findall(remedy)
        for fewer in ("", *(size for size, _, _ in named)) if named else ():
            there = {size: list(n) for size, n in pages.items()}
            for size, count, node in named:
                added = int(count) - (size == fewer) * (1 if node or not booked else 2)
                for at in [int(node)] * added if node else [n % 2 for n in range(added)]:
                    there[parse_page_size(size)][at] += 1
            planner = Planner(having({size: (n[0], n[1]) for size, n in there.items()}), config)
            wanted = one("a", cpu="2", memory="1Gi", **amounts)
            assert planner.plan([wanted]).pods[0].admitted == (not fewer), (remedy, fewer)
