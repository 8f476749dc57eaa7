"""Which cgroup hierarchies there are, and where this process sits in them.

Source: ``proc_pid_mountinfo(5)``, ``cgroups(7)``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.linux.mounts import Mount as Mounted
from pinfold.linux.mounts import mounts
from pinfold.linux.processes import parse_cgroups
from pinfold.ports.errors import CgroupError

CPUSET: Final = "cpuset"
V1_CONTROLLERS: Final = frozenset(
    {"cpuset", "cpu", "cpuacct", "memory", "hugetlb", "pids", "freezer", "devices", "blkio"}
)


class Mount(Struct, frozen=True):
    """One mounted hierarchy: where it is, and which part of it (``root``) is seen there."""

    point: Path
    root: str
    writable: bool


class Hierarchies(Struct, frozen=True):
    """What is mounted: ``unified`` is cgroup v2, ``v1`` are the others by controller.

    ``own`` is the cgroup of this process by controller, with "" for v2.
    """

    unified: Mount | None
    v1: Mapping[str, Mount]
    own: Mapping[str, str]
    unified_controllers: frozenset[str] = frozenset()

    @property
    def version(self) -> int:
        """The version of the hierarchy that has the cpuset controller.

        Raises:
            CgroupError: none has it.
        """
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
        return below(mount, self.own.get(controller, "/"))


def below(mount: Mount, path: str) -> Path:
    """The folder of a cgroup in a mount that may show only a part of the hierarchy."""
    root = mount.root.rstrip("/")
    inside = path[len(root) :] if path == root or path.startswith(f"{root}/") else path
    return mount.point / inside.lstrip("/")


def path_of(mount: Mount, folder: Path) -> str:
    """The cgroup of a folder in a mount, from the hierarchy's root: what :func:`below` undoes."""
    return str(Path(mount.root) / folder.relative_to(mount.point))


def find_hierarchies(proc: Path = Path("/proc")) -> Hierarchies:
    """Read what is mounted.

    Raises:
        CgroupError: /proc cannot be read.
    """
    try:
        found = list(mounts(proc))
        own = (proc / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CgroupError(f"{error.filename}: {error.strerror}", "mount proc at /proc") from None
    unified, v1 = cgroup_mounts(found)
    return Hierarchies(unified, v1, parse_cgroups(own), _controllers(unified))


def _controllers(unified: Mount | None) -> frozenset[str]:
    if unified is None:
        return frozenset()
    try:
        text = (unified.point / "cgroup.controllers").read_text(encoding="ascii")
    except OSError:
        return frozenset()
    return frozenset(text.split())


def cgroup_mounts(found: Iterable[Mounted]) -> tuple[Mount | None, dict[str, Mount]]:
    """The cgroup mounts among all of them.

    On one mount point the last mount covers the others.  Of several mount points the one counts
    that shows most of the hierarchy, can be written, and came first: containers' runtimes leave
    mounts of small parts behind.
    """
    unified: list[Mount] = []
    v1: dict[str, list[Mount]] = {}
    for mount, mounted in _mounted(found):
        if mounted.kind == "cgroup2":
            unified.append(mount)
        elif mounted.kind == "cgroup":
            for controller in V1_CONTROLLERS & mounted.options:
                v1.setdefault(controller, []).append(mount)
    return (
        _best(unified) if unified else None,
        {controller: _best(several) for controller, several in v1.items()},
    )


def _mounted(found: Iterable[Mounted]) -> list[tuple[Mount, Mounted]]:
    """What can be seen of what is mounted: on one mount point the last covers the others."""
    seen: dict[Path, tuple[Mount, Mounted]] = {}
    for one in found:
        seen.pop(one.path, None)
        seen[one.path] = Mount(one.path, one.root, one.writable), one
    return list(seen.values())


def every_mount(proc: Path = Path("/proc")) -> list[Mount]:
    """All cgroup hierarchies, also those of v1 that have a name in place of a controller.

    Raises:
        CgroupError: /proc cannot be read.
    """
    try:
        found = _mounted(mounts(proc))
    except OSError as error:
        raise CgroupError(f"{error.filename}: {error.strerror}", "mount proc at /proc") from None
    return [mount for mount, mounted in found if mounted.kind in ("cgroup", "cgroup2")]


def _best(mounts: list[Mount]) -> Mount:
    return min(mounts, key=lambda mount: (mount.root.rstrip("/").count("/"), not mount.writable))


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
