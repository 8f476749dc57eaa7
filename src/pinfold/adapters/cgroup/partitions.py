"""cpuset partitions (cgroup v2): exclusive CPUs that the kernel itself keeps apart.

A remote partition (kernel 6.7 and later) needs its CPUs in ``cpuset.cpus.exclusive`` of every
cgroup above it.  Where the kernel does not grant one, the set is a plain cpuset, and that is said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import children, read, read_cpus, write
from pinfold.core.cpuset import CPUSet
from pinfold.node.ports import CgroupError, Partition

_EXCLUSIVE: Final = "cpuset.cpus.exclusive"
_STATE: Final = "cpuset.cpus.partition"


class Partitions:
    """The partitions below ``exclusive``; ``base`` and it pass the CPUs on."""

    def __init__(self, base: Path, exclusive: Path) -> None:
        self._base = base
        self._exclusive = exclusive

    def wish(self, folder: Path, cpus: CPUSet, partition: Partition) -> str:
        """Make a container's cpuset a partition; what was not granted, "" when it was."""
        state = folder / _STATE
        if partition is Partition.MEMBER:
            if state.exists() and read(state) != Partition.MEMBER.value:
                write(state, Partition.MEMBER.value)
            return ""
        if not (folder / _EXCLUSIVE).exists():
            return f"partition {partition.value} is not in force: the kernel is older than 6.7"
        try:
            self._pass_on(folder, cpus)
            write(state, partition.value)
            found = read(state)
        except CgroupError as error:
            return self.give_up(folder, error.problem)
        return "" if found == partition.value else self.give_up(folder, found)

    def give_up(self, folder: Path, why: str) -> str:
        """Go back to a plain cpuset; the text for the record."""
        write(folder / _STATE, Partition.MEMBER.value)
        write(folder / _EXCLUSIVE, "")
        self.removed()
        return f"no partition, a plain cpuset instead: {why}"

    def _pass_on(self, folder: Path, cpus: CPUSet) -> None:
        """Let everything above have the CPUs, from the top down."""
        for above in (self._base, self._exclusive, folder.parent):
            file = above / _EXCLUSIVE
            had = read_cpus(file)
            if cpus - had:
                write(file, str(had | cpus))
        write(folder / _EXCLUSIVE, str(cpus))

    def removed(self) -> None:
        """Take back what no partition below needs any more, from the bottom up."""
        if not (self._exclusive / _EXCLUSIVE).exists():
            return
        whole = CPUSet()
        for pod in children(self._exclusive):
            used = CPUSet()
            for container in children(pod):
                used |= _exclusive_cpus(container)
            _shrink(pod, used)
            whole |= used
        _shrink(self._exclusive, whole)
        _shrink(self._base, whole)


def _exclusive_cpus(folder: Path) -> CPUSet:
    try:
        return read_cpus(folder / _EXCLUSIVE)
    except CgroupError:
        return CPUSet()


def _shrink(folder: Path, needed: CPUSet) -> None:
    if _exclusive_cpus(folder) != needed:
        write(folder / _EXCLUSIVE, str(needed))
