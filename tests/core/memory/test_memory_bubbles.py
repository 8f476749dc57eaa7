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


@given(
    bubbles=st.dictionaries(
        st.sampled_from(["p", "q", "r"]),
        st.tuples(st.integers(1, GIB), st.sampled_from([(0, 1), (2,)])),
    ),
    parts=st.dictionaries(st.sampled_from(["p", "q", "r"]), st.integers(0, 3)),
    order=st.permutations(["p", "q", "r", "nobody"]),
)
def test_whatever_containers_have_of_it_a_bubble_comes_back_with_its_pod(
    bubbles: dict[str, tuple[int, tuple[int, ...]]],
    parts: dict[str, int],
    order: list[str],
) -> None:
    """Also where none has anything: a pod of which all containers ask for nothing themselves."""
    had = {uid: (memory(size, *nodes),) for uid, (size, nodes) in bubbles.items()}
    assignments = {
        uid: {f"c{n}": blocks for n in range(parts.get(uid, 0))} for uid, blocks in had.items()
    }
    state = MemoryState.of(NODES, assignments, had)
    left = sum(size for size, _ in bubbles.values())
    for uid in order:
        before, state = state, remove_pod(state, uid)
        assert (state is before) is (uid not in bubbles)
        left -= bubbles.get(uid, (0, ()))[0]
        assert sum(one.table("memory").reserved for one in state.machine.values()) == left
    assert state == MemoryState(default_machine_state(NODES))


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
