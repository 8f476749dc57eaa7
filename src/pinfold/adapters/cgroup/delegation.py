"""Making the controllers of cgroup v2 available where the tree is made.

A cgroup gives controllers to its children by its ``cgroup.subtree_control``, and only while it
holds no processes itself (the root may).  Where this process sits in the very cgroup that was
delegated to it, it steps aside into a leaf.  Source: the kernel's
``Documentation/admin-guide/cgroup-v2.rst``, "No Internal Process Constraint".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import read, write
from pinfold.adapters.cgroup.folders import children, make, remove_tree
from pinfold.adapters.cgroup.moving import move
from pinfold.linux.kernel_files import read_ids
from pinfold.ports.errors import CgroupError

LEAF: Final = "agent"
_CONTROL: Final = "cgroup.subtree_control"
_ROUNDS: Final = 100


def available(folder: Path) -> frozenset[str]:
    """The controllers that a cgroup could give to its children."""
    return frozenset(read(folder / "cgroup.controllers").split())


def enable(folder: Path, wanted: Iterable[str]) -> frozenset[str]:
    """Give controllers to the children, one by one, for some may be refused; those given.

    A cgroup with processes gives none: cpu and cpuset it could, but then it is threaded.
    """
    control = folder / _CONTROL
    enabled = read(control).split()
    missing = available(folder).intersection(wanted).difference(enabled)
    if missing and not (_is_inner(folder) and read_ids(folder / "cgroup.procs")):
        for name in missing:
            try:
                write(control, f"+{name}")
            except CgroupError:
                continue
        enabled = read(control).split()
    return frozenset(enabled).intersection(wanted)


def enable_down_to(root: Path, parent: Path, wanted: Iterable[str]) -> None:
    """Give controllers from the root down to the children of ``parent``; raises CgroupError."""
    wanted = list(wanted)
    inside = parent.relative_to(root)
    for part in reversed([inside, *inside.parents]):
        enable(root / part, wanted)
    if _is_inner(parent) and os.getpid() in read_ids(parent / "cgroup.procs"):
        _step_aside(parent)
        enable(parent, wanted)


def _is_inner(folder: Path) -> bool:
    """Whether it is not the root of the hierarchy."""
    return (folder / "cgroup.events").exists()


def _step_aside(parent: Path) -> None:
    """Move the processes of the cgroup that this one is in, which is ours then, to a leaf."""
    leaf = parent / LEAF
    make(leaf)
    _move_all(parent, leaf)


def _move_all(source: Path, target: Path) -> None:
    for _ in range(_ROUNDS):
        moved = [move(target, pid) for pid in read_ids(source / "cgroup.procs")]
        if not any(moved):
            return


async def step_back(parent: Path) -> None:
    """Undo the stepping aside, unless others use the cgroup by now; raises CgroupError."""
    leaf = parent / LEAF
    if children(parent) != [leaf]:
        return
    for name in read(parent / _CONTROL).split():
        write(parent / _CONTROL, f"-{name}")
    _move_all(leaf, parent)
    await remove_tree(leaf)
