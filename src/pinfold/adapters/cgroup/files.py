"""Reading and writing the kernel's cgroup files; each failure names file and remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from pinfold.linux.descriptors import NO_ROOM, no_room
from pinfold.linux.kernel_files import ValueFiles
from pinfold.ports.errors import CgroupError

_DELEGATE: Final = "run as root, or have the cgroup delegated (systemd: Delegate=yes)"

_GONE_ERRORS: Final = (errno.ENOENT, errno.ENODEV)
_GONE: Final = "somebody has removed the cgroup"
_REMEDIES: Final = {
    errno.EACCES: _DELEGATE,
    errno.EPERM: _DELEGATE,
    errno.EROFS: "mount the cgroup hierarchy read-write",
    errno.EBUSY: "processes or child cgroups still use it",
    errno.ENOENT: _GONE,
    errno.ENODEV: _GONE,
}
_REMEDIES_OF_FILES: Final = {
    ("cgroup", errno.ENOSPC): "cpuset.cpus or cpuset.mems of the cgroup is empty",
    ("cgroup", errno.EINVAL): "a kernel thread that is bound to its CPU, or a realtime process "
    "(then give the cgroup cpu.rt_runtime_us)",
    ("cpuset", errno.EINVAL): "the parent cgroup lacks these CPUs or memory nodes, another cgroup "
    "has them for its own, or they are offline",
    ("cpuset", errno.EACCES): "the parent cgroup lacks these CPUs or memory nodes",
    ("cpuset", errno.ENOSPC): "processes are in it, and it would be left without CPUs",
    ("cpu", errno.EINVAL): "the cgroup above, or one below, has another limit in its way",
}


class CgroupGoneError(CgroupError):
    """The cgroup's file is not there: somebody has removed the cgroup, or is about to."""


def failure(path: Path | str, error: OSError, doing: str = "") -> CgroupError:
    """What the kernel said, with the place and the remedy."""
    what = f"{path}: {doing}{error.strerror or error}"
    number = error.errno or 0
    if number in NO_ROOM:
        return no_room(path, error)
    remedy = _REMEDIES_OF_FILES.get((Path(path).name.partition(".")[0], number))
    # A file of the kernel says EACCES also to root, and then means something else.
    if remedy is None or (number == errno.EACCES and os.geteuid() != 0):
        remedy = _REMEDIES.get(number, "")
    return (CgroupGoneError if number in _GONE_ERRORS else CgroupError)(what, remedy)


_FILES: Final = ValueFiles(failure)
read: Final = _FILES.read
read_cpus: Final = _FILES.read_cpus
write: Final = _FILES.write
put: Final = _FILES.put
