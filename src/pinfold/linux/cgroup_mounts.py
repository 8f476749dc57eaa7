"""Where the cgroup hierarchies are mounted, and which of several mounts of one counts.

Source: proc_pid_mountinfo(5), cgroups(7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.linux.mounts import Mount

CPUSET: Final = "cpuset"
_CONTROLLERS: Final = frozenset(
    {CPUSET, "cpu", "cpuacct", "memory", "hugetlb", "pids", "freezer", "devices", "blkio"}
)


class CgroupMount(Struct, frozen=True):
    """One mounted hierarchy: where it is, and which part of it (``root``) is seen there."""

    point: Path
    root: str
    writable: bool

    def folder(self, path: str) -> Path:
        """The folder of a cgroup; a path outside of the part that is seen is taken as it is."""
        root = self.root.rstrip("/")
        inside = path[len(root) :] if path == root or path.startswith(f"{root}/") else path
        return self.point / inside.lstrip("/")

    def path(self, folder: Path) -> str:
        """The cgroup of a folder, from the hierarchy's root."""
        return str(Path(self.root) / folder.relative_to(self.point))


def cgroup_mounts(found: Iterable[Mount]) -> tuple[CgroupMount | None, dict[str, CgroupMount]]:
    """That of cgroup v2, and those of v1 by controller, among all that is mounted.

    On one mount point the last mount covers the others.  Of several mount points the one counts
    that shows most of the hierarchy, can be written, and came first: containers' runtimes leave
    mounts of small parts behind.
    """
    unified: list[CgroupMount] = []
    v1: dict[str, list[CgroupMount]] = {}
    for mount, mounted in _seen(found):
        if mounted.kind == "cgroup2":
            unified.append(mount)
        elif mounted.kind == "cgroup":
            for controller in _CONTROLLERS & mounted.options:
                v1.setdefault(controller, []).append(mount)
    return (
        _best(unified) if unified else None,
        {controller: _best(several) for controller, several in v1.items()},
    )


def mount_with(
    controller: str, found: Iterable[Mount], read: Callable[[Path], str | None]
) -> tuple[int, CgroupMount] | None:
    """The version and the mount of the hierarchy that has a controller; None: none has it.

    ``read`` gives the content of a file, None where that cannot be told.
    """
    unified, v1 = cgroup_mounts(found)
    if unified is not None:
        controllers = read(unified.point / "cgroup.controllers") or ""
        if controller in controllers.split():
            return 2, unified
    return (1, v1[controller]) if controller in v1 else None


def every_cgroup_mount(found: Iterable[Mount]) -> list[CgroupMount]:
    """All cgroup hierarchies, also those of v1 that have a name in place of a controller."""
    return [mount for mount, mounted in _seen(found) if mounted.kind in ("cgroup", "cgroup2")]


def _seen(found: Iterable[Mount]) -> list[tuple[CgroupMount, Mount]]:
    seen: dict[Path, tuple[CgroupMount, Mount]] = {}
    for one in found:
        seen.pop(one.path, None)
        seen[one.path] = CgroupMount(one.path, one.root, one.writable), one
    return list(seen.values())


def _best(mounts: list[CgroupMount]) -> CgroupMount:
    return min(mounts, key=lambda mount: (mount.root.rstrip("/").count("/"), not mount.writable))
