"""Mounting, unmounting, and what is mounted: the system calls and the kernel's table."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

_TABLE: Final = Path("/proc/self/mountinfo")
_FILESYSTEMS: Final = Path("/proc/filesystems")
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8


class Mount(Struct, frozen=True):
    """One mount; ``options`` are the file system's own."""

    path: Path
    kind: str
    options: frozenset[str]


def mounts() -> Iterator[Mount]:
    """What is mounted, in the order in which it was."""
    for line in _TABLE.read_bytes().splitlines():
        fields, _, rest = line.partition(b" - ")
        words, own = fields.split(b" "), rest.split(b" ")
        if len(words) < 5 or len(own) < 3:
            continue
        yield Mount(
            Path(os.fsdecode(_unescaped(words[4]))),
            os.fsdecode(own[0]),
            frozenset(os.fsdecode(own[2]).split(",")),
        )


def mounts_below(folder: Path) -> list[Mount]:
    """What is mounted on a folder and below it, in the order in which it was."""
    return [found for found in mounts() if found.path.is_relative_to(folder)]


def knows(kind: str) -> bool:
    """Whether the kernel has a file system (or can load it: then it does not say so)."""
    return kind in _FILESYSTEMS.read_text(encoding="ascii", errors="replace").split()


def mount(kind: str, target: Path, options: str) -> None:
    """Mount a file system that has no device.

    Raises:
        OSError: the kernel refuses.
    """
    _call(
        "mount",
        b"nodev",
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(0),
        options.encode(),
    )


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


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), text)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: bytes | int | ctypes.c_ulong) -> None:
    if getattr(_libc(), name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
