"""Which cgroup hierarchies there are, and where this process sits in them.

Source: ``proc_pid_mountinfo(5)``, ``cgroups(7)``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pinfold.node.ports import CgroupError

CPUSET: Final = "cpuset"
V1_CONTROLLERS: Final = frozenset(
    {"cpuset", "cpu", "cpuacct", "memory", "hugetlb", "pids", "freezer", "devices", "blkio"}
)


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted hierarchy: where it is, and which part of it (``root``) is seen there."""

    point: Path
    root: str
    writable: bool


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """What is mounted: ``unified`` is cgroup v2, ``v1`` are the others by controller.

    ``own`` is the cgroup of this process by controller, with "" for v2.
    """

    unified: Mount | None
    v1: Mapping[str, Mount]
    own: Mapping[str, str]
    unified_controllers: frozenset[str] = field(default_factory=frozenset)

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


def find_hierarchies(proc: Path = Path("/proc")) -> Hierarchies:
    """Read what is mounted.

    Raises:
        CgroupError: /proc cannot be read.
    """
    try:
        mounts = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        own = (proc / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CgroupError(f"{error.filename}: {error.strerror}", "mount proc at /proc") from None
    unified, v1 = parse_mounts(mounts)
    return Hierarchies(unified, v1, parse_own(own), _controllers(unified))


def _controllers(unified: Mount | None) -> frozenset[str]:
    if unified is None:
        return frozenset()
    try:
        text = (unified.point / "cgroup.controllers").read_text(encoding="ascii")
    except OSError:
        return frozenset()
    return frozenset(text.split())


def parse_mounts(text: str) -> tuple[Mount | None, dict[str, Mount]]:
    """The cgroup mounts of a ``mountinfo`` text; of several the last one, which covers others."""
    unified = None
    v1: dict[str, Mount] = {}
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if not dash or len(before) < 6 or len(after) < 3:
            continue
        root, point, options = before[3], before[4], before[5].split(",")
        mount = Mount(Path(_unescaped(point)), _unescaped(root), "ro" not in options)
        if after[0] == "cgroup2":
            unified = mount
        elif after[0] == "cgroup":
            for controller in after[-1].split(","):
                if controller in V1_CONTROLLERS:
                    v1[controller] = mount
    return unified, v1


def parse_own(text: str) -> dict[str, str]:
    """The cgroups of a ``/proc/PID/cgroup`` text by controller."""
    own: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/"):
            continue
        for controller in controllers.split(",") if controllers else [""] * (number == "0"):
            own[controller] = path
    return own


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def is_delegated(folder: Path) -> bool:
    """Whether systemd has handed this cgroup to the service in it (``Delegate=yes``)."""
    for name in ("trusted.delegate", "user.delegate"):
        try:
            if os.getxattr(folder, name) == b"1":
                return True
        except OSError:
            continue
    return False
