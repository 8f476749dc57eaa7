"""Mounting, unmounting, and what is mounted below a folder."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Final

from pinfold.linux.mounts import Mount, mounts

UNTRUSTED: Final = 2 | 4 | 8
"""``MS_NOSUID``, ``MS_NODEV`` and ``MS_NOEXEC``: of what is in there, nothing is run."""

_FILESYSTEMS: Final = Path("/proc/filesystems")
_REMOUNT: Final = 32
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8


def mounts_below(folder: Path) -> list[Mount]:
    """What is mounted on a folder and below it, in the order in which it was."""
    return [found for found in mounts() if found.path.is_relative_to(folder)]


def knows(kind: str) -> bool:
    """Whether the kernel has a file system (or can load it: then it does not say so)."""
    return kind in _FILESYSTEMS.read_text(encoding="ascii", errors="replace").split()


def mount(kind: str, target: Path, options: str, flags: int = 0) -> None:
    """Mount a file system that has no device; raises OSError."""
    _call(
        "mount",
        b"nodev",
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        options.encode(),
    )


def remount(kind: str, target: Path, options: str) -> None:
    """Change options of what was mounted on a folder without flags; raises OSError."""
    mount(kind, target, options, _REMOUNT)


def unmount(target: Path) -> None:
    """Take away what is mounted on a folder; one that is in use goes when it no longer is.

    Raises:
        OSError: the kernel refuses; nothing being mounted there is no error.
    """
    path = os.fsencode(target)
    try:
        _call("umount2", path, _UMOUNT_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.EBUSY:
            _call("umount2", path, _UMOUNT_NOFOLLOW | _MNT_DETACH)
        elif error.errno not in (errno.EINVAL, errno.ENOENT):
            raise


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: bytes | int | ctypes.c_ulong) -> None:
    if getattr(_libc(), name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
