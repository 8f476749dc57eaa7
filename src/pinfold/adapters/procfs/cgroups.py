"""The cgroup hierarchies: found by the mounts, not assumed; cpusets and CPU quotas in them.

Sources: cgroups(7), cpuset(7), the kernel's ``cgroup-v2.rst`` and ``scheduler/sched-bwc.rst``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from pinfold.adapters.procfs.files import KernelFiles
from pinfold.audit.snapshot import Cpuset, Quota
from pinfold.linux.cgroup_mounts import mount_with
from pinfold.linux.mounts import parse_mountinfo

_CONTROLLERS: Final = ("cpuset", "cpu", "memory", "pids", "io", "hugetlb")
_LIMITS: Final = (
    "cpu.weight",
    "cpu.max",
    "cpu.max.burst",
    "cpu.shares",
    "cpu.cfs_quota_us",
    "cpu.cfs_burst_us",
    "memory.min",
    "memory.low",
    "memory.high",
    "memory.max",
    "memory.limit_in_bytes",
    "pids.max",
    "io.weight",
    "io.bfq.weight",
)
_MAX_GROUPS: Final = 100_000
_HUGETLB: Final = re.compile(r"hugetlb\.[0-9]+[KMG]B\.(max|limit_in_bytes)")
_NO_LIMIT: Final = 1 << 62
"""From here on version 1 means no limit: the largest number, in whole pages."""


class Hierarchy(Struct, frozen=True):
    """A mounted hierarchy: ``version`` 1 or 2, where it is mounted, and which part of it.

    ``controller`` is how ``/proc/PID/cgroup`` names it: the controller on v1, "" on v2.
    """

    version: int
    folder: str
    controller: str
    root: str = "/"

    def place(self, path: str) -> str:
        """A path of ``/proc/PID/cgroup`` as seen from the mount's root."""
        if self.root != "/" and (path == self.root or path.startswith(f"{self.root}/")):
            return path[len(self.root) :] or "/"
        return path


def find_hierarchies(files: KernelFiles) -> dict[str, Hierarchy]:
    """The hierarchies by controller; what is nowhere is left out."""
    text = files.text("/proc/self/mountinfo") or files.text("/proc/1/mountinfo") or ""
    # A captured tree often has no mountinfo; then the usual places are looked at.
    return mounted_hierarchies(files, text) or dict(_usual(files))


def mounted_hierarchies(files: KernelFiles, mountinfo: str) -> dict[str, Hierarchy]:
    """Those that a ``mountinfo`` text names."""
    mounts, found = list(parse_mountinfo(mountinfo)), {}
    for controller in _CONTROLLERS:
        if at := mount_with(controller, mounts, lambda path: files.text(str(path))):
            version, mount = at
            named = controller if version == 1 else ""
            found[controller] = Hierarchy(version, str(mount.point), named, mount.root)
    return found


def _usual(files: KernelFiles) -> Iterator[tuple[str, Hierarchy]]:
    top = "/sys/fs/cgroup"
    has = (files.text(f"{top}/cgroup.controllers") or "").split()
    marks = ("cpuset.cpus", "cpu.shares", "memory.limit_in_bytes", "tasks", "tasks", "tasks")
    for controller, mark in zip(_CONTROLLERS, marks, strict=True):
        if controller in has:
            yield controller, Hierarchy(2, top, "")
        elif files.text(f"{top}/{controller}/{mark}") is not None:
            yield controller, Hierarchy(1, f"{top}/{controller}", controller)


def read_cpusets(files: KernelFiles, hierarchy: Hierarchy) -> dict[str, Cpuset]:
    """Every cgroup with a cpuset, by path; raises SnapshotError."""
    first, second = ("cpuset.cpus.effective", "cpuset.effective_cpus")
    mems_first, mems_second = ("cpuset.mems.effective", "cpuset.effective_mems")
    if hierarchy.version == 1:
        first, second, mems_first, mems_second = second, first, mems_second, mems_first
    found: dict[str, Cpuset] = {}
    for path, folder, names in _groups(files, hierarchy):
        cpus = files.cpus(f"{folder}/cpuset.cpus") if "cpuset.cpus" in names else None
        effective = files.cpus(f"{folder}/{first if first in names else second}")
        if effective is None:
            # Kernels before 3.17 have no effective set: there it is what is written.
            effective = cpus
        if effective is None:
            continue
        mems = mems_first if mems_first in names else mems_second
        partition = "cpuset.cpus.partition"
        found[path] = Cpuset(
            path=path,
            folder=folder,
            cpus=cpus,
            effective=effective,
            mems=files.cpus(f"{folder}/cpuset.mems") if "cpuset.mems" in names else None,
            effective_mems=files.cpus(f"{folder}/{mems}") if mems in names else None,
            partition=_stripped(files.text(f"{folder}/{partition}"))
            if partition in names
            else None,
        )
    return found


def read_quotas(files: KernelFiles, hierarchy: Hierarchy) -> dict[str, Quota]:
    """Every cgroup whose CPU time is capped, by path; raises SnapshotError."""
    found: dict[str, Quota] = {}
    for path, folder, names in _groups(files, hierarchy):
        if "cpu.max" in names:
            file = f"{folder}/cpu.max"
            value = files.parsed(file, parse_cpu_max)
        elif "cpu.cfs_quota_us" in names:
            file = f"{folder}/cpu.cfs_quota_us"
            quota = files.parsed(file, _integer)
            period = files.parsed(f"{folder}/cpu.cfs_period_us", _integer)
            value = None if quota is None or period is None else (quota, period)
            if value is not None and value[0] < 0:
                value = (None, value[1])
        else:
            continue
        if value is not None and value[0] is not None:
            found[path] = Quota(path, file, value[0], value[1])
    return found


def read_idle(files: KernelFiles, hierarchy: Hierarchy) -> frozenset[str]:
    """The paths of cgroups that the kernel ranks below their siblings; raises SnapshotError."""
    return frozenset(
        path
        for path, folder, names in _groups(files, hierarchy)
        if "cpu.idle" in names and _stripped(files.text(f"{folder}/cpu.idle")) == "1"
    )


def read_limits(
    files: KernelFiles, hierarchies: Mapping[str, Hierarchy]
) -> dict[str, dict[str, str]]:
    """What cgroups are limited to, by folder and file; a weight without those of single devices."""
    found: dict[str, dict[str, str]] = {}
    for hierarchy in {one.folder: one for one in hierarchies.values()}.values():
        for _, folder, names in _groups(files, hierarchy):
            for name in names.intersection(_LIMITS):
                if (text := files.text(f"{folder}/{name}")) is not None:
                    value = text.partition("\n")[0].removeprefix("default ")
                    found.setdefault(folder, {})[name] = value.strip()
    return found


def read_hugepage_groups(files: KernelFiles, hierarchy: Hierarchy) -> dict[str, bool]:
    """Whether each cgroup that is limited in huge pages may have any; raises SnapshotError.

    A cgroup without a limit of its own is left out.
    """
    found: dict[str, bool] = {}
    for path, folder, names in _groups(files, hierarchy):
        for name in names:
            if not _HUGETLB.fullmatch(name):
                continue
            most = files.parsed(f"{folder}/{name}", _most)
            if most is not None and most < _NO_LIMIT:
                found[path] = found.get(path, False) or most > 0
    return found


def parse_cpu_max(text: str) -> tuple[int | None, int]:
    """Quota (None: no cap) and period of ``cpu.max``, in microseconds; raises ValueError."""
    words = text.split()
    if len(words) != 2:
        raise ValueError(f"{text.strip()[:40]!r} is not QUOTA PERIOD")
    return None if words[0] == "max" else _integer(words[0]), _integer(words[1])


def _groups(files: KernelFiles, hierarchy: Hierarchy) -> Iterator[tuple[str, str, set[str]]]:
    """Path, folder and names of every cgroup, parents first."""
    todo = [("/", hierarchy.folder)]
    seen = 0
    while todo and seen < _MAX_GROUPS:
        path, folder = todo.pop()
        seen += 1
        yield path, folder, set(files.names(folder))
        todo += [
            (f"{path.rstrip('/')}/{name}", f"{folder}/{name}")
            for name in sorted(files.folders(folder), reverse=True)
        ]


def _most(text: str) -> int:
    return _NO_LIMIT if text.strip() == "max" else _integer(text)


def _integer(text: str) -> int:
    stripped = text.strip()
    digits = stripped.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ValueError(f"{stripped[:40]!r} is no number")
    return int(stripped)


def _stripped(text: str | None) -> str | None:
    return None if text is None else text.strip()
