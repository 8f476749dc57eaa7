"""Which cgroups an agent gets: the version that has the cpuset controller, at the right place."""

from __future__ import annotations

import os
from pathlib import Path

from pinfold.adapters.cgroup.hierarchy import Hierarchies, Mount, find_hierarchies, is_delegated
from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.adapters.cgroup.v2 import CgroupsV2
from pinfold.node.ports import CgroupError


def open_cgroups(
    parent: str | None = None, name: str = "pinfold", *, found: Hierarchies | None = None
) -> CgroupsV1 | CgroupsV2:
    """Choose the version and the place; nothing is made yet.

    Args:
        parent: the cgroup (from the hierarchy's root, such as ``/system.slice/pinfold.service``)
            below which the tree is made; None: the cgroup that systemd delegated to this service,
            else the root.
        name: the tree's own folder.
        found: what is mounted, for tests.

    Raises:
        CgroupError: there is no cpuset controller, or no place that can be written.
    """
    found = found or find_hierarchies()
    if found.version == 1:
        folders = {
            controller: _place(mount, parent, None) for controller, mount in found.v1.items()
        }
        _check_writable(found.v1["cpuset"], folders["cpuset"])
        return CgroupsV1(folders, name)
    mount = found.unified
    if mount is None:
        raise CgroupError("no cgroup v2 hierarchy is mounted")
    own = found.own_folder()
    folder = _place(mount, parent, own if is_delegated(own) else None)
    _check_writable(mount, folder)
    return CgroupsV2(folder, name, mount.point)


def _place(mount: Mount, parent: str | None, delegated: Path | None) -> Path:
    if parent is not None:
        return mount.point / parent.lstrip("/")
    return mount.point if delegated is None else delegated


def _check_writable(mount: Mount, folder: Path) -> None:
    if not mount.writable:
        raise CgroupError(f"{mount.point}: mounted read-only", f"mount -o remount,rw {mount.point}")
    if not folder.is_dir():
        raise CgroupError(f"{folder}: there is no such cgroup", "make it, or name another parent")
    if not os.access(folder, os.W_OK):
        raise CgroupError(
            f"{folder}: no permission to make cgroups",
            "run as root, or have the cgroup delegated (systemd: Delegate=yes)",
        )
