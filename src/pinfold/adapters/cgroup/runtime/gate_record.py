"""What gates had before they were used, in a file that outlives the agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.boot_file import BootFile, BootRecord
from pinfold.linux.cgroup_mounts import CgroupMount
from pinfold.linux.processes import boot_id


class UsedGate(Struct, frozen=True):
    """What a gate had ``before``, and what it may have of ours: what was written last, or next."""

    before: CPUSet
    written: tuple[CPUSet, ...] = ()


class GateRecord(Protocol):
    """The gates that are used, kept where the end of this process does not take it away."""

    def load(self) -> Mapping[Path, UsedGate]:
        """What was saved last since the machine was started."""

    def save(self, gates: Mapping[Path, UsedGate], *, sync: bool) -> None:
        """Keep this; with ``sync``, also when the machine stops at once; raises PortError."""


class _Gates(BootRecord, frozen=True, kw_only=True):
    """The file: ``gates`` are paths in the hierarchy, which may be mounted elsewhere next time."""

    version: int = 2
    gates: dict[str, UsedGate]


class GateFile:
    """The :class:`GateRecord` in a file of the agent's own folder; it is gone while empty."""

    def __init__(self, path: Path, mount: CgroupMount) -> None:
        self._file = BootFile(
            path,
            _Gates,
            "record of a kubelet's cpusets",
            "write the list in /sys/devices/system/cpu/possible into cpuset.cpus of the burstable "
            "and besteffort cgroups and of those of Guaranteed pods, and remove the file",
        )
        self._mount = mount
        self._unseen: dict[str, UsedGate] = {}
        """Those in a part of the hierarchy that this mount does not show."""

    def load(self) -> Mapping[Path, UsedGate]:
        """See :class:`GateRecord`."""
        record = self._file.load()
        gates = {} if record is None else record.gates
        root = self._mount.root
        self._unseen = {
            path: gate
            for path, gate in gates.items()
            if not PurePosixPath(path).is_relative_to(root)
        }
        return {
            self._mount.folder(path): gate
            for path, gate in gates.items()
            if path not in self._unseen
        }

    def save(self, gates: Mapping[Path, UsedGate], *, sync: bool) -> None:
        """See :class:`GateRecord`."""
        by_path = {self._mount.path(folder): gate for folder, gate in gates.items()}
        if known := self._unseen | by_path:
            self._file.save(_Gates(boot=boot_id(), gates=known), sync=sync)
        else:
            self._file.remove()
