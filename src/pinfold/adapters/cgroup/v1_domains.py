"""Scheduling domains of cgroup v1, where the agent may have the root's flag.

A cpuset's ``cpuset.sched_load_balance`` means something only where no cpuset above it has it: then
those that have it are domains, overlapping ones together one, and a CPU in none of them is not
balanced.  So all above the owners have it off, and ``NAME/balanced``, which has no tasks, has it on
for every CPU that is no domain of its own: without it the rest of the machine would lose balancing.
Source: the kernel's ``Documentation/admin-guide/cgroup-v1/cpusets.rst``, sections 1.7 and 1.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.adapters.cgroup.files import put, read, read_cpus
from pinfold.adapters.cgroup.folders import children, make
from pinfold.adapters.cgroup.names import BALANCED
from pinfold.adapters.cgroup.watch import CPUS, MEMS, Written
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.boot_file import BootFile, BootRecord
from pinfold.linux.processes import boot_id
from pinfold.ports.cgroups import Partition
from pinfold.ports.errors import CgroupError

FLAG: Final = "cpuset.sched_load_balance"
RELAX: Final = "cpuset.sched_relax_domain_level"
_OFF, _ON = "0", "1"


class DomainSettings(Struct, frozen=True):
    """Whether the root's flag is the agent's; ``record`` is the file with what it was before.

    ``relax_level`` is how far the kernel looks for an idle CPU on a wake-up within a domain that is
    an owner's, -1 for its default.
    """

    record: Path
    has_root: bool = False
    relax_level: int = -1


class OffCpusets(BootRecord, frozen=True, kw_only=True):
    """The cpusets above the tree whose flag was on, and is off because of us."""

    folders: tuple[str, ...] = ()


class DomainsV1:
    """The domains of a tree's owners; ``settings`` is None where nobody may have any.

    Args:
        base: the tree's folder.
        exclusive: that of its owners.
        written: the tree's own writes.
        settings: what the agent may do.
    """

    def __init__(
        self, base: Path, exclusive: Path, written: Written, settings: DomainSettings | None
    ) -> None:
        self._base = base
        self._exclusive = exclusive
        self._rest = base / BALANCED
        self._written = written
        self._settings = settings
        self._wished: dict[Path, Partition] = {}
        self._is_had = False

    def open(self) -> None:
        """Take the flag of what is above, or give it back that an agent before has taken."""
        if self._settings is None:
            return
        self._is_had = True
        if not self._settings.has_root:
            self.close()
            return
        file, above = _file(self._settings.record), list(self._above())
        known = file.load() or OffCpusets(boot=boot_id())
        on = tuple(str(folder) for folder in above if read(folder / FLAG) == _ON)
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.save(OffCpusets(boot=known.boot, folders=tuple(dict.fromkeys((*known.folders, *on)))))
        # First who keeps balancing: no CPU is without for a moment.
        make(self._rest)
        self._written.put(self._rest / MEMS, read(self._base / MEMS))
        self.refresh()
        put(self._rest / FLAG, _ON)
        for folder in (*children(self._exclusive), self._exclusive, self._base, *above):
            put(folder / FLAG, _OFF)

    def _above(self) -> Iterator[Path]:
        folder = self._base.parent
        while (folder / FLAG).exists():
            yield folder
            folder = folder.parent

    @property
    def _is_open(self) -> bool:
        return self._settings is not None and self._settings.has_root and self._rest.exists()

    def refresh(self) -> None:
        """Balance every CPU that is no owner's domain, also those that have come back."""
        if self._settings is None or not self._rest.exists():
            return
        self._wished = {one: wish for one, wish in self._wished.items() if one.exists()}
        own = CPUSet.union_of(read_cpus(folder / CPUS) for folder in self._wished)
        if rest := read_cpus(self._base / CPUS) - own:
            self._written.put(self._rest / CPUS, str(rest))

    def leave(self, folder: Path) -> None:
        """Dissolve an owner's domain, before its CPUs change."""
        if self._wished.pop(folder, None) is not None:
            self._put_flag(folder, _ON)
            self.refresh()

    def wish(self, folder: Path, partition: Partition) -> str:
        """Make an owner's CPUs a domain of their own, or none; what was not granted, else ""."""
        # A new cpuset has the flag, and that of a pod has all CPUs.
        self._put_flag(folder.parent, _OFF)
        if partition is Partition.MEMBER:
            self._put_flag(folder, _ON)
            return ""
        if not self._is_open:
            return f"partition {partition.value} needs cgroup v2, or rootLoadBalance: false"
        self._wished[folder] = partition
        self.refresh()
        self._put_flag(folder, _OFF if partition is Partition.ISOLATED else _ON)
        if partition is Partition.ROOT and self._settings is not None:
            level = str(self._settings.relax_level)
            try:
                put(folder / RELAX, level)
            except CgroupError as error:
                return f"{RELAX} {level} is not in force: {error.problem}"
        return ""

    def _put_flag(self, folder: Path, flag: str) -> None:
        if self._is_open:
            put(folder / FLAG, flag)

    def state(self, folder: Path) -> str | None:
        """What an owner's CPUs are, in the words of cgroup v2; None where nobody may have any."""
        if not self._is_open:
            return None
        own, is_balanced = read_cpus(folder / CPUS), read(folder / FLAG) == _ON
        if own & read_cpus(self._rest / CPUS):
            return Partition.MEMBER.value
        kind = Partition.ROOT if is_balanced else Partition.ISOLATED
        for other in self._others():
            if shared := own & read_cpus(other / CPUS):
                return f"{kind.value} invalid ({other} balances load over CPUs {shared}, too)"
        return kind.value

    def _others(self) -> Iterator[Path]:
        """The cpusets of others that have the flag, each without those below it."""
        above = list(self._above())

        def search(folder: Path) -> Iterator[Path]:
            if folder == self._exclusive:
                return
            if read(folder / FLAG) == _ON:
                yield folder
                return
            for child in children(folder):
                yield from search(child)

        if above:
            yield from search(above[-1])

    def close(self) -> None:
        """Give the flag back to those above; a flag that somebody has switched on is on."""
        if self._settings is None or not self._is_had:
            return  # it may be another agent's
        file = _file(self._settings.record)
        if (record := file.load()) is not None:
            for name in record.folders:
                if Path(name).exists():
                    put(Path(name) / FLAG, _ON)
            file.remove()


def _file(record: Path) -> BootFile[OffCpusets]:
    return BootFile(
        record,
        OffCpusets,
        "record of scheduling domains",
        f"write 1 into {FLAG} of the root cpuset, and remove the file",
        error=CgroupError,
    )
