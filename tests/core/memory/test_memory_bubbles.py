"""Memory that a pod has as a whole: charged once, given back with its last container."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.memory.memory import (
    Block,
    MemoryState,
    MemoryStateError,
    NodeMemory,
    default_machine_state,
    remove_container,
    remove_pod,
)

GIB = 1 << 30
NODES = {node: NodeMemory(4 * GIB, {}, {}) for node in range(3)}


def memory(size: int, *nodes: int) -> Block:
    return Block(nodes or (0,), "memory", size)


def bubble_on(*nodes: int) -> MemoryState:
    return MemoryState.of(
        NODES,
        {
            "p": {
                "init": (memory(2 * GIB, *nodes),),
                "own": (memory(GIB, *nodes),),
                "shared": (memory(GIB, *nodes),),
                "shared too": (memory(GIB, *nodes),),
            },
            "q": {"c": (memory(GIB, 2),)},
        },
        {"p": (memory(2 * GIB, *nodes),)},
    )


def test_the_machine_is_charged_once() -> None:
    state = bubble_on(0)
    assert state.machine[0].table("memory").reserved == 2 * GIB
    assert state.machine[0].number_of_assignments == 1
    assert state.nodes_of("p", "shared") == (0,)


@given(st.permutations(["init", "own", "shared", "shared too"]), st.sampled_from([(0,), (0, 1)]))
def test_only_the_last_container_gives_the_bubble_back(
    order: list[str], nodes: tuple[int, ...]
) -> None:
    state = bubble_on(*nodes)
    before = state.machine
    for name in order[:-1]:
        state = remove_container(state, "p", name)
        assert state.blocks_of("p", name) is None
        assert state.machine == before
        assert set(state.bubbles) == {"p"}
    state = remove_container(state, "p", order[-1])
    assert state == MemoryState.of(NODES, {"q": {"c": (memory(GIB, 2),)}})
    assert remove_pod(state, "q").machine == default_machine_state(NODES)


def test_a_pod_gives_back_its_bubble_and_no_more() -> None:
    state = remove_pod(bubble_on(1, 2), "p")
    assert state == MemoryState.of(NODES, {"q": {"c": (memory(GIB, 2),)}})


def test_others_alone_on_a_node_of_the_group_keep_theirs() -> None:
    alone = (memory(GIB, 0),)
    state = MemoryState.of(
        NODES,
        {"p": {"c": alone}, "q": {"c": (memory(6 * GIB, 0, 1),)}},
        {"p": alone},
    )
    state = remove_pod(state, "q")
    assert state.machine[0].table("memory").reserved == GIB


@pytest.mark.parametrize(
    "blocks",
    [(memory(3 * GIB),), (memory(GIB, 1),), (Block((0,), "hugepages-2Mi", 2 << 20),)],
    ids=["more", "elsewhere", "another type"],
)
def test_a_container_has_nothing_that_its_pod_has_not(blocks: tuple[Block, ...]) -> None:
    with pytest.raises(MemoryStateError, match="which the pod as a whole does not have"):
        MemoryState.of(NODES, {"p": {"c": blocks}}, {"p": (memory(2 * GIB),)})


def test_a_bubble_that_does_not_fit_names_the_pod() -> None:
    with pytest.raises(MemoryStateError, match=r"^pod p: 5Gi of memory on NUMA node 0 do not fit"):
        MemoryState.of(NODES, {}, {"p": (memory(5 * GIB),)})
