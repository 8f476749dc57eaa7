"""Reading state files, and replacing them without ever losing one.

A replacement is complete or has not happened: the new content and the backup of the old one are
written under temporary names, flushed to the disk, and only then given their names.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from pinfold.audit.recorded import StateFiles, memory_file
from pinfold.linux.durable import create, sync_folder

MAX_STATE_BYTES: Final = 16 * 1024 * 1024
"""A state file of a machine with thousands of CPUs has a few hundred kilobytes."""

_MAX_BACKUPS: Final = 10_000

_T = TypeVar("_T")


class StateFileError(ValueError):
    """A file that cannot be read or written; the message names it and the reason."""


class Filesystem(Protocol):
    """The few things that replacing a file needs; each may raise ``OSError``."""

    def read(self, path: Path, limit: int) -> bytes:
        """At most ``limit`` bytes of a regular file."""

    def create(self, path: Path, data: bytes, like: Path | None) -> None:
        """Make a new file, on the disk when this returns, with the mode and owner of ``like``."""

    def link(self, source: Path, target: Path) -> None:
        """Give ``source`` a second name, which must not exist."""

    def replace(self, source: Path, target: Path) -> None:
        """Give ``source`` the name ``target``, in place of what has it."""

    def remove(self, path: Path) -> None:
        """Remove a file."""

    def sync_directory(self, path: Path) -> None:
        """Bring the names in a directory to the disk."""


class DiskFilesystem:
    """The :class:`Filesystem` of the operating system."""

    def read(self, path: Path, limit: int) -> bytes:
        """See :class:`Filesystem`; a device or a pipe is an ``OSError`` and is not waited for."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - Path cannot take a descriptor
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(None, "not a regular file")
            return file.read(limit)

    def create(self, path: Path, data: bytes, like: Path | None) -> None:
        """See :class:`Filesystem`."""
        mode = 0o600
        owner = None
        if like is not None:
            status = like.stat()
            mode, owner = stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)
        create(path, data, mode=mode, owner=owner)

    def link(self, source: Path, target: Path) -> None:
        """See :class:`Filesystem`."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """See :class:`Filesystem`."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """See :class:`Filesystem`."""
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        """See :class:`Filesystem`."""
        sync_folder(path)


DISK: Final[Filesystem] = DiskFilesystem()


def read_state_file(path: Path, filesystem: Filesystem = DISK) -> bytes:
    """The bytes of a state file.

    Raises:
        StateFileError: missing, unreadable, no regular file, or above ``MAX_STATE_BYTES``.
    """
    data = _attempt(lambda: filesystem.read(path, MAX_STATE_BYTES + 1), f"cannot read {path}")
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


def replace_state_file(
    path: Path, old: bytes | None, new: bytes, filesystem: Filesystem = DISK
) -> Path | None:
    """Replace ``path`` by ``new``, keeping what was there as ``PATH.bak-N``; returns that path.

    ``old`` is the content that ``new`` was made from (``None``: there must be no file): a file
    that has changed meanwhile, as a running kubelet does it, is left alone.  No existing backup
    is ever touched.

    Raises:
        StateFileError: nothing was replaced; ``path`` holds what it held, complete.
    """
    path = _attempt(path.resolve, f"cannot resolve {path}")
    directory = path.parent
    backup = None
    temporary = directory / f".{path.name}.pinfold-{secrets.token_hex(4)}"
    like = None if old is None else path
    if old is not None:
        if read_state_file(path, filesystem) != old:
            raise StateFileError(
                f"{path} has changed since it was read: stop the kubelet, and try again"
            )
        backup = _back_up(path, old, temporary, filesystem)
    _write_temporary(temporary, new, like, filesystem)
    try:
        if old is None:
            # A link does not replace a file that has come into being meanwhile.
            _attempt(lambda: filesystem.link(temporary, path), f"cannot create {path}")
        else:
            _attempt(lambda: filesystem.replace(temporary, path), f"cannot replace {path}")
    finally:
        _discard(temporary, filesystem)
    _attempt(lambda: filesystem.sync_directory(directory), f"{path} is written, but not synced")
    return backup


def write_state_file(path: Path, new: bytes, filesystem: Filesystem = DISK) -> None:
    """Write a state file that is our own, in place of what is there, without a backup.

    Raises:
        StateFileError: nothing was written; ``path`` holds what it held, complete.
    """
    temporary = path.parent / f".{path.name}.pinfold-{secrets.token_hex(4)}"
    _write_temporary(temporary, new, None, filesystem)
    try:
        _attempt(lambda: filesystem.replace(temporary, path), f"cannot replace {path}")
    finally:
        _discard(temporary, filesystem)
    _attempt(lambda: filesystem.sync_directory(path.parent), f"{path} is written, but not synced")


def _back_up(path: Path, content: bytes, temporary: Path, filesystem: Filesystem) -> Path:
    _write_temporary(temporary, content, path, filesystem)
    try:
        for number in range(1, _MAX_BACKUPS):
            backup = path.with_name(f"{path.name}.bak-{number}")
            try:
                filesystem.link(temporary, backup)
            except FileExistsError:
                continue
            except OSError as error:
                raise StateFileError(f"cannot back up {path}: {_reason(error)}") from None
            _attempt(lambda: filesystem.sync_directory(path.parent), f"cannot back up {path}")
            return backup
    finally:
        _discard(temporary, filesystem)
    raise StateFileError(f"cannot back up {path}: there are {_MAX_BACKUPS} backups, remove some")


def _write_temporary(
    temporary: Path, data: bytes, like: Path | None, filesystem: Filesystem
) -> None:
    try:
        filesystem.create(temporary, data, like)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            _discard(temporary, filesystem)
        raise StateFileError(f"cannot write {temporary}: {_reason(error)}") from None


def _discard(temporary: Path, filesystem: Filesystem) -> None:
    with contextlib.suppress(OSError):
        filesystem.remove(temporary)


def _attempt(action: Callable[[], _T], what: str) -> _T:
    try:
        return action()
    except OSError as error:
        raise StateFileError(f"{what}: {_reason(error)}") from None
    except RuntimeError:  # how Path.resolve names a loop of links
        raise StateFileError(f"{what}: too many levels of symbolic links") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
