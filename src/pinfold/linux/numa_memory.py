"""NUMA nodes: how much of the memory of processes is on each, and how much room each has.

A page that several processes map counts for each of them in proportion, as in the kernel's ``Pss``,
so that what a container's processes share counts once.  Source: ``proc_pid_numa_maps(5)``,
``proc_pid_smaps(5)``, ``proc_pid_status(5)``, the kernel's ``si_mem_available``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from mmap import PAGESIZE
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.linux.descriptors import gone_or_raise
from pinfold.linux.processes import PROC

_ON_A_NODE: Final = re.compile(r" N([0-9]+)=([0-9]+)")
_PAGE_SIZE: Final = re.compile(r" kernelpagesize_kB=([0-9]+)")
_MAPPED_BY: Final = re.compile(r" mapmax=([0-9]+)")
_RANGE: Final = re.compile(r"^([0-9a-f]+)-[0-9a-f]+ ")
_PINNED: Final = re.compile(r"^VmPin:\s+([0-9]+) kB$", re.MULTILINE)

_NODES: Final = Path("/sys/devices/system/node")
_ZONEINFO: Final = Path("/proc/zoneinfo")
_ZONE: Final = re.compile(r"^Node ([0-9]+), zone")
_LOW: Final = re.compile(r"^\s+low\s+([0-9]+)$")
_AMOUNT: Final = re.compile(r"^Node [0-9]+ (\S+):\s+([0-9]+) kB$", re.MULTILINE)


class NodeMemory(Struct):
    """Bytes of some processes on one NUMA node; ``locked`` are some of the ``ordinary`` ones.

    ``huge`` are of hugetlb; what the kernel has made transparent huge pages of is ordinary.
    """

    ordinary: float = 0.0
    huge: float = 0.0
    locked: float = 0.0


class ProcessMemory(Struct):
    """Where the memory of some processes is: by NUMA node, and what is pinned, on any of them."""

    nodes: dict[int, NodeMemory]
    pinned: int = 0
    """Bytes that the kernel, or a device, has a hold of (``VmPin``)."""


class _Range(Struct, frozen=True):
    """What ``smaps`` says of a range of addresses: its share of its pages, and its lock."""

    share: float
    locked: bool


def memory_of(pids: Iterable[int], proc: Path = PROC) -> ProcessMemory:
    """Where the memory of these processes is; who has ended has none.

    Raises:
        NoRoomError: the kernel has no file or memory left for a look.
    """
    found = ProcessMemory({})
    for pid in pids:
        lines = _read(proc / str(pid) / "numa_maps").splitlines()
        if not lines:
            continue
        ranges = dict(_ranges(_read(proc / str(pid) / "smaps")))
        for line in lines:
            _add(found.nodes, line, ranges)
        if (pinned := _PINNED.search(_read(proc / str(pid) / "status"))) is not None:
            found.pinned += int(pinned[1]) << 10
    return found


def _add(nodes: dict[int, NodeMemory], line: str, ranges: dict[int, _Range]) -> None:
    size = _PAGE_SIZE.search(line)
    counts = _ON_A_NODE.findall(line)
    if size is None or not counts:
        return
    known = ranges.get(int(line.partition(" ")[0], 16), _Range(1.0, locked=False))
    huge = " huge " in f"{line} "
    mapped = _MAPPED_BY.search(line)
    # Of the pages of hugetlb no share is told.
    share = known.share if not huge else 1 / int(mapped[1]) if mapped else 1.0
    for node, count in counts:
        memory = nodes.setdefault(int(node), NodeMemory())
        amount = int(count) * (int(size[1]) << 10) * share
        if huge:
            memory.huge += amount
        else:
            memory.ordinary += amount
            memory.locked += amount if known.locked else 0.0


def _ranges(text: str) -> Iterator[tuple[int, _Range]]:
    start, resident, own = -1, 0, 0
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == "Rss":
            resident = int(rest.split()[0])
        elif name == "Pss":
            own = int(rest.split()[0])
        elif name == "VmFlags":
            share = own / resident if resident else 1.0
            yield start, _Range(share, locked="lo" in rest.split())
        elif (match := _RANGE.match(line)) is not None:
            start, resident, own = int(match[1], 16), 0, 0


def _read(path: Path) -> str:
    """A file of a process; nothing of one that has ended, or may not be seen."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        gone_or_raise(path, error)
        return ""


def room_on(
    nodes: Iterable[int], sysfs: Path = _NODES, zoneinfo: Path = _ZONEINFO
) -> dict[int, int]:
    """Bytes that each of these nodes can take in without running short; 0 where it is not there.

    That is what the kernel estimates for the machine as ``MemAvailable``, for one node: what is
    free above the low watermark, half of the pages of files, and half of what can be reclaimed of
    the kernel's own.

    Raises:
        OSError: the kernel does not tell.
    """
    low = _low_watermarks(zoneinfo)
    found = {}
    for node in nodes:
        try:
            text = (sysfs / f"node{node}" / "meminfo").read_text(encoding="ascii")
        except FileNotFoundError:
            found[node] = 0
            continue
        amounts = {name: int(kilobytes) << 10 for name, kilobytes in _AMOUNT.findall(text)}
        files = amounts.get("Active(file)", 0) + amounts.get("Inactive(file)", 0)
        spare = amounts.get("MemFree", 0) - low.get(node, 0)
        spare += files // 2 + amounts.get("SReclaimable", 0) // 2
        found[node] = max(spare, 0)
    return found


def _low_watermarks(zoneinfo: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    node = -1
    for line in zoneinfo.read_text(encoding="ascii").splitlines():
        if (zone := _ZONE.match(line)) is not None:
            node = int(zone[1])
        elif (low := _LOW.match(line)) is not None:
            found[node] = found.get(node, 0) + int(low[1]) * PAGESIZE
    return found
