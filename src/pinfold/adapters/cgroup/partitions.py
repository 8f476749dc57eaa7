"""cpuset partitions (cgroup v2): exclusive CPUs that the kernel itself keeps apart.

A remote partition (kernel 6.7 and later) needs its CPUs in ``cpuset.cpus.exclusive`` of every
cgroup above it.  Where the kernel does not grant one, the set is a plain cpuset, and that is said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import put, read, read_cpus
from pinfold.adapters.cgroup.folders import children, is_populated
from pinfold.adapters.cgroup.watch import CPUS, PARTITION, Written
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import ObservedContainer, Partition
from pinfold.ports.errors import CgroupError, ContainerKey

_EXCLUSIVE: Final = "cpuset.cpus.exclusive"


class Partitions:
    """The partitions below ``exclusive``; ``base`` and it pass the CPUs on."""

    def __init__(self, base: Path, exclusive: Path, written: Written) -> None:
        self._base = base
        self._exclusive = exclusive
        self._written = written

    def check_free(self, folder: Path, cpus: CPUSet) -> None:
        """Refuse a partition's CPUs: it gets invalid without a word; raises CgroupError."""
        for _ in range(2):
            taken = cpus & _exclusive_cpus(self._base) - _exclusive_cpus(folder)
            if not taken:
                return
            self.shrink()  # an agent that was killed may not have come to that
        raise CgroupError(
            f"{folder}: another partition has CPUs {taken}", "remove its container first"
        )

    def is_so(self, folder: Path, cpus: CPUSet, partition: Partition) -> bool:
        """Whether a cgroup is such a partition of these CPUs already."""
        state = folder / PARTITION
        if not state.exists():
            return partition is Partition.MEMBER
        wanted = CPUSet() if partition is Partition.MEMBER else cpus
        if read(state) != partition.value or _exclusive_cpus(folder) != wanted:
            return False
        self._written.put(state, partition.value)
        return True

    def wish(self, folder: Path, cpus: CPUSet, partition: Partition) -> str:
        """Make a plain cpuset a partition; what was not granted, "" when it was."""
        if partition is Partition.MEMBER:
            return ""
        state = folder / PARTITION
        if not (folder / _EXCLUSIVE).exists():
            return f"partition {partition.value} is not in force: the kernel is older than 6.7"
        try:
            for above in (self._base, self._exclusive, folder.parent):
                put(above / _EXCLUSIVE, str(_exclusive_cpus(above) | cpus))
            put(folder / _EXCLUSIVE, str(cpus))
            self._written.write(state, partition.value)
            found = read(state)
        except CgroupError as error:
            found = error.problem
        if found == partition.value:
            return ""
        self.dissolve(folder)
        return f"partition {partition.value} is not in force, a plain cpuset is: {found}"

    def dissolve(self, folder: Path) -> None:
        """Make a partition a plain cpuset again; raises CgroupError."""
        state = folder / PARTITION
        if state.exists():
            self._written.put(state, Partition.MEMBER.value)
        if (folder / _EXCLUSIVE).exists():
            put(folder / _EXCLUSIVE, "")
            self.shrink()

    def shrink(self) -> None:
        """Take back what no partition below needs any more, from the bottom up."""
        if not (self._exclusive / _EXCLUSIVE).exists():
            return
        whole = CPUSet()
        for pod in children(self._exclusive):
            used = CPUSet()
            for container in children(pod):
                used |= _exclusive_cpus(container)
            if _exclusive_cpus(pod) != used:
                put(pod / _EXCLUSIVE, str(used))
            whole |= used
        put(self._exclusive / _EXCLUSIVE, str(whole))
        put(self._base / _EXCLUSIVE, str(whole))


def observed_owner(key: ContainerKey, folder: str) -> ObservedContainer:
    """What the kernel says of an owner's cgroup, which may be a partition; raises CgroupError."""
    return ObservedContainer(
        key,
        exclusive=True,
        configured=read_cpus(f"{folder}/{CPUS}"),
        effective=read_cpus(f"{folder}/{CPUS}.effective"),
        partition=read(f"{folder}/{PARTITION}"),
        populated=is_populated(folder),
    )


def _exclusive_cpus(folder: Path) -> CPUSet:
    try:
        return read_cpus(folder / _EXCLUSIVE)
    except CgroupError:
        return CPUSet()
