"""A machine with two NUMA nodes: its pools of huge pages, and what the kernel says of memory."""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from pinfold.core.values.cpuset import CPUSet

SMALL: Final = 2 << 20
PAGES: Final = 32
"""Huge pages of 2Mi on each node while these tests run."""

_NODES: Final = Path("/sys/devices/system/node")
_ON_A_NODE: Final = re.compile(r" N([0-9]+)=([0-9]+)")


def node_ids() -> list[int]:
    """The NUMA nodes of this machine."""
    return sorted(int(path.name[4:]) for path in _NODES.glob("node[0-9]*"))


def cpus_of(node: int) -> CPUSet:
    """The CPUs of a NUMA node."""
    return CPUSet.parse((_NODES / f"node{node}" / "cpulist").read_text().strip())


def memory_of(node: int) -> int:
    """Bytes of memory of a NUMA node."""
    return _amount(node, "MemTotal")


def free_memory_of(node: int) -> int:
    """Bytes of a NUMA node that nobody uses."""
    return _amount(node, "MemFree")


def _amount(node: int, name: str) -> int:
    found = re.search(name + r":\s+(\d+) kB", (_NODES / f"node{node}" / "meminfo").read_text())
    assert found is not None
    return int(found[1]) << 10


def pages(what: str = "free") -> dict[int, int]:
    """The huge pages of 2Mi of every node: those that are free, or all (``nr``)."""
    return {node: int((_pool(node) / f"{what}_hugepages").read_text()) for node in node_ids()}


def _pool(node: int) -> Path:
    return _NODES / f"node{node}" / "hugepages" / "hugepages-2048kB"


def _set(wanted: dict[int, int]) -> None:
    for node, count in wanted.items():
        (_pool(node) / "nr_hugepages").write_text(str(count))


@contextmanager
def equal_pools(factory: pytest.TempPathFactory) -> Iterator[None]:
    """:data:`PAGES` on each node; as before at the end.  Skips the test where that cannot be."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if len(node_ids()) < 2:
        pytest.skip("needs a second NUMA node (make guest has one)")
    if not all(_pool(node).is_dir() for node in node_ids()):
        pytest.skip("the kernel has no huge pages of 2Mi")
    with (factory.getbasetemp().parent / "hugepages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = pages("nr")
        if pages() != before:
            pytest.skip(f"huge pages are in use: free {pages()} of {before}")
        try:
            _set(dict.fromkeys(before, PAGES))
            if pages() != dict.fromkeys(before, PAGES):
                pytest.skip(f"no huge pages can be had here: {pages()}")
            yield
        finally:
            _set(before)
        assert pages("nr") == before, "not all pages could be had back"


def huge_by_node(pid: int) -> dict[int, int]:
    """The huge pages that a process has mapped, by the node that each is on."""
    return _by_node(pid, lambda line: " huge " in line)


def anonymous_by_node(pid: int) -> dict[int, int]:
    """The pages of a process that belong to no file (heap, stacks, anonymous maps), by node."""
    return _by_node(pid, lambda line: " file=" not in line)


def _by_node(pid: int, chosen: Callable[[str], bool]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if chosen(f"{line} "):
            found.update({int(node): int(count) for node, count in _ON_A_NODE.findall(line)})
    return dict(found)


def memory_nodes(pid: int) -> CPUSet:
    """Where the kernel takes a process's memory from."""
    found = re.search(r"Mems_allowed_list:\s+(\S+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return CPUSet.parse(found[1])


def cgroup_of(pid: int) -> Path:
    """The folder of a process's cgroup in the hierarchy that has cpusets."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in (controllers, ""):
            folder = Path("/sys/fs/cgroup", name, path.lstrip("/"))
            if (folder / "cpuset.mems").exists():
                return folder
    raise AssertionError(f"process {pid} is in no cgroup with cpusets")
