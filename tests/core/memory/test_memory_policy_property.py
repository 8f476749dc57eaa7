"""What always holds of the memory of a node, whatever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.memory.memory import (
    MemoryState,
    NUMANodeState,
    remove_container,
    remove_pod,
)
from pinfold.core.memory.policy import MemoryTransaction, StaticMemoryPolicy
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint
from pinfold.core.values.cpuset import iter_bits
from tests.scenes.memory_scene import (
    GUESS,
    PAGES,
    container,
    pod,
    policy,
)

SIZES = st.sampled_from(["512Mi", "1Gi", "2Gi", "3Gi", "5Gi"])
AMOUNTS = st.fixed_dictionaries(
    {"memory": SIZES}, optional={"pages": st.sampled_from(["0", "2Mi", "512Mi", "1100Mi"])}
)


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    def drawn(prefix: str, count: int, policies: list[str | None]) -> tuple[Container, ...]:
        return tuple(
            container(f"{prefix}{i}", draw(st.sampled_from(policies)), **draw(AMOUNTS))
            for i in range(count)
        )

    init = drawn("i", draw(st.integers(0, 2)), [None, None, "Always"])
    return pod(uid, *drawn("c", draw(st.integers(1, 2)), [None]), init=init)


POLICIES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(lambda sizes: policy(*sizes))


def answers(
    made: StaticMemoryPolicy, offered: list[TopologyHint], *, aligned: bool
) -> st.SearchStrategy[TopologyHint]:
    """Any answer, or with ``aligned`` one that the policy itself offered, or none."""
    if aligned:
        return st.sampled_from([GUESS, *offered])
    masks = st.integers(0, (1 << len(made.nodes)) - 1)
    return st.builds(TopologyHint, st.none() | masks, st.booleans())


def check(made: StaticMemoryPolicy, state: MemoryState, *, aligned: bool) -> None:
    empty = made.empty_state
    blocks = [
        block for pod in state.assignments.values() for each in pod.values() for block in each
    ]
    alone: dict[tuple[int, str], int] = {}
    for block in blocks:
        nodes = block.numa_affinity or ()
        if len(nodes) == 1:
            alone[nodes[0], block.type] = alone.get((nodes[0], block.type), 0) + block.size
    for node_id, node in state.machine.items():
        for name, start in (empty.machine[node_id].memory_map or {}).items():
            assert start is not None
            now = node.table(name)
            assert now.reserved + now.free == now.allocatable == start.allocatable
            assert alone.get((node_id, name), 0) <= now.reserved <= now.allocatable
        used = sum(node_id in (block.numa_affinity or ()) for block in blocks)
        assert node.number_of_assignments == used
    for name in (PAGES, "memory"):
        reserved = sum(node.table(name).reserved for node in state.machine.values())
        assert reserved == sum(block.size for block in blocks if block.type == name)
    groups = {frozenset(block.numa_affinity or ()) for block in blocks}
    for one in groups:
        for other in groups - {one}:
            alone_in_group = not aligned and 1 in (len(one), len(other))
            assert alone_in_group or not one & other


def by_group(state: MemoryState) -> dict[tuple[tuple[int, ...], str], tuple[int, int]]:
    """Free and assignments by group and resource: all that tells one state from another."""
    found: dict[tuple[tuple[int, ...], str], tuple[int, int]] = {}
    for node in state.machine.values():
        for name in node.memory_map or {}:
            key = (node.cells or (), name)
            free, count = found.get(key, (0, 0))
            found[key] = (free + node.table(name).free, count + node.number_of_assignments)
    return found


@given(st.data(), POLICIES, st.booleans())
def test_a_life_of_a_node(data: st.DataObject, made: StaticMemoryPolicy, aligned: bool) -> None:
    state = made.empty_state
    for number in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()) and state.assignments:
            uid = data.draw(st.sampled_from(sorted(state.assignments)))
            if data.draw(st.booleans()):
                state = remove_pod(state, uid)
            else:
                name = data.draw(st.sampled_from(sorted(state.assignments[uid])))
                state = remove_container(state, uid, name)
        else:
            state = _live(data, made, state, f"p{number}", aligned=aligned)
        check(made, state, aligned=aligned)
        again = MemoryState.of(made.nodes, state.assignments)
        assert again.assignments == state.assignments
        check(made, again, aligned=aligned)
        if aligned:
            assert by_group(again) == by_group(state)
    for uid in list(state.assignments):
        state = remove_pod(state, uid)
    assert state == made.empty_state


def _live(
    data: st.DataObject, made: StaticMemoryPolicy, state: MemoryState, uid: str, *, aligned: bool
) -> MemoryState:
    new = data.draw(pods(uid))
    transaction = MemoryTransaction(uid, state)
    for one in new.all_containers:
        before = transaction.state
        offered = (made.container_hints(transaction, new, one) or {}).get("memory", [])
        for found in offered:
            trial = MemoryTransaction(uid, before)
            blocks = made.allocate(trial, new, one, found)
            assert blocks is not None
            assert all(block.numa_affinity == tuple(iter_bits(found.mask or 0)) for block in blocks)
        answer = data.draw(answers(made, offered, aligned=aligned))
        try:
            blocks = made.allocate(transaction, new, one, answer)
        except AllocationError:
            assert transaction.state is before
            # The preferred one is all that a guess was free to miss.
            assert not (offered and answer == GUESS)
            break
        assert blocks == transaction.state.blocks_of(uid, one.name)
        if aligned and not new.init_containers:
            undone = remove_container(transaction.state, uid, one.name)
            assert by_group(undone) == by_group(before)
            assert undone.assignments == before.assignments
    if aligned:
        assert by_group(remove_pod(transaction.state, uid)) == by_group(state)
    return transaction.state


@given(POLICIES, st.data())
def test_a_null_in_a_restored_state_counts_as_nothing(
    made: StaticMemoryPolicy, data: st.DataObject
) -> None:
    machine = dict(made.empty_state.machine)
    node = data.draw(st.sampled_from(sorted(machine)))
    machine[node] = NUMANodeState(0, data.draw(st.sampled_from([None, {"memory": None}])), None)
    transaction = MemoryTransaction("p", MemoryState(machine))
    one = pod("p", container("c", memory="1Gi"))
    hints = made.container_hints(transaction, one, one.containers[0]) or {}
    assert all(found.mask != 1 << node for found in hints.get("memory", []))
