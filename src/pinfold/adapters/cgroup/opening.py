"""Which cgroups an agent gets: the version that has the cpuset controller, at the right place."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pinfold.adapters.cgroup.claim import TreeClaim, left_alone
from pinfold.adapters.cgroup.folders import children, remove_if_empty, remove_tree
from pinfold.adapters.cgroup.hierarchy import (
    Hierarchies,
    delegated_folder,
    find_hierarchies,
)
from pinfold.adapters.cgroup.names import (
    BALANCED,
    EXCLUSIVE,
    GUARDIAN,
    IDLE,
    POD_PREFIX,
    SHARED,
)
from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.adapters.cgroup.v1_domains import DomainSettings
from pinfold.adapters.cgroup.v2 import CgroupsV2
from pinfold.linux.cgroup_mounts import CPUSET, CgroupMount
from pinfold.ports.errors import CgroupError


def open_cgroups(
    parent: str | None = None,
    name: str = "pinfold",
    *,
    found: Hierarchies | None = None,
    domains: DomainSettings | None = None,
) -> CgroupsV1 | CgroupsV2:
    """Choose the version and the place; nothing is made yet.

    Args:
        parent: the cgroup (from the hierarchy's root, such as ``/system.slice/pinfold.service``)
            below which the tree is made; None: the cgroup that systemd delegated to this service
            (cgroup v2), else the root of what is mounted, which in a container is its own part.
        name: the tree's own folder.
        found: what is mounted; None: looked for.
        domains: what may be done to scheduling domains of cgroup v1; None: nothing.

    Raises:
        CgroupError: there is no cpuset controller, or no place that can be written.
    """
    if not name or "/" in name or name in {".", ".."}:
        raise CgroupError(f"{name!r} cannot be a cgroup's name")
    found = found or find_hierarchies()
    if found.version == 1:
        return CgroupsV1(_v1_parents(found, parent), name, domains)
    mount = found.unified
    if mount is None:
        raise CgroupError("no cgroup v2 hierarchy is mounted", "mount cgroup2 at /sys/fs/cgroup")
    folder = _below(mount, parent)
    if parent is None:
        folder = delegated_folder(found.own_folder()) or folder
    _check_writable(mount, folder)
    return CgroupsV2(folder, name, mount.point)


def claim_of_runtime(name: str, *, found: Hierarchies | None = None) -> TreeClaim:
    """The right to the containers that a runtime has for the agent of this name.

    A folder of that name below the hierarchy's root stands for them.

    Raises:
        CgroupError: no cgroup hierarchy has the cpuset controller.
    """
    found = found or find_hierarchies()
    mount = found.unified if found.version == 2 else found.v1[CPUSET]
    assert mount is not None  # noqa: S101 - the version was taken from it
    return TreeClaim(mount.point / name)


async def remove_leftovers(
    parent: str | None = None, name: str = "pinfold", *, found: Hierarchies | None = None
) -> None:
    """Remove what an agent that ran processes itself left of its tree; what is in use stays.

    The tree of another agent that lives is left alone.  In the tree's own folder a container
    runtime may have cgroups, too.  For the arguments see :func:`open_cgroups`.
    """
    with suppress(CgroupError):
        cgroups = open_cgroups(parent, name, found=found)
        with left_alone(cgroups.claim.base) as free:
            for base in cgroups.bases if free else ():
                for folder in children(base):
                    sides = (SHARED, EXCLUSIVE, IDLE, GUARDIAN, BALANCED)
                    if folder.name in sides or folder.name.startswith(POD_PREFIX):
                        with suppress(CgroupError):
                            await remove_tree(folder)
                if base != cgroups.claim.base:
                    remove_if_empty(base)


def _v1_parents(found: Hierarchies, parent: str | None) -> dict[str, Path]:
    """The parent in each hierarchy; the root where there is no such cgroup beside cpuset's."""
    cpuset = found.v1[CPUSET]
    folders = {CPUSET: _below(cpuset, parent)}
    _check_writable(cpuset, folders[CPUSET])
    for controller, mount in found.v1.items():
        folder = _below(mount, parent)
        place = folder if folder.is_dir() else mount.point
        if mount.writable and controller != CPUSET and os.access(place, os.W_OK):
            folders[controller] = place
    return folders


def _below(mount: CgroupMount, parent: str | None) -> Path:
    if parent is None:
        return mount.point
    parts = Path(parent.lstrip("/"))
    if ".." in parts.parts:
        raise CgroupError(f"{parent}: a cgroup's path has no '..'", "give it from the root")
    return mount.point / parts


def _check_writable(mount: CgroupMount, folder: Path) -> None:
    if not mount.writable:
        raise CgroupError(f"{mount.point}: mounted read-only", f"mount -o remount,rw {mount.point}")
    if not folder.is_dir():
        raise CgroupError(f"{folder}: there is no such cgroup", "make it, or name another parent")
    if not os.access(folder, os.W_OK):
        raise CgroupError(
            f"{folder}: no permission to make cgroups",
            "run as root, or have the cgroup delegated (systemd: Delegate=yes)",
        )
