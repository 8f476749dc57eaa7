"""The rules of discovery, one by one, on trees of a few files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.machines.memory import MemoryNode, guess_kinds
from pinfold.adapters.machines.numa import (
    parse_default_hugepages,
    parse_distances,
    parse_mem_total,
)
from pinfold.adapters.machines.proc import CpuInfo
from pinfold.adapters.machines.reader import parse_number, parse_size
from pinfold.core.machine.boot import boot_isolation, parse_isolcpus
from pinfold.core.machine.machine import HugepagePool, MachineError
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.sysfs_trees import CPU, NODE, cache_files, cpu_files, machine, node_files, plain


def cores(files: dict[str, str]) -> list[str]:
    return [str(core) for core in machine(files).cores]


def test_cpus_without_any_list_are_the_folders() -> None:
    files = cpu_files(0) | cpu_files(3) | {f"{CPU}/cpufreq/": "", f"{CPU}/cpuidle/": ""}
    assert machine(files).online == CPUSet([0, 3])


def test_online_file_of_each_cpu_counts_where_there_is_no_list() -> None:
    files = cpu_files(0) | cpu_files(1) | cpu_files(2)
    files |= {f"{CPU}/cpu0/online": "0\n", f"{CPU}/cpu1/online": "1\n"}
    found = machine(files)
    assert (found.online, found.offline) == (CPUSet([1, 2]), CPUSet([0]))


def test_online_list_counts_more_than_online_files() -> None:
    found = machine(plain(2) | {f"{CPU}/cpu1/online": "0\n"})
    assert found.online == CPUSet([0, 1])


def test_offline_cpus_are_in_no_group() -> None:
    found = machine(plain(4, online="1,3"))
    assert [str(core) for core in found.cores] == ["1", "3"]
    assert [str(socket.cpus) for socket in found.sockets] == ["1,3"]
    assert [str(node.cpus) for node in found.numa_nodes] == ["1,3"]
    assert [cpu.cpu for cpu in found.cpus if cpu.core is None] == [0, 2]


@pytest.mark.parametrize(("name", "old"), [("core_cpus", False), ("thread_siblings", True)])
def test_siblings_make_cores(name: str, *, old: bool) -> None:
    files = plain(4)
    for cpu in range(4):
        folder = f"{CPU}/cpu{cpu}/topology"
        if old:
            del files[f"{folder}/core_cpus"]
        files |= {
            f"{folder}/{name}": "5" if cpu % 2 == 0 else "a",
            f"{folder}/core_id": f"{cpu % 2}",
        }
    assert cores(files) == ["0,2", "1,3"]


def test_masks_count_more_than_lists() -> None:
    files = plain(2)
    for cpu in range(2):
        files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = "0-1"
        files[f"{CPU}/cpu{cpu}/topology/core_id"] = "0"
    assert cores(files) == ["0", "1"]
    files[f"{NODE}/node0/cpulist"] = "0"
    assert [str(node.cpus) for node in machine(files).numa_nodes] == ["0-1"]


def test_lists_serve_where_there_are_no_masks() -> None:
    files = {f"{CPU}/online": "0-1"}
    for cpu in range(2):
        files |= cpu_files(cpu) | {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": "0-1"}
    assert cores(files | {f"{NODE}/node0/cpulist": "0-1"}) == ["0-1"]


def test_without_siblings_every_cpu_is_a_core() -> None:
    assert cores(cpu_files(0) | cpu_files(1)) == ["0", "1"]


def test_siblings_with_other_core_ids_are_other_cores() -> None:
    files = cpu_files(0, core=0, siblings="3") | cpu_files(1, core=1, siblings="3")
    assert cores(files) == ["0", "1"]


def test_package_id_counts_more_than_siblings() -> None:
    files = cpu_files(0, package=7, package_cpus="1") | cpu_files(1, package=7, package_cpus="2")
    assert [(s.id, str(s.cpus)) for s in machine(files).sockets] == [(7, "0-1")]


def test_unknown_package_ids_leave_the_siblings() -> None:
    files: dict[str, str] = {}
    for cpu in range(4):
        files |= cpu_files(cpu, core=cpu, package=-1, core_siblings="5" if cpu % 2 == 0 else "a")
    found = machine(files)
    assert [(s.id, str(s.cpus)) for s in found.sockets] == [(None, "0,2"), (None, "1,3")]
    assert {cpu.socket for cpu in found.cpus} == {None}


def test_level_three_counts_not_the_index() -> None:
    files = plain(2) | cache_files(0, 1, shared_cpu_map="3") | cache_files(1, 1, shared_cpu_map="3")
    files |= cache_files(0, 3, level="2", id="5") | cache_files(1, 4, type="Instruction")
    found = machine(files)
    assert [(str(c.cpus), c.size, c.id) for c in found.l3] == [("0-1", 32 << 20, 0)]
    assert [(cpu.l3, cpu.l3_id) for cpu in found.cpus] == [(0, 0), (0, 0)]


def test_empty_cache_map_is_private_to_the_core() -> None:
    files: dict[str, str] = {}
    for cpu in range(4):
        files |= cpu_files(cpu, core=cpu // 2, siblings="3" if cpu < 2 else "c")
        files |= cache_files(cpu, 3, shared_cpu_map="", id="-")
    found = machine(files)
    assert [str(cache.cpus) for cache in found.l3] == ["0-1", "2-3"]
    assert {cache.id for cache in found.l3} == {None}


def test_node_ids_may_be_sparse_and_cpus_in_several_nodes() -> None:
    files = plain(2) | node_files(33, "2") | node_files(7, "0", memory_kb=1024)
    found = machine(files)
    assert [node.id for node in found.numa_nodes] == [0, 7, 33]
    assert found.cpus[1].numa == 0
    assert found.cpus[1].numa_all == (0, 33)
    assert found.numa_nodes[1].memory_bytes == 1 << 20


def test_without_node_folders_there_is_one_with_all() -> None:
    files = {path: text for path, text in plain(2).items() if not path.startswith(NODE)}
    files["proc/meminfo"] = (
        "MemTotal: 2048 kB\nHugePages_Total: 3\nHugePages_Free: 1\nHugepagesize: 2048 kB\n"
    )
    (node,) = machine(files).numa_nodes
    assert (node.id, str(node.cpus), node.synthetic) == (0, "0-1", True)
    assert node.memory_bytes == 2 << 20
    assert dict(node.hugepages) == {2 << 20: HugepagePool(3, 1)}


def test_distance_rows_stay_as_read() -> None:
    files = plain(2) | {f"{NODE}/node0/distance": "21 10\n"}
    distances = machine(files).distances
    assert distances is not None
    assert dict(distances.rows) == {0: (21, 10)}


def test_hugepages_of_a_node() -> None:
    folder = f"{NODE}/node0/hugepages"
    files = plain(1) | {
        f"{folder}/hugepages-1048576kB/nr_hugepages": "4",
        f"{folder}/hugepages-1048576kB/free_hugepages": "3",
        f"{folder}/hugepages-2048kB/nr_hugepages": "512",
    }
    assert dict(machine(files).numa_nodes[0].hugepages) == {
        2 << 20: HugepagePool(512, 512),
        1 << 30: HugepagePool(4, 3),
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("quiet isolcpus=1-3,8 ro", "1-3,8"),
        ("isolcpus=domain,managed_irq,2", "2"),
        ("isolcpus=nohz,2", ""),
        ("isolcpus=1 isolcpus=2", "2"),
        ("notisolcpus=1", ""),
        ("isolcpus=nonsense", ""),
        ("", ""),
    ],
)
def test_isolated_cpus_of_the_command_line(line: str, expected: str) -> None:
    assert str(parse_isolcpus(line)) == expected


@pytest.mark.parametrize(
    ("line", "isolated", "nohz", "expected"),
    [
        ("isolcpus=2-3 nohz_full=2-3 rcu_nocbs=1-3", "2-3", "2-3", ("2-3", "2-3", "1-3")),
        # A partition of cpusets, on kernels that list these with the others.
        ("quiet", "2-3", None, ("", "", "")),
        ("isolcpus=3", "2-3", None, ("3", "", "")),
        # What the kernel makes of words that are not understood here counts.
        ("isolcpus=what,2", "2", None, ("2", "", "")),
        ("", "2-3", None, ("2-3", "", "")),
        ("isolcpus=2-N nohz_full=all rcu_nocbs=N", None, None, ("2-3", "0-3", "3")),
        ("nohz_full=2", None, "  (null)\n", ("", "2", "")),
        ("nohz_full=2", None, "\n", ("", "", "")),
        ("isolcpus=2-9", None, None, ("2-3", "", "")),
        (None, None, None, ("", "", "")),
    ],
)
def test_what_the_kernel_was_booted_with(
    line: str | None, isolated: str | None, nohz: str | None, expected: tuple[str, str, str]
) -> None:
    kernel = None if isolated is None else CPUSet.parse(isolated)
    found = boot_isolation(line, CPUSet(range(4)), isolated=kernel, nohz_full=nohz)
    assert (str(found.isolated), str(found.nohz_full), str(found.rcu_nocbs)) == expected


def test_isolated_file_counts_more_than_the_command_line() -> None:
    files = plain(4) | {"proc/cmdline": "isolcpus=1"}
    assert machine(files).isolated == CPUSet([1])
    assert machine(files | {f"{CPU}/isolated": "2-3\n"}).isolated == CPUSet([2, 3])
    assert machine(files | {f"{CPU}/isolated": "\n"}).isolated == CPUSet()


@pytest.mark.parametrize(
    ("mounts", "group", "path"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw", "0::/a/b", "sys/fs/cgroup/a/b/cpuset.cpus.effective"),
        ("c /cg cgroup rw,cpuset", "3:cpuset,cpu:/a", "cg/a/cpuset.cpus"),
        ("none /dev/cpuset cgroup rw,cpuset,noprefix", "3:cpuset:/a", "dev/cpuset/a/cpus"),
        ("none /dev/cpuset cpuset rw", "", "dev/cpuset/x/cpus"),
    ],
)
def test_allowed_cpus_are_those_of_the_cpuset(mounts: str, group: str, path: str) -> None:
    files = plain(4) | {
        "proc/mounts": f"proc /proc proc rw 0 0\n{mounts} 0 0\n",
        "proc/self/cgroup": f"1:name=systemd:/else\n{group}\n",
        "proc/self/cpuset": "/x\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io\n",
        path: "1-2,9\n",
    }
    found = machine(files)
    assert found.allowed == CPUSet([1, 2])
    assert [cpu.allowed for cpu in found.cpus] == [False, True, True, False]
    del files[path]
    assert machine(files).allowed == found.online


def test_files_that_end_with_a_nul() -> None:
    files = plain(1) | {f"{CPU}/cpu0/topology/core_cpus": "00000001\n\0"}
    assert cores(files) == ["0"]


def test_pci_functions_by_class_and_address() -> None:
    folder = "sys/bus/pci/devices"
    files = plain(4) | {
        f"{folder}/10000:00:04.0/class": "0x010802\n",
        f"{folder}/0000:02:00.0/class": "0x020000\n",
        f"{folder}/0000:02:00.0/numa_node": "0\n",
        f"{folder}/0000:02:00.0/local_cpus": "3\n",
        f"{folder}/0000:02:00.0/local_cpulist": "0-3\n",
        f"{folder}/0000:00:00.0/class": "0x060000\n",
        f"{folder}/0000:03:00.0/class": "0x0b4000\n",
    }
    found = machine(files).pci
    assert [(f.address, f.numa_node) for f in found] == [
        ("0000:02:00.0", 0),
        ("0000:03:00.0", -1),
        ("10000:00:04.0", -1),
    ]
    assert found[0].local_cpus == CPUSet([0, 1])
    assert found[1].local_cpus is None


def test_memory_kinds_need_twice_the_bandwidth() -> None:
    def kinds(*bandwidths: int) -> dict[int, str]:
        return guess_kinds([MemoryNode(i, "", b, 0) for i, b in enumerate(bandwidths)])

    assert kinds(100, 300) == {0: "DRAM", 1: "HBM"}
    assert kinds(100, 180) == {}
    assert kinds(100, 105) == {}
    assert kinds(0, 0) == {}
    assert kinds(100, 300, 900) == {}
    assert guess_kinds([MemoryNode(0, "", 100, 0), MemoryNode(1, "SPM", 300, 0)]) == {
        0: "DRAM",
        1: "HBM",
    }
    assert guess_kinds([MemoryNode(0, "", 0, 0), MemoryNode(1, "NVM", 0, 0)]) == {1: "NVM"}


def test_memory_without_cpus_is_near_the_closest_nodes() -> None:
    files = plain(2)
    del files[f"{NODE}/node0/cpumap"]
    files |= node_files(0, "1", distance="10 20 17") | node_files(1, "2", distance="20 10 28")
    files |= node_files(2, "0", distance="17 28 10", memory_kb=4)
    assert machine(files).numa_nodes[2].local_cpus == CPUSet([0])
    far = files | node_files(2, "0", distance="28 28 10", memory_kb=4)
    assert machine(far).numa_nodes[2].local_cpus is None


def test_knights_landing_has_fast_memory_beside_each_node() -> None:
    files = plain(2)
    for node, (cpus, row) in enumerate(
        [("1", "10 21 31 41"), ("2", "21 10 41 31"), ("0", "31 41 10 41"), ("0", "41 31 41 10")]
    ):
        files |= node_files(node, cpus, distance=row)
    phi = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 87\n\n"
    nodes = machine(files | {"proc/cpuinfo": phi}).numa_nodes
    assert [node.memory_kind for node in nodes] == ["DRAM", "DRAM", "HBM", "HBM"]
    assert [node.local_cpus for node in nodes] == [None, None, CPUSet([0]), CPUSet([1])]
    assert {node.memory_kind for node in machine(files).numa_nodes} == {None}


def test_dax_memory_is_told_by_its_place() -> None:
    files = plain(1) | node_files(1, "0", memory_kb=4)
    files |= {
        "sys/bus/dax/drivers/kmem/dax0.0/": "",
        "sys/devices/platform/ndbus0/dax0.0/target_node": "1\n",
    }
    links = {"sys/bus/dax/devices/dax0.0": "../../../devices/platform/ndbus0/dax0.0"}
    assert machine(files, links).numa_nodes[1].memory_kind == "NVM"


@pytest.mark.parametrize(
    ("cpuinfo", "architecture", "model"),
    [
        ("vendor_id : X\nmodel name\t: A B \nflags : fpu lm\n", "x86_64", "A B "),
        ("vendor_id : X\nfdiv_bug : no\nflags : fpu lm\n", "i386", None),
        ("vendor_id : X\nflags : fpu\n", "i386", None),
        ("processor : 0\narch : IA-64\n", "ia64", None),
        ("vendor_id : IBM/S390\n", "s390x", None),
        ("CPU implementer\t: 0x41\nCPU architecture: 8\n", "aarch64", None),
        ("Processor\t: ARMv7 rev 1\nCPU implementer : 0x41\n", "arm", "ARMv7 rev 1"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "ppc64", None),
        ("", None, None),
    ],
)
def test_cpuinfo(cpuinfo: str, architecture: str | None, model: str | None) -> None:
    found = machine(plain(1) | {"proc/cpuinfo": cpuinfo})
    assert found.architecture == architecture
    assert found.cpu_model == model or architecture == "ppc64"


def test_sockets_of_cpuinfo_are_distinct_lines() -> None:
    text = "physical id\t: 0\n\nphysical id\t: 3\n\nphysical id\t: 0\nphysical ident : 9\n"
    assert CpuInfo(text).physical_ids == 2


@pytest.mark.parametrize(
    "files",
    [
        {f"{CPU}/online": "0-x"},
        {f"{CPU}/online": "0-999999999"},
        {f"{CPU}/present": "3-1", f"{CPU}/cpu0/online": "1"},
        {f"{CPU}/cpu0/online": "maybe"},
        cpu_files(0) | {f"{CPU}/cpu0/topology/core_id": "one"},
        cpu_files(0) | {f"{CPU}/cpu0/topology/core_cpus": "xyz"},
        cpu_files(0) | cache_files(0, 3, size="large"),
        cpu_files(0) | cache_files(0, 3, level="three"),
        cpu_files(0) | node_files(0, "1", distance="10 near"),
        cpu_files(0) | node_files(0, "zz"),
        {f"{CPU}/cpu0/online": "0"},
        {f"{CPU}/": ""},
        {},
    ],
    ids=lambda files: next(reversed(files), "nothing"),
)
def test_garbage_is_one_error_that_names_the_file(files: dict[str, str]) -> None:
    with pytest.raises(MachineError) as caught:
        machine(files)
    message = str(caught.value)
    assert message.startswith("test: sys/") or "no sys/devices/system/cpu" in message
    assert "\n" not in message
    assert "; " in message


@given(st.integers(-(10**17), 10**17), st.sampled_from(["", "\n", " ", "\t\n"]))
def test_numbers_round_trip(number: int, blank: str) -> None:
    assert parse_number(f"{blank}{number}{blank}") == number


@given(st.lists(st.integers(0, 255), min_size=1), st.sampled_from([" ", "\t", "  "]))
def test_distances_round_trip(row: list[int], blank: str) -> None:
    assert parse_distances(blank.join(map(str, row)) + "\n") == tuple(row)


@given(st.integers(0, 10**9))
def test_sizes_are_in_binary_units(count: int) -> None:
    assert parse_size(f"{count}K\n") == count * 1024
    assert parse_size(str(count)) == count


@given(st.text())
def test_parsers_of_text_fail_in_one_way(text: str) -> None:
    for parse in (parse_number, parse_size, parse_distances):
        try:
            parse(text)
        except ValueError as error:
            assert type(error) is ValueError  # noqa: PT017 - both outcomes are right
    assert parse_mem_total(text) is None or "MemTotal" in text
    assert not parse_default_hugepages(text) or "Hugepagesize" in text
    parse_isolcpus(text)
    CpuInfo(text)
