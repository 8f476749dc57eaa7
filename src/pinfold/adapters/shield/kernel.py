"""The kernel's files, and which cpuset hierarchy a shield stands in.

Source: ``cpuset(7)``, ``cgroups(7)``, ``proc_pid_mountinfo(5)``.
"""

from __future__ import annotations

import errno
from enum import Enum
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.linux.cgroup_mounts import mount_with
from pinfold.linux.kernel_files import ValueFiles, descendants, read_value, subfolders
from pinfold.linux.mounts import mounts
from pinfold.ports.errors import PortError

ONLINE: Final = Path("/sys/devices/system/cpu/online")
PRESENT: Final = Path("/sys/devices/system/cpu/present")
_REMEDIES: Final = {
    errno.EACCES: "run as root",
    errno.EPERM: "run as root",
    errno.EROFS: "mount it read-write, or run on the host and not in a container",
    errno.EBUSY: "processes or child cgroups still use it",
    errno.EINVAL: "another cpuset may own these CPUs (cpuset.cpu_exclusive or a partition)",
}


class ShieldError(PortError):
    """The shield could not be raised, lowered or read."""


class ShieldRequestError(ShieldError):
    """These CPUs cannot be shielded; nothing was changed."""


class Method(Enum):
    """What keeps the others off: systemd's slices, or a cgroup of our own (v2 or v1)."""

    SYSTEMD = "systemd"
    CGROUP2 = "cgroup2"
    CGROUP1 = "cgroup1"


class Place(Struct, frozen=True):
    """The method, and the folder of the root cgroup that it works on."""

    method: Method
    root: Path


def find_place(proc: Path = Path("/proc"), systemd: Path = Path("/run/systemd/system")) -> Place:
    """Find the hierarchy that has the cpuset controller.

    Raises:
        ShieldError: none has it, or only a part of it can be seen.
    """
    try:
        found = mount_with("cpuset", list(mounts(proc)), _text)
    except OSError as error:
        raise failure(proc / "self/mountinfo", error) from None
    if found is None:
        raise ShieldError(
            "no cgroup hierarchy has the cpuset controller",
            "mount cgroup2 at /sys/fs/cgroup, or a cgroup v1 hierarchy with -o cpuset",
        )
    version, root = found[0], found[1].point
    if version == 2:
        method = Method.SYSTEMD if systemd.is_dir() else Method.CGROUP2
        whole = not (root / "cgroup.type").exists()
    else:
        method = Method.CGROUP1
        whole = (root / "release_agent").exists()
    if not whole:
        raise ShieldError(
            f"{root}: only a part of the cgroup hierarchy is seen here",
            "run on the host, not in a container",
        )
    return Place(method, root)


def _text(path: Path) -> str | None:
    try:
        return read_value(path)
    except OSError:
        return None


def exists(path: Path | str) -> bool:
    """Whether the kernel still has a file; cgroups and interrupts come and go."""
    return Path(path).exists()


def folders(path: Path) -> list[Path]:
    """The child cgroups, by name; none when it is gone."""
    return [path / name for name in sorted(subfolders(path))]


def innermost_first(path: Path) -> list[Path]:
    """A cgroup and all below it, each after its children."""
    return [Path(one) for one in descendants(path)]


def failure(path: Path | str, error: OSError, doing: str = "") -> ShieldError:
    """What the kernel said, with the place and the remedy."""
    return ShieldError(
        f"{path}: {doing}{error.strerror or error}", _REMEDIES.get(error.errno or 0, "")
    )


_FILES: Final = ValueFiles(failure)
read: Final = _FILES.read
read_cpus: Final = _FILES.read_cpus
write: Final = _FILES.write
