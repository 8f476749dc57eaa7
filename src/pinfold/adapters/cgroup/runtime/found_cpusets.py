"""Cpusets in folders that somebody else has made: written as each version of cgroups wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pinfold.adapters.cgroup.files import CgroupGoneError, put, read, read_cpus, write
from pinfold.adapters.cgroup.folders import children, members
from pinfold.adapters.cgroup.moving import gather
from pinfold.adapters.cgroup.tasks import check_in_force, confirm
from pinfold.adapters.cgroup.watch import CPUS, MEMS, PARTITION
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.cgroup_mounts import CgroupMount
from pinfold.linux.kernel_files import descendants, read_ids
from pinfold.ports.cgroups import Partition
from pinfold.ports.errors import CgroupError

_OTHERS: Final = ("freezer", "pids", "memory", "cpu")
"""The hierarchies of cgroup v1 that may tell who belongs to a container, the best first."""

_POSSIBLE: Final = Path("/sys/devices/system/cpu/possible")

EFFECTIVE: Final = {1: "cpuset.effective_cpus", 2: "cpuset.cpus.effective"}
THREADS: Final = {1: "tasks", 2: "cgroup.threads"}


class FoundCpusets:
    """The cpusets of one hierarchy.

    Args:
        version: of cgroups, 1 or 2.
        root: where the hierarchy is mounted, or the part of it that is seen.
        mounts: the hierarchies of version 1; of those with the same cgroups one is used, too.
    """

    def __init__(
        self, version: int, root: Path, mounts: Mapping[str, CgroupMount] = MappingProxyType({})
    ) -> None:
        self._version = version
        self._root = root
        others = (mounts[one].point for one in _OTHERS if one in mounts)
        other = next((point for point in others if not point.samefile(root)), None)
        self._other = other if version == 1 else None
        # Hundreds of containers get the same.
        self._text = lru_cache(4)(str)

    @property
    def has_gates(self) -> bool:
        """Whether a cpuset cuts those below it, whatever they have."""
        return self._version == 2

    def effective(self, folder: Path) -> CPUSet:
        """The CPUs that are in force."""
        return read_cpus(f"{folder}/{EFFECTIVE[self._version]}")

    def configured(self, folder: Path) -> CPUSet:
        """The CPUs that were written; none: those of the cpuset above."""
        return read_cpus(f"{folder}/{CPUS}")

    def is_plain(self, folder: Path) -> bool:
        """Whether it is no partition, which others count on as it is."""
        return read(folder / PARTITION) == Partition.MEMBER.value

    def put(self, folder: Path, cpus: CPUSet) -> None:
        """Write the CPUs of a cpuset, where they are others.

        No CPUs mean those of the cpuset above.  The kernel does not take that while somebody is in
        it or below, and then every CPU that the machine can have means the same.
        """
        try:
            put(folder / CPUS, str(cpus))
        except CgroupGoneError:
            raise
        except CgroupError:
            if cpus:
                raise
            put(folder / CPUS, read(_POSSIBLE))

    def cut(self, folder: Path, wanted: CPUSet) -> bool:
        """Move a container off CPUs if that is one write; whether it was.

        Its own threads are to be confirmed.  Those in cgroups below it did not have these CPUs
        then: the kernel of cgroup v1 refuses it while a cpuset below has more.
        """
        if self._version == 2:
            return False
        try:
            write(f"{folder}/{CPUS}", self._text(wanted))
        except CgroupError:
            return False
        return True

    def set(self, folder: Path, wanted: CPUSet, mems: CPUSet | None) -> tuple[CPUSet, CPUSet]:
        """Write a container's cpuset; one that is gone is no error.

        Returns:
            The CPUs that it had to leave, and those that are in force.

        Raises:
            CgroupError: others than wanted are in force.
        """
        try:
            before = self.effective(folder)
            self._write(folder, wanted)
            if mems is not None:
                put(folder / MEMS, str(mems))
            effective = self.effective(folder)
        except CgroupGoneError:
            # It has ended, and its runtime removes it: the kernel takes its files away first.
            if folder.exists() and members(folder):
                raise
            return CPUSet(), wanted
        check_in_force(folder, wanted, effective)
        return before - wanted, effective

    async def bring_back(self, folder: Path) -> bool:
        """Move processes back that the kernel has moved out of a cpuset; whether there were any.

        Cgroup v1 does so when all CPUs of a cpuset have gone offline; in another hierarchy they are
        where they were.  Raises CgroupError.
        """
        if self._other is None:
            return False
        other = self._other / folder.relative_to(self._root)
        if set(members(folder)).issuperset(members(other)):
            return False
        return await gather(lambda: members(other), [folder], not_frozen)

    async def confirm(self, folders: Sequence[Path], cpus: CPUSet, *, below: bool = True) -> None:
        """See that no thread of these, or ``below`` them, may run elsewhere; raises CgroupError."""
        if not folders:
            return
        await confirm(
            str(folders[0]) if len(folders) == 1 else "a container",
            lambda: [tid for one in folders for tid in self._threads(one, below=below)],
            cpus,
        )

    def _write(self, folder: Path, cpus: CPUSet) -> None:
        if self._version == 2:
            put(folder / CPUS, str(cpus))
            return
        # On v1 the CPUs have to be among the parent's and contain the children's.
        had = read_cpus(folder / CPUS)
        if cpus == had:
            return
        if missing := cpus - read_cpus(folder.parent / CPUS):
            self._widen(folder.parent, missing)
        cpus = cpus & read_cpus(folder.parent / CPUS) or cpus
        below_it = {child: read_cpus(child / CPUS) for child in children(folder)}
        if below_it:
            put(folder / CPUS, str(had | cpus))
        for child, its in below_it.items():
            # What was as wide as its parent follows it; what was narrower is cut.
            self._write(child, cpus if its == had else its & cpus or cpus)
        put(folder / CPUS, str(cpus))

    def _widen(self, folder: Path, missing: CPUSet) -> None:
        """After CPUs came back: the kernel has taken them out of every cpuset for good."""
        if folder == self._root:
            return
        self._widen(folder.parent, missing)
        there = read_cpus(folder.parent / CPUS)
        put(folder / CPUS, str(read_cpus(folder / CPUS) | missing & there))

    def _threads(self, folder: Path, *, below: bool) -> list[int]:
        name = THREADS[self._version]
        if not below:
            return read_ids(f"{folder}/{name}")
        return [tid for one in descendants(folder) for tid in read_ids(f"{one}/{name}")]


def not_frozen(*, frozen: bool) -> None:
    """The freezer is the runtime's (a paused container)."""
    del frozen


def cgroup_of(cgroups_path: str) -> str:
    """The cgroup that OCI's ``cgroupsPath`` means, from the hierarchy's root.

    ``kubepods-pod1.slice:cri-containerd:ID`` is a scope in systemd's slice, which is below the
    slices that its name begins with (``systemd.slice(5)``).
    """
    slice_name, colon, rest = cgroups_path.partition(":")
    prefix, colon_2, name = rest.partition(":")
    if not (colon and colon_2) or "/" in slice_name:
        return "/" + cgroups_path.strip("/")
    parts = slice_name.removesuffix(".slice").split("-")
    slices = ["-".join(parts[: depth + 1]) + ".slice" for depth in range(len(parts))]
    if slice_name in ("", "-.slice"):
        slices = []
    leaf = (
        name if name.endswith(".slice") else f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
    )
    return "/" + "/".join([*slices, leaf])
