"""The kubelet's view: cAdvisor's rules, on the captured machines and one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.machines.discovery import read_machine
from pinfold.core.machine.kubelet_view import KubeletView, UnseenMachineError, kubelet_view
from pinfold.core.machine.machine import (
    Cpu,
    CpuFacts,
    KubeletFacts,
    L3Cache,
    Machine,
    MachineError,
    NUMANode,
    Socket,
    UpperCache,
)
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.sysfs_trees import (
    CPU,
    NODE,
    SAMPLES,
    cache_files,
    cpu_files,
    machine,
    node_files,
    plain,
)


def view(
    facts: Mapping[int, CpuFacts],
    nodes: Mapping[int, tuple[int, ...]] | None,
    **more: Any,
) -> KubeletView:
    """The view of a machine of which only cAdvisor's facts are known."""
    cpus = sorted(facts)
    return kubelet_view(
        Machine(
            name="test",
            source="sysfs",
            cpus=tuple(Cpu(cpu, core=cpu) for cpu in cpus),
            numa_nodes=(),
            sockets=(),
            cores=(),
            kubelet_facts=KubeletFacts(facts, nodes, **more),
        )
    )


def fact(core: int | None, package: int | None = 0, *caches: tuple[int, int]) -> CpuFacts:
    return CpuFacts(core, package, caches=tuple(UpperCache(*cache) for cache in caches))


def rows(found: KubeletView) -> list[tuple[int, ...]]:
    return [tuple(row) for row in found.topology.rows]


def test_ids_of_core_and_package_make_cores_within_a_node() -> None:
    facts = {cpu: fact(0, cpu // 2) for cpu in range(4)} | {4: fact(0, 0)}
    found = view(facts, {0: (0, 1, 2, 3), 1: (4,)})
    assert rows(found) == [
        (0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0),
        (2, 2, 1, 0, 1),
        (3, 2, 1, 0, 1),
        (4, 4, 0, 1, 0),
    ]
    assert (found.topology.num_cpus, found.topology.num_cores) == (5, 3)


def test_nodes_come_in_name_order_and_the_last_one_wins() -> None:
    found = view({0: fact(0), 1: fact(1)}, {2: (0,), 10: (0, 1)})
    assert found.numa_nodes == (10, 2)
    assert [row[3] for row in rows(found)] == [2, 10]
    assert found.topology.num_cpus == 3
    assert "several nodes" in found.notes[0]


def test_a_cache_of_the_whole_node_is_no_uncore_cache() -> None:
    facts = {cpu: fact(cpu, 5, (9, 4)) for cpu in range(4)}
    assert {row[4] for row in rows(view(facts, {0: (0, 1, 2, 3)}))} == {5}
    assert {row[4] for row in rows(view(facts, {0: (0, 1), 1: (2, 3)}))} == {9}


def test_the_first_uncore_cache_counts() -> None:
    facts = {cpu: fact(cpu, 0, (7, 2), (8, 1)) for cpu in range(2)}
    assert {row[4] for row in rows(view(facts, {0: (0, 1)}))} == {8}


def test_the_first_thread_in_name_order_is_asked_for_caches() -> None:
    facts = {2: fact(0, 0, (3, 9)), 10: fact(0, 0, (4, 9))}
    found = view(facts, {0: (10, 2)})
    assert rows(found) == [(2, 2, 0, 0, 4), (10, 2, 0, 0, 4)]


def test_giving_up_leaves_the_cores_before_it() -> None:
    facts = {0: fact(0, 0, (3, 1)), 1: CpuFacts(1, 0, caches=(), lacks_cache_id=True)}
    facts[2] = fact(2, 0, (4, 1))
    facts[3] = fact(3, 0, (6, 2))
    found = view(facts, {0: (0, 1, 2), 1: (3,)})
    assert [row[4] for row in rows(found)] == [3, 0, 0, 6]
    assert found.notes == (
        "cAdvisor gives up on caches (no cache id file): uncore id falls back to the socket id",
    )


def test_without_node_folders_packages_are_nodes() -> None:
    facts = {0: fact(0, -1), 1: fact(1, -1), 2: fact(0, 3), 3: CpuFacts(None, None)}
    found = view(facts, None, online=CPUSet([0, 1, 2]))
    assert found.numa_nodes == (-1, 3)
    assert [row[3] for row in rows(found)] == [-1, -1, 3]
    # cAdvisor counts the folders here, offline CPUs too.
    assert found.topology.num_cpus == 4
    assert found.notes[-1].startswith("no node directories")
    assert (dict(found.memory), dict(found.hugepages)) == ({-1: 0, 3: 0}, {-1: {}, 3: {}})


def test_sockets_are_counted_in_cpuinfo() -> None:
    facts = {0: fact(0, 0), 1: fact(1, 1), 2: fact(2, 2)}
    assert view(facts, {0: (0, 1, 2)}).topology.num_sockets == 3
    assert view(facts, {0: (0, 1, 2)}, physical_ids=1).topology.num_sockets == 1
    assert view(facts, {0: (0,)}, online=CPUSet([0])).topology.num_sockets == 1


def test_books_and_drawers_tell_mainframe_cores_apart() -> None:
    files = {"proc/hwloc-nofile-info": "Architecture: s390x\n"}
    for cpu, (book, drawer) in enumerate([("1", "1"), ("1", "1"), ("2", "1"), ("2", "2")]):
        files |= cpu_files(cpu, core=1, package=-1, book_id=book, drawer_id=drawer)
    assert [row[1] for row in rows(kubelet_view(machine(files)))] == [0, 0, 2, 3]
    del files[f"{CPU}/cpu3/topology/drawer_id"]
    assert kubelet_view(machine(files)).unseen == CPUSet([3])
    files["proc/hwloc-nofile-info"] = "Architecture: x86_64\n"
    assert [row[1] for row in rows(kubelet_view(machine(files)))] == [0, 0, 0, 0]


def test_links_of_a_node_count_more_than_its_map() -> None:
    files = plain(3)
    assert "cpumap" in kubelet_view(machine(files)).notes[-1]
    links = {f"{NODE}/node0/cpu1": "../../cpu/cpu1", f"{NODE}/node0/cpu0": "../../cpu/cpu0"}
    found = kubelet_view(machine(files, links))
    assert found.unseen == CPUSet([2])
    assert not any("cpumap" in note for note in found.notes)


def test_a_mask_counts_raw_for_caches() -> None:
    files = plain(2, online="0") | cache_files(0, 3, shared_cpu_map="3", id="4")
    assert [row[4] for row in rows(kubelet_view(machine(files)))] == [4]
    files |= cache_files(0, 3, shared_cpu_map="1", id="4")
    assert [row[4] for row in rows(kubelet_view(machine(files)))] == [0]


@pytest.mark.parametrize("missing", ["id", "size", "type", "shared_cpu_map"])
def test_a_cache_with_a_file_missing_is_given_up(missing: str) -> None:
    files = plain(2) | {
        path: text for cpu in range(2) for path, text in cache_files(cpu, 3).items()
    }
    assert {row[4] for row in rows(kubelet_view(machine(files | cache_files(1, 3, id="1"))))} == {
        0,
        1,
    }
    files |= cache_files(1, 3, id="1")
    del files[f"{CPU}/cpu0/cache/index3/{missing}"]
    assert {row[4] for row in rows(kubelet_view(machine(files)))} == {0}


def test_memory_and_hugepages_by_node() -> None:
    folder = f"{NODE}/node1/hugepages/hugepages-2048kB"
    files = plain(1) | node_files(1, "0", memory_kb=4) | {f"{folder}/nr_hugepages": "3"}
    found = kubelet_view(machine(files | {"proc/meminfo": "MemTotal: 99 kB\n"}))
    assert dict(found.memory) == {0: 0, 1: 4096}
    assert {node: dict(pages) for node, pages in found.hugepages.items()} == {
        0: {},
        1: {2 << 20: 3},
    }
    assert found.memory_bytes == 99 << 10
    assert kubelet_view(machine(files)).memory_bytes == 4096


def test_no_cpu_to_see_is_an_error() -> None:
    with pytest.raises(UnseenMachineError, match="a kubelet would see none"):
        view({0: fact(None)}, {0: (0,)})
    with pytest.raises(MachineError):
        view({0: fact(0)}, {0: ()})


def test_hidden_cpus_of_a_captured_machine() -> None:
    found = kubelet_view(read_machine(SAMPLES / "offline-cpu0-node0.tar.xz"))
    assert str(found.unseen) == "4,6,8,10,12,14,16,18,20"
    assert found.distances == {1: (21, 10)}
    assert found.topology.num_sockets == 2


def test_machines_without_facts_are_taken_as_they_are() -> None:
    made = Machine(
        name="test",
        source="hwloc-xml",
        cpus=tuple(
            Cpu(cpu, core=cpu // 2 * 2, socket=None, numa=0, l3=cpu // 2 * 2) for cpu in range(4)
        ),
        numa_nodes=(NUMANode(0, CPUSet(range(4)), 1024), NUMANode(1, CPUSet(), 2048)),
        sockets=(Socket(None, CPUSet([0, 1])), Socket(None, CPUSet([2, 3]))),
        cores=(CPUSet([0, 1]), CPUSet([2, 3])),
        l3=(L3Cache(CPUSet([0, 1])), L3Cache(CPUSet([2, 3]))),
    )
    found = kubelet_view(made)
    assert [row[:4] for row in rows(found)] == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (2, 2, 1, 0),
        (3, 2, 1, 0),
    ]
    assert not found.uncore_known
    assert found.numa_nodes == (0, 1)
    assert found.notes == ()


@given(
    st.dictionaries(
        st.integers(0, 12),
        st.tuples(
            st.integers(0, 2) | st.none(),
            st.integers(-1, 2) | st.none(),
            st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=2),
            st.booleans(),
        ),
        min_size=1,
    ),
    st.none() | st.dictionaries(st.integers(0, 11), st.sets(st.integers(0, 12)), max_size=3),
)
def test_whatever_cadvisor_reads(
    cpus: dict[int, tuple[int | None, int | None, list[tuple[int, int]], bool]],
    nodes: dict[int, set[int]] | None,
) -> None:
    facts = {
        cpu: CpuFacts(
            core, package, caches=tuple(UpperCache(*c) for c in caches), lacks_cache_id=bad
        )
        for cpu, (core, package, caches, bad) in cpus.items()
    }
    linked = None if nodes is None else {n: tuple(sorted(c, key=str)) for n, c in nodes.items()}
    try:
        found = view(facts, linked)
    except UnseenMachineError:
        seen = set(facts) if nodes is None else {cpu for c in nodes.values() for cpu in c}
        assert not any(
            facts[cpu].core_id is not None and facts[cpu].package_id is not None
            for cpu in seen & set(facts)
        )
        return
    topology = found.topology
    assert topology.cpus.isdisjoint(found.unseen)
    assert topology.cpus | found.unseen == CPUSet(facts)
    for row in topology.rows:
        assert row.socket == facts[row.cpu].package_id
        assert row.core <= row.cpu
        assert row.numa_node in found.numa_nodes
