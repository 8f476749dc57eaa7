"""Reading state files, and replacing them without ever losing one.

A replacement is complete or has not happened: the new content and the backup of the old one are
written under another name, flushed to the disk, and only then given their names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from pinfold.audit.recorded import StateFiles, memory_file
from pinfold.linux.durable import create, new_name, replace, sync_folder

MAX_STATE_BYTES: Final = 16 * 1024 * 1024
"""A state file of a machine with thousands of CPUs has a few hundred kilobytes."""

_MAX_BACKUPS: Final = 10_000

_T = TypeVar("_T")


class StateFileError(ValueError):
    """A file that cannot be read or written; the message names it and the reason."""


def read_state_file(path: Path) -> bytes:
    """The bytes of a state file; a device or a pipe is not waited for.

    Raises:
        StateFileError: missing, unreadable, no regular file, or above ``MAX_STATE_BYTES``.
    """

    def read() -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - Path cannot take a descriptor
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(None, "not a regular file")
            return file.read(MAX_STATE_BYTES + 1)

    data = _attempt(read, f"cannot read {path}")
    if len(data) > MAX_STATE_BYTES:
        raise StateFileError(
            f"{path} is larger than {MAX_STATE_BYTES // 1024 // 1024} MiB: this is no state file"
        )
    return data


def read_state_files(path: Path) -> StateFiles:
    """The CPU manager's state file, and the memory manager's beside it (none under policy None).

    Raises:
        StateFileError: see :func:`read_state_file`; of the CPU manager's only.
    """
    memory = None
    with contextlib.suppress(StateFileError):
        memory = read_state_file(memory_file(path))
    return StateFiles(path, read_state_file(path), memory)


def replace_state_file(path: Path, old: bytes | None, new: bytes) -> Path | None:
    """Replace ``path`` by ``new``, keeping what was there as ``PATH.bak-N``; returns that path.

    ``old`` is the content that ``new`` was made from (``None``: there must be no file): a file
    that has changed meanwhile, as a running kubelet does it, is left alone.  No existing backup
    is ever touched.

    Raises:
        StateFileError: nothing was replaced; ``path`` holds what it held, complete.
    """
    path = _attempt(path.resolve, f"cannot resolve {path}")
    with _alone_in(path.parent):
        if old is None:
            if _link_new(path, new, [path]) is None:
                raise StateFileError(f"cannot create {path}: {os.strerror(errno.EEXIST)}")
            return None
        if read_state_file(path) != old:
            raise StateFileError(
                f"{path} has changed since it was read: stop the kubelet, and try again"
            )
        names = (path.with_name(f"{path.name}.bak-{n}") for n in range(1, _MAX_BACKUPS))
        backup = _link_new(path, old, names, like=path)
        if backup is None:
            raise StateFileError(
                f"cannot back up {path}: there are {_MAX_BACKUPS} backups, remove some"
            )
        mode, owner = _rights(path)
        _attempt(lambda: replace(path, new, mode=mode, owner=owner), f"cannot replace {path}")
        return backup


def write_state_file(path: Path, new: bytes, *, sync: bool = True) -> None:
    """Write a state file that is our own, in place of what is there, without a backup.

    With ``sync`` it survives that the machine stops at once.

    Raises:
        StateFileError: ``path`` holds what it held, unless only the folder was not synced.
    """
    try:
        replace(path, new, sync=sync)
    except OSError as error:
        verb = "write" if error.filename2 is None else "replace"
        raise StateFileError(f"cannot {verb} {path}: {_reason(error)}") from None


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other commands like this one out, which use the same names."""
    place = f"cannot write in {folder}"
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = _attempt(lambda: os.open(folder, flags), place)
    try:
        _attempt(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX), place)
        yield
    finally:
        os.close(descriptor)


def _link_new(
    path: Path, data: bytes, names: Iterable[Path], like: Path | None = None
) -> Path | None:
    """Give a file of this content the first of the names that is free; None: none of them is.

    A link, other than a rename, never replaces what has come into being meanwhile.
    """
    new = new_name(path)
    mode, owner = _rights(like)

    def make() -> None:
        new.unlink(missing_ok=True)
        create(new, data, mode=mode, owner=owner)

    _attempt(make, f"cannot write {new}")
    try:
        for name in names:
            try:
                os.link(new, name)
            except FileExistsError:
                continue
            except OSError as error:
                raise StateFileError(f"cannot create {name}: {_reason(error)}") from None
            _attempt(lambda: sync_folder(path.parent), f"{name} is written, but not synced")
            return name
    finally:
        with contextlib.suppress(OSError):
            new.unlink()
    return None


def _rights(like: Path | None) -> tuple[int, tuple[int, int] | None]:
    """Mode and owner of a file."""
    if like is None:
        return 0o600, None
    status = _attempt(like.stat, f"cannot read {like}")
    return stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)


def _attempt(action: Callable[[], _T], what: str) -> _T:
    try:
        return action()
    except OSError as error:
        raise StateFileError(f"{what}: {_reason(error)}") from None
    except RuntimeError:  # how Path.resolve names a loop of links
        raise StateFileError(f"{what}: too many levels of symbolic links") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
