"""The memory manager's file: recorded bytes and words, and the start on a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.kubelet.versions import RELEASES, KubeletVersion
from pinfold.core.memory.memory import (
    Block,
    MemoryTable,
    NodeMemory,
    NUMANodeState,
    default_machine_state,
)
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.layouts import MEMORY_STATE, Layout
from pinfold.state.memory_manager_state import (
    MemoryManagerCheckpoint,
    detect_memory_layout,
)
from pinfold.state.memory_restore import restore_memory
from pinfold.state.memory_startup import (
    MemoryStartError,
    cleared_machine_state,
    expected_machine_state,
    machine_state_difference,
    start_memory_policy,
)
from tests.scenes.state_vectors import VECTORS, replay, sample

GIB = 1 << 30


@pytest.mark.parametrize("name", ["memory_state", "memory_checkpoint_136"])
def test_sample_of_recorded_files(name: str) -> None:
    tally = replay(sample(name), "memory_state")
    assert tally.failures == []
    assert tally.passed > 10


@pytest.mark.skipif(not VECTORS.exists(), reason="the whole recording is not at hand")
def test_whole_recording() -> None:
    tally = replay(VECTORS / "memorymanager.jsonl.gz", "memory_state")
    assert tally.failures == []
    assert tally.passed == 180


@pytest.mark.skipif(not VECTORS.exists(), reason="the whole recording is not at hand")
def test_recordings_of_a_newer_kubelet() -> None:
    tally = replay(VECTORS / "1.36" / "memory_checkpoint_136.jsonl", "memory_state")
    assert tally.failures == []
    assert tally.passed == 259


def test_node_ids_are_sorted_as_texts_in_json_and_as_numbers_in_the_hash() -> None:
    nodes = {n: NUMANodeState(0, {}, (n,)) for n in (10, 9)}
    checkpoint = MemoryManagerCheckpoint("Static", nodes, {})
    assert checkpoint.encode().index(b'"10"') < checkpoint.encode().index(b'"9"')
    assert checkpoint.hash_input().index("9:<*>") < checkpoint.hash_input().index("10:<*>")


NODES = {
    0: NodeMemory(8 * GIB, {2048: 512}, {"memory": GIB}),
    1: NodeMemory(4 * GIB),
}


def checkpoint(entries: dict[str, dict[str, tuple[Block, ...]]]) -> MemoryManagerCheckpoint:
    empty = MemoryManagerCheckpoint("Static", default_machine_state(NODES), entries)
    return replace(
        empty, machine_state=expected_machine_state(empty, default_machine_state(NODES))
    ).sealed()


def test_default_machine_state() -> None:
    node = default_machine_state(NODES)[0]
    assert node.memory_map == {
        "hugepages-2Mi": MemoryTable(GIB, 0, GIB, 0, GIB),
        "memory": MemoryTable(8 * GIB, GIB, 6 * GIB, 0, 6 * GIB),
    }


def test_a_block_over_two_nodes_fills_the_first() -> None:
    state = checkpoint({"p": {"c": (Block((0, 1), "memory", 7 * GIB),)}})
    assert state.machine_state is not None
    first, second = state.machine_state[0], state.machine_state[1]
    assert first is not None
    assert second is not None
    assert (first.memory_map or {})["memory"] == MemoryTable(8 * GIB, GIB, 6 * GIB, 6 * GIB, 0)
    assert (second.memory_map or {})["memory"] == MemoryTable(4 * GIB, 0, 4 * GIB, GIB, 3 * GIB)
    assert first.cells == second.cells == (0, 1)
    assert start_memory_policy(restore_memory(state.encode(), "Static"), NODES) == state


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (Block((7,), "memory", 1), "uses the NUMA that does not exist"),
        (Block((1,), "hugepages-2Mi", 1), "uses memory resource that does not exist"),
    ],
)
def test_assignments_that_do_not_fit_the_machine(block: Block, words: str) -> None:
    state = MemoryManagerCheckpoint("Static", default_machine_state(NODES), {"p": {"c": (block,)}})
    with pytest.raises(MemoryStartError, match=rf"\(pod: p, container: c\) .* {words}"):
        start_memory_policy(state, NODES)


def test_difference_names_the_place() -> None:
    state = checkpoint({"p": {"c": (Block((0,), "memory", GIB),)}})
    assert state.machine_state is not None
    more = default_machine_state({**NODES, 1: NodeMemory(5 * GIB)})
    assert (
        machine_state_difference(state.machine_state, expected_machine_state(state, more))
        == f"NUMA node 1, memory: total is {4 * GIB}, of the machine {5 * GIB}"
    )
    assert machine_state_difference(state.machine_state, cleared_machine_state(state)) == (
        "NUMA node 0: numberOfAssignments is 1, the assignments make 0"
    )


def test_layout_with_pod_entries() -> None:
    file = (
        b'{"policyName":"Static","machineState":{},"podEntries":{"p":{"memoryBlocks":'
        b'[{"numaAffinity":[0],"type":"memory","size":5}]}},"checksum":0}'
    )
    state = MemoryManagerCheckpoint.parse(file)
    assert state.pod_entries == {"p": (Block((0,), "memory", 5),)}
    assert "PodEntries:(state.PodMemoryAssignments)map[p:{MemoryBlocks:" in state.hash_input()
    assert state.encode() == file


numbers = st.integers(0, (1 << 64) - 1)
ids = st.integers(0, 20)
kinds = st.sampled_from(["memory", "hugepages-2Mi", "hugepages-1Gi"])
tables = st.builds(MemoryTable, numbers, numbers, numbers, numbers, numbers)
cells = st.none() | st.lists(ids, max_size=3).map(tuple)
nodes = st.builds(
    NUMANodeState, st.integers(0, 9), st.none() | st.dictionaries(kinds, st.none() | tables), cells
)
blocks = st.none() | st.lists(st.builds(Block, cells, kinds, numbers), max_size=2).map(tuple)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
checkpoints = st.builds(
    MemoryManagerCheckpoint,
    st.sampled_from(["Static", "None"]),
    st.none() | st.dictionaries(ids, st.none() | nodes, max_size=3),
    st.dictionaries(names, st.none() | st.dictionaries(names, blocks, max_size=2), max_size=2),
)
pods = st.dictionaries(names, blocks.map(lambda found: found or None), max_size=2)
kubelets = st.tuples(st.sampled_from([one.version for one in RELEASES]), st.booleans())


@given(checkpoints, pods, kubelets)
def test_what_is_written_is_read_again(
    state: MemoryManagerCheckpoint,
    pods: dict[str, tuple[Block, ...] | None],
    kubelet: tuple[KubeletVersion, bool],
) -> None:
    form = MEMORY_STATE.at(kubelet[0], pod_level=kubelet[1])
    has_place = None if form.writes is Layout.V1 else pods if form.has_pods else {}
    sealed = replace(state, layout=form.writes, pod_entries=has_place).sealed()
    file = sealed.encode()
    assert detect_memory_layout(file) is form.writes
    again = MemoryManagerCheckpoint.parse(file)
    again.verify(form)
    assert again == sealed
    restored = restore_memory(file, state.policy_name, form=form)
    assert restored.sealed() == sealed


@given(
    st.binary(max_size=60) | st.text('{}[]":,0123null machineState', max_size=60).map(str.encode)
)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        state = MemoryManagerCheckpoint.parse(data)
    except CheckpointError:
        return
    assert state.encode()
    cleared_machine_state(state)
