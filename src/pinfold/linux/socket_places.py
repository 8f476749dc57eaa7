"""A place in the file system for a socket: nobody else's, and whose if it is taken."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from pinfold.linux import locks
from pinfold.ports.errors import PortError

LONGEST_PATH: Final = 107
"""Bytes of a socket's path (``sun_path`` of ``unix(7)`` without its end)."""

_PATIENCE: Final = 1.0

Identity = tuple[int, int, int]
"""Device, inode and time of a file: what tells it from another one at its place later."""


def identity(path: Path) -> Identity | None:
    """The file that is there now, None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def remove_own(path: Path, which: Identity | None) -> None:
    """Remove a socket, if it is still that one."""
    with contextlib.suppress(OSError):
        if which is not None and identity(path) == which:
            path.unlink()


def check_length(path: Path, remedy: str) -> None:
    """Refuse a path that no socket can have.

    Raises:
        PortError: it is too long; ``remedy`` says what to do.
    """
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise PortError(f"{path}: the path of a socket has {LONGEST_PATH} bytes at most", remedy)


@contextlib.asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Keep two servers from both finding the socket at ``path`` stale; for an instant only.

    Raises:
        PortError: somebody holds a lock on its folder.
        OSError: there is no such folder.
    """
    folder = path.parent
    try:
        async with locks.locked(folder, locks.folder_of(folder), patience=_PATIENCE):
            yield
    except locks.HeldError as held:
        raise PortError(
            f"{path}: its folder is locked{held.who}", "see who holds a lock on it"
        ) from None


def remove_stale(path: Path, *, who: str, elsewhere: str, beside: str = "") -> None:
    """Remove the socket of a server that is dead; arguments and errors as :func:`is_stale`."""
    if is_stale(path, who=who, elsewhere=elsewhere, beside=beside):
        path.unlink()


def is_stale(path: Path, *, who: str, elsewhere: str, beside: str = "") -> bool:
    """Whether the socket of a server that is dead is there; False where there is none.

    Args:
        path: its place.
        who: who may be listening there, for the message.
        elsewhere: how another place is given, for the remedy.
        beside: what it takes beside one who lives there, where another place alone will not do.

    Raises:
        PortError: somebody lives there, or a file is there that is no socket.
        OSError: it cannot be looked at.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise PortError(f"{path}: is there and is no socket", f"remove it, or {elsewhere}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(os.fsencode(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:
            pass  # so many wait that no more can
    raise PortError(f"{path}: {who} listens there", f"stop it, or {beside or elsewhere}")
