"""Files that are whole or not there, and on the disk when a function returns.

A new content is written under another name in the same folder, brought to the disk, and only then
given the file's name (``rename(2)``); the folder is brought to the disk last.  Whatever fails, and
whenever the machine stops, the file has what it had, or all of the new content.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO


def create(
    path: Path,
    data: bytes,
    *,
    mode: int | None = 0o600,
    owner: tuple[int, int] | None = None,
    sync: bool = True,
) -> os.stat_result:
    """Make a new file; nothing is left of it where that fails.

    Args:
        path: there must be nothing, not even a link.
        data: its content.
        mode: its permissions, whatever the umask is; None: those that the umask leaves.
        owner: user and group; None: this process's.
        sync: whether it is on the disk when this returns.

    Returns:
        What tells it from another file later.

    Raises:
        FileExistsError: there is something.
        OSError: it cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666 if mode is None else mode & 0o600)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - Path cannot take a descriptor
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, *owner)
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            if sync:
                os.fsync(descriptor)
            return os.fstat(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def new_name(path: Path) -> Path:
    """Under which name a file's next content is written: ``.NAME.new`` beside it."""
    return path.with_name(f".{path.name}.new")


def replace(
    path: Path,
    data: bytes,
    *,
    mode: int | None = 0o600,
    owner: tuple[int, int] | None = None,
    sync: bool = True,
) -> os.stat_result:
    """Give a file another content; :func:`new_name` is ours, and one at a time writes.

    Args:
        path: the file, which need not be there; a link is replaced, not followed.
        data: its content.
        mode: its permissions; None: those that the umask leaves.
        owner: user and group; None: this process's.
        sync: whether it survives that the machine stops at once; without, it is whole all the same
            for everybody who reads it.

    Returns:
        What tells it from another file later.

    Raises:
        OSError: it has what it had, unless only the folder could not be brought to the disk.
    """
    new = new_name(path)
    new.unlink(missing_ok=True)
    status = create(new, data, mode=mode, owner=owner, sync=sync)
    try:
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    if sync:
        sync_folder(path.parent)
    return status


def sync(file: BinaryIO) -> None:
    """Bring what was written into a file to the disk; raises OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
