"""Which cgroup hierarchies there are, and where this process sits in them.

Source: ``proc_pid_mountinfo(5)``, ``cgroups(7)``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from pinfold.linux.cgroup_mounts import CPUSET, CgroupMount, cgroup_mounts
from pinfold.linux.mounts import Mount, mounts
from pinfold.linux.processes import parse_cgroups
from pinfold.ports.errors import CgroupError


class Hierarchies(Struct, frozen=True):
    """What is mounted: ``unified`` is cgroup v2, ``v1`` are the others by controller.

    ``own`` is the cgroup of this process by controller, with "" for v2.
    """

    unified: CgroupMount | None
    v1: Mapping[str, CgroupMount]
    own: Mapping[str, str]
    unified_controllers: frozenset[str] = frozenset()

    @property
    def version(self) -> int:
        """The version of the hierarchy that has the cpuset controller; raises CgroupError."""
        if CPUSET in self.unified_controllers:
            return 2
        if CPUSET in self.v1:
            return 1
        raise CgroupError(
            "no cgroup hierarchy has the cpuset controller",
            "mount cgroup2 at /sys/fs/cgroup, or a cgroup v1 hierarchy with -o cpuset",
        )

    def own_folder(self, controller: str = "") -> Path:
        """Where this process sits in the hierarchy of a controller ("" for v2)."""
        mount = self.unified if not controller else self.v1[controller]
        if mount is None:
            raise CgroupError("no cgroup v2 hierarchy is mounted")
        return mount.folder(self.own.get(controller, "/"))


def find_hierarchies(proc: Path = Path("/proc")) -> Hierarchies:
    """Read what is mounted; raises CgroupError."""
    found = mounted(proc)
    try:
        own = (proc / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CgroupError(f"{error.filename}: {error.strerror}", "mount proc at /proc") from None
    unified, v1 = cgroup_mounts(found)
    return Hierarchies(unified, v1, parse_cgroups(own), _controllers(unified))


def mounted(proc: Path) -> list[Mount]:
    """All that is mounted; raises CgroupError."""
    try:
        return list(mounts(proc))
    except OSError as error:
        raise CgroupError(f"{error.filename}: {error.strerror}", "mount proc at /proc") from None


def _controllers(unified: CgroupMount | None) -> frozenset[str]:
    if unified is None:
        return frozenset()
    try:
        text = (unified.point / "cgroup.controllers").read_text(encoding="ascii")
    except OSError:
        return frozenset()
    return frozenset(text.split())


def delegated_folder(folder: Path) -> Path | None:
    """The cgroup that systemd has handed to the service in ``folder`` (``Delegate=yes``).

    It is that cgroup, or the one above when the service has stepped aside into a leaf of it.
    """
    return next((one for one in (folder, folder.parent) if _is_delegated(one)), None)


def _is_delegated(folder: Path) -> bool:
    for name in ("trusted.delegate", "user.delegate"):
        try:
            if os.getxattr(folder, name) == b"1":
                return True
        except OSError:
            continue
    return False
