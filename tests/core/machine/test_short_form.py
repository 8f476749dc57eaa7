"""Machines in a word."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.devices.devices import devices_of_machine
from pinfold.core.machine.counts import Numbering, ShortForm, default_memory
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.locality import device_kind
from pinfold.core.machine.machine import HugepagePool, MachineError
from pinfold.core.machine.planned_machine import build
from pinfold.core.machine.short_form import (
    MAX_CPUS,
    looks_like_short_form,
    parse_counts,
    parse_short_form,
)
from tests.scenes.sysfs_trees import MACHINES

GIB = 1 << 30


def test_two_sockets_with_adjacent_siblings() -> None:
    machine = parse_short_form("2s8c2t")
    assert [str(core) for core in machine.cores] == [f"{n}-{n + 1}" for n in range(0, 32, 2)]
    assert [str(socket.cpus) for socket in machine.sockets] == ["0-15", "16-31"]
    assert [str(node.cpus) for node in machine.numa_nodes] == ["0-15", "16-31"]
    assert [str(cache.cpus) for cache in machine.l3] == ["0-15", "16-31"]
    assert [node.memory_bytes for node in machine.numa_nodes] == [64 * GIB, 64 * GIB]
    assert machine.distances is not None
    assert dict(machine.distances.rows) == {0: (10, 21), 1: (21, 10)}


def test_siblings_in_the_second_half() -> None:
    machine = parse_short_form("2s8c2t@half")
    assert [str(core) for core in machine.cores] == [f"{n},{n + 16}" for n in range(16)]
    assert [str(socket.cpus) for socket in machine.sockets] == ["0-7,16-23", "8-15,24-31"]


def numa_cpus(text: str) -> list[str]:
    return [str(node.cpus) for node in parse_short_form(text).numa_nodes]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # As captured: AMD Epyc (Zen, Zen 4), Intel with few and many sockets, Xeon Phi.
        ("AMD-17h-Zen-2xEpyc-7451", "2s4n8l24c2t@half"),
        ("AMD-19h-Zen4-2xEpyc-9654", "2s12l96c2t@half"),
        ("Intel-IvyBridge-12xXeon-E5-4620v2", "12s8c2t@half"),
        ("192em64t-24n8c2t", "24s8c2t@half"),
        ("64intel64-heteromem", "1s4n16c4t@half"),
        ("Intel-CascadeLake-2xXeon6230", "2s20c2t@alternate"),
        ("24em64t-2n6c2t+2mic.olddriver", "2s6c2t@alternate"),
        ("40intel64-2g2n4c+pcilocality", "4s10c@alternate"),
        # Arm, AMD before Zen, and what has no second threads.
        ("128arm-2pa2n8cluster4co", "2s2n64c"),
        ("48amd64-4pa2n6c-sparse", "4s2n12c"),
    ],
)
def test_the_numbers_of_real_machines(name: str, text: str) -> None:
    captured = MACHINES / f"{name}.json"
    if not captured.exists():
        pytest.skip("the captures are not here")
    real = json.loads(captured.read_text(encoding="utf-8"))
    machine = parse_short_form(text)
    assert {str(core) for core in machine.cores} == set(real["cores"])
    assert {str(socket.cpus) for socket in machine.sockets} == {
        socket["cpus"] for socket in real["sockets"]
    }
    # Their ids may have gaps, and nodes of other memory may have the same CPUs beside them.
    with_cpus = list(dict.fromkeys(node["cpus"] for node in real["numa"] if node["cpus"]))
    if len(with_cpus) > 1:
        assert [str(node.cpus) for node in machine.numa_nodes] == with_cpus


def test_cpus_are_dealt_to_the_sockets_in_turn() -> None:
    machine = parse_short_form("2s4c2t@alternate")
    assert numa_cpus("2s4c2t@alternate") == ["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"]
    assert [str(core) for core in machine.cores] == [f"{n},{n + 8}" for n in range(8)]
    # With several NUMA nodes in a socket their ids alternate, too.
    assert numa_cpus("2s2n4c@alternate") == ["0,4", "1,5", "2,6", "3,7"]
    machine = parse_short_form("2s2n4c@alternate")
    assert [str(socket.cpus) for socket in machine.sockets] == ["0,2,4,6", "1,3,5,7"]
    assert machine.distances is not None
    assert machine.distances.rows[0] == (10, 21, 12, 21)
    assert numa_cpus("2s8c2t") == numa_cpus("2s8c2t@adjacent")


def test_huge_pages_are_of_each_node() -> None:
    machine = parse_short_form("2s8c@64Gi+hp1Gi=16+hp2Mi=9@1")
    assert [dict(node.hugepages) for node in machine.numa_nodes] == [
        {2 << 20: HugepagePool(0, 0), GIB: HugepagePool(16, 16)},
        {2 << 20: HugepagePool(9, 9), GIB: HugepagePool(16, 16)},
    ]
    assert dict(machine.hugepages) == {2 << 20: HugepagePool(9, 9), GIB: HugepagePool(32, 32)}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("2s8c+gpu=4", [0, 0, 1, 1]),
        ("2s8c+gpu=3", [0, 0, 1]),
        ("2s8c+gpu=1", [0]),
        ("2s8c+gpu=2@1", [1, 1]),
        ("2s8c+gpu=2@1+gpu=1@0", [0, 1, 1]),
        ("4s8c+gpu=4@1,3", [1, 1, 3, 3]),
    ],
)
def test_devices_are_spread_over_nodes(text: str, nodes: list[int]) -> None:
    machine = parse_short_form(text)
    assert [function.numa_node for function in machine.pci] == nodes
    assert {device_kind(function.device_class) for function in machine.pci} == {"display"}
    [listed] = devices_of_machine(machine).values()
    assert listed.name == "nvidia.com/gpu"
    assert [one.id for one in listed.devices.values()] == [f"gpu-{n}" for n in range(len(nodes))]
    assert [one.numa_nodes for one in listed.devices.values()] == [(node,) for node in nodes]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("intel.com/sriov_netdevice", "network"),
        ("rdma/hca", "network"),
        ("example.com/nvme", "storage"),
        ("amd.com/gpu", "display"),
        ("xilinx.com/fpga", "accelerator"),
    ],
)
def test_a_device_has_the_class_of_its_name(name: str, kind: str) -> None:
    [function] = parse_short_form(f"4c+{name}=1").pci
    assert device_kind(function.device_class) == kind
    assert function.names == (f"{name.rpartition('/')[2]}-0",)


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("1s1n1l4c1t@adjacent@16Gi", "4c"),
        ("2s2n2l8c2t@half@1024Mi", "2s2n8c2t@half@1Gi"),
        ("2s8c+hp1Gi=4@0-1+gpu=2@0,1", "2s8c+hp1Gi=4+nvidia.com/gpu=2"),
        ("2s8c+hp1Gi=4@1+gpu=2@1", "2s8c+hp1Gi=4@1+nvidia.com/gpu=2@1"),
    ],
)
def test_the_shortest_text(text: str, shortest: str) -> None:
    assert str(parse_counts(text)) == shortest


def test_cores_are_counted_per_socket() -> None:
    machine = parse_short_form("2s2n8c2t")
    assert len(machine.online) == 32
    assert [str(node.cpus) for node in machine.numa_nodes] == ["0-7", "8-15", "16-23", "24-31"]
    assert machine.distances is not None
    assert machine.distances.rows[1] == (12, 10, 21, 21)


def test_caches_are_what_the_kubelet_calls_uncore_caches() -> None:
    view = kubelet_view(parse_short_form("1s2n4l16c2t"))
    assert view.topology.num_uncore_caches == 4
    assert view.uncore_known
    # A cache of a whole node is none of its cores'.
    assert kubelet_view(parse_short_form("1s2n16c2t")).topology.num_uncore_caches == 1
    assert parse_short_form("0l4c").l3 == ()


@pytest.mark.parametrize(
    ("text", "memory"),
    [("4c", 16 * GIB), ("4c@16Gi", 16 * GIB), ("4c@512Mi", GIB // 2), ("4c@1000", 1000)],
)
def test_memory_of_a_node(text: str, memory: int) -> None:
    assert parse_short_form(text).numa_nodes[0].memory_bytes == memory


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "such as 2s8c2t"),
        ("2s", "such as 2s8c2t"),
        ("8c2s", "such as 2s8c2t"),
        ("2s-8c", "such as 2s8c2t"),
        ("\u0662s8c", "such as 2s8c2t"),
        ("0s8c", "0 sockets"),
        ("2s0c", "0 cores"),
        ("2s8c0t", "0 threads"),
        ("2s0n8c", "0 NUMA nodes"),
        ("2s3n8c", "8 cores per socket cannot be shared evenly by 3 NUMA nodes"),
        ("3l8c", "cannot be shared evenly by 3 level 3 caches"),
        ("2n3l6c", "would overlap"),
        ("2s8c@hlaf", "write @half or a size"),
        ("2s8c@0Gi", "write @half or a size"),
        ("2s8c@999999999Ti", "write @half or a size"),
        ("2s8c@1Gi@2Gi", "the memory of a NUMA node twice"),
        ("2s8c@half@alternate", "numbers the CPUs twice"),
        ("2s8c@intel", "is no numbering; most of these number their CPUs so: @half"),
        ("2s8c@Dell", "number their CPUs so: @alternate"),
        ("2s8c@power", "number their CPUs so: @adjacent"),
        ("2s8c+", "'' after '+' is neither huge pages nor devices; write +hp1Gi=64"),
        ("2s8c+gpu", "'gpu' after '+' is neither huge pages nor devices"),
        ("2s8c+gpu=two", "'gpu=two' after '+' is neither huge pages nor devices"),
        ("2s8c+gpu=0", "'gpu=0' after '+' is nothing; leave it out"),
        ("2s8c+gpu=4@2", "'2' names no NUMA nodes of this machine; it has 0-1"),
        ("2s8c+gpu=4@", "'' names no NUMA nodes of this machine; it has 0-1"),
        ("2s8c+gpu=4@one", "'one' names no NUMA nodes"),
        ("2s8c+gpu=4@0@1", "'gpu=4@0@1' after '+' is neither huge pages nor devices"),
        ("2s8c+gpus=4", "devices have the name that pods ask for, such as nvidia.com/gpu"),
        ("2s8c+kubernetes.io/gpu=4", "devices have the name that pods ask for"),
        ("2s8c+gpu=4097", "at most 4096 devices"),
        ("2s8c+gpu=4000+a.b/c=97", "at most 4096 devices"),
        ("2s8c+half", "'half' after '+' stands after '@', before the first '+': @half"),
        ("2s8c+64Gi", "'64Gi' after '+' stands after '@', before the first '+': @64Gi"),
        ("2s8c+gpu=1@half", "'half' names no NUMA nodes"),
        ("2s8c+hp3Mi=4", "no machine has pages of this size"),
        ("2s8c+hp1Ki=4", "no machine has pages of this size"),
        ("2s8c+hp32Gi=4", "no machine has pages of this size"),
        ("2s8c+hp1Gi=4+hp1Gi=2@1", "NUMA node 1 has pages of this size already"),
        ("2s8c@4Gi+hp1Gi=5", "the huge pages of NUMA node 0 are more than its memory"),
        ("2s8c@4Gi+hp1Gi=3@1+hp2Mi=513", "the huge pages of NUMA node 1 are more than its memory"),
        ("2s8c+hugepages-1Gi=4", "pages are counted, not bytes; write +hp1Gi=PAGES"),
        ("4097c", "4097 CPUs; at most 4096"),
        ("999999999s999999999c999999999t", "at most 4096"),
        ("2s1024n1024c", "2048 NUMA nodes; at most 1024"),
    ],
)
def test_what_is_wrong_is_said(text: str, fault: str) -> None:
    with pytest.raises(MachineError, match=re.escape(fault)):
        parse_short_form(text)


def test_what_is_meant_for_a_short_form() -> None:
    for text in (
        *("2s8c2t", "2s8x", "4c@hlaf", "4c@1.5Gi", "2s8c+gpu=4", "2s8c+nvidia.com/gpu=4@0"),
        *("2s8c@half+hp1Gi=4", "2s8c+", "2s8c+gup"),
    ):
        assert looks_like_short_form(text)
    for text in (
        *("capture.tar.xzz", "node", "2s8c2t.json", "a/2s8c2t", "", "2S8C2T"),
        *("2s8c@half/x", "a+gpu=4", "a/2s8c+gpu=4"),
    ):
        assert not looks_like_short_form(text)


@st.composite
def forms(draw: st.DrawFn) -> ShortForm:
    sockets, nodes = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    caches = nodes * draw(st.integers(1, 3))
    cores = caches * draw(st.integers(1, 3))
    threads = draw(st.integers(1, 4))
    many = st.lists(st.integers(0, 9), min_size=sockets * nodes, max_size=sockets * nodes)
    counts = many.filter(any).map(tuple)
    sizes = st.sampled_from([1 << 16, 2 << 20])
    names = st.sampled_from(["nvidia.com/gpu", "example.com/nic", "hp.com/hp1Gi"])
    usual = st.just(default_memory(cores, threads, nodes))
    return ShortForm(
        sockets=sockets,
        nodes=nodes,
        caches=draw(st.sampled_from([0, 1, nodes, caches])),
        cores=cores,
        threads=threads,
        numbering=draw(st.sampled_from(Numbering)),
        memory=draw(usual | st.integers(1 << 30, 1 << 60)),
        hugepages=tuple(sorted(draw(st.dictionaries(sizes, counts, max_size=2)).items())),
        devices=tuple(draw(st.dictionaries(names, counts, max_size=2)).items()),
    )


@given(forms())
def test_text_reads_back(form: ShortForm) -> None:
    counts = f"{form.sockets}s{form.nodes}n{form.caches}l{form.cores}c{form.threads}t"
    beside = "".join(f"+{part}" for part in str(form).split("+")[1:])
    assert parse_counts(f"{counts}@{form.numbering.value}@{form.memory}{beside}") == form
    assert parse_counts(str(form)) == form
    assert looks_like_short_form(str(form))


@given(forms())
def test_counts_are_those_of_the_machine(form: ShortForm) -> None:
    machine = build(form, name="it")
    assert len(machine.online) == form.cpus
    assert sorted(machine.online) == list(range(form.cpus))
    assert len(machine.sockets) == form.sockets
    assert len(machine.numa_nodes) == form.sockets * form.nodes
    assert len(machine.cores) == form.sockets * form.cores
    assert len(machine.l3) == form.sockets * form.caches
    assert {len(core) for core in machine.cores} == {form.threads}
    for groups in (
        machine.cores,
        [socket.cpus for socket in machine.sockets],
        [node.cpus for node in machine.numa_nodes],
    ):
        assert sum(len(cpus) for cpus in groups) == form.cpus
    for node, found in enumerate(machine.numa_nodes):
        assert found.id == node
        assert {size: pool.total for size, pool in found.hugepages.items()} == {
            size: pages[node] for size, pages in form.hugepages
        }
    for name, there in form.devices:
        places = [one.numa_node for one in machine.pci if one.resource == name]
        assert tuple(places.count(node) for node in range(len(there))) == there
    assert len({one.address for one in machine.pci}) == len(machine.pci)
    for name, listed in devices_of_machine(machine).items():
        assert len(listed.devices) == sum(dict(form.devices)[name])
    topology = kubelet_view(machine).topology
    assert topology.num_cpus == form.cpus
    assert topology.num_cores == form.sockets * form.cores
    assert topology.num_sockets == form.sockets
    assert topology.num_numa_nodes == form.sockets * form.nodes


@given(st.text(st.sampled_from("0123456789snlct@hafGiMk .-+=gpu"), max_size=24))
def test_any_text_reads_or_is_refused(text: str) -> None:
    with suppress(MachineError):
        machine = parse_short_form(text)
        assert 1 <= len(machine.online) <= MAX_CPUS
