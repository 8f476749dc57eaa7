"""Where the memory of processes is, and how much room a NUMA node has."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from pinfold.linux.numa_memory import NodeMemory, memory_of, room_on
from pinfold.ports.errors import NoRoomError
from tests.scenes.process_world import no_files

MAPS = """\
1000 default file=/usr/bin/a\\040N0=7 mapped=4 mapmax=2 N0=3 N1=1 kernelpagesize_kB=4
5000 bind:0 anon=2 dirty=2 active=0 N1=2 kernelpagesize_kB=4
8000 prefer (many):0-1 heap
a000 default file=/anon_hugepage\\040(deleted) huge anon=3 dirty=3 N0=3 kernelpagesize_kB=2048
b000 default file=/dev/hugepages/x huge dirty=4 mapmax=4 N1=4 kernelpagesize_kB=2048
"""
SMAPS = """\
1000-5000 r--p 00000000 fe:00 260386                     /usr/bin/a: Rss: 1
Rss:                  16 kB
Pss:                   8 kB
VmFlags: rd mr mw me
5000-8000 rw-p 00000000 00:00 0
Rss:                   8 kB
Pss:                   8 kB
VmFlags: rd wr mr mw me lo ac
8000-a000 rw-p 00000000 00:00 0                          [heap]
Rss:                   0 kB
Pss:                   0 kB
VmFlags: rd wr lo
a000-b000 rw-p 00000000 00:00 0
Rss:                   0 kB
Pss:                   0 kB
VmFlags: rd wr ht lo
"""


def write(proc: Path, pid: int, **files: str) -> None:
    (proc / str(pid)).mkdir()
    for name, text in files.items():
        (proc / str(pid) / name).write_text(text)


def test_pages_count_once_by_node_and_kind(tmp_path: Path) -> None:
    write(tmp_path, 1, numa_maps=MAPS, smaps=SMAPS, status="Name:\ta\nVmPin:\t      12 kB\n")
    found = memory_of([1, 2], tmp_path)
    assert found.pinned == 12 << 10
    assert found.nodes == {
        # Half of what two map; of hugetlb the whole of the own, and a fourth of what four map.
        0: NodeMemory(ordinary=3 * 4096 / 2, huge=3 << 21, locked=0),
        1: NodeMemory(ordinary=4096 / 2 + 2 * 4096, huge=1 << 21, locked=2 * 4096),
    }


def test_who_has_ended_has_nothing_and_what_is_not_known_is_whole(tmp_path: Path) -> None:
    assert memory_of([], tmp_path).nodes == {}
    assert memory_of([7], tmp_path).nodes == {}
    write(tmp_path, 7, numa_maps=MAPS.splitlines()[1] + "\n")
    assert memory_of([7], tmp_path).nodes == {1: NodeMemory(ordinary=2 * 4096)}


def test_that_nothing_could_be_read_is_said() -> None:
    with no_files(), pytest.raises(NoRoomError):
        memory_of([os.getpid()])


def test_this_process() -> None:
    size = 24 << 20
    before = memory_of([os.getpid()])
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1
        after = memory_of([os.getpid()])
    grown = sum(node.ordinary for node in after.nodes.values())
    grown -= sum(node.ordinary for node in before.nodes.values())
    # The rest of this process may have given some pages back meanwhile, or taken some.
    assert size * 0.9 < grown < size * 1.2


def test_the_room_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "meminfo").write_text(
        "Node 1 MemTotal:       1000 kB\nNode 1 MemFree:         800 kB\n"
        "Node 1 Active(file):     30 kB\nNode 1 Inactive(file):   10 kB\n"
        "Node 1 SReclaimable:      6 kB\nNode 1 HugePages_Total:     5\n"
    )
    zones = tmp_path / "zoneinfo"
    zones.write_text(
        "Node 0, zone   Normal\n  pages free     9\n        min      1\n        low      90\n"
        "Node 1, zone      DMA\n        low      2\n        high     50\n"
        "    cpu: 0\n              low:  70\n"
        "Node 1, zone   Normal\n        low      3\n"
    )
    wanted = (800 + 20 + 3 << 10) - 5 * mmap.PAGESIZE
    assert room_on([1, 4], tmp_path, zones) == {1: wanted, 4: 0}
    zones.write_text("Node 1, zone   Normal\n        low      300\n")
    assert room_on([1], tmp_path, zones) == {1: 0}


def _kilobytes(path: Path, name: str) -> int:
    lines = path.read_text().splitlines()
    return next(int(line.split()[-2]) for line in lines if f"{name}:" in line.split())


def test_the_room_of_this_machine() -> None:
    machine = Path("/proc/meminfo")
    folders = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    total = sum(_kilobytes(one / "meminfo", "MemTotal") for one in folders)
    if total < 0.9 * _kilobytes(machine, "MemTotal"):
        pytest.skip("the nodes of this virtual machine do not have all of its memory")
    available = _kilobytes(machine, "MemAvailable") << 10
    # The kernel's own figure leaves some more aside.
    room = sum(room_on([int(one.name[4:]) for one in folders]).values())
    assert available * 0.8 < room < available * 1.2
