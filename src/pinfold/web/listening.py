"""The agent's socket as a file: made for its user only, never taken from one who lives."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from pinfold.node.port_errors import PortError
from pinfold.sockets.places import (
    Identity,
    check_length,
    identity,
    locked,
    remove_own,
    remove_stale,
)

BACKLOG: Final = 256

_ELSEWHERE: Final = "give another path with --socket"


@contextlib.asynccontextmanager
async def listening(path: Path) -> AsyncIterator[socket.socket]:
    """A socket that listens at ``path``, with mode 0600; its file is removed at the end.

    A missing folder is made with mode 0700.  The file of an agent that is dead is replaced.

    Raises:
        PortError: an agent lives there, somebody else could put his own socket there, or the
            path cannot be used.
    """
    try:
        path = _prepared(path)
        async with locked(path):
            remove_stale(path, who="another agent", elsewhere=f"{_ELSEWHERE} and --state-dir")
            sock, which = _bound(path)
    except OSError as error:
        raise PortError(f"{path}: {error.strerror or error}", _ELSEWHERE) from None
    try:
        yield sock
    finally:
        # The file goes first: as long as it is there, somebody listens.
        remove_own(path, which)
        sock.close()


def _prepared(path: Path) -> Path:
    path = path.absolute()
    check_length(path, "give a shorter one with --socket")
    folder = path.parent.resolve()
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    _check_folders(folder.parents[len(missing) - 1] if missing else folder)
    for new in reversed(missing):
        new.mkdir(mode=0o700, exist_ok=True)
    return path


def _bound(path: Path) -> tuple[socket.socket, Identity | None]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file gets the mode of the socket (less the umask) when it is made, so that it is never
        # open to others, and the process's umask need not be touched.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(os.fsencode(path))
        which = identity(path)
        sock.listen(BACKLOG)
        sock.settimeout(0)
    except BaseException:
        sock.close()
        raise
    return sock, which


def _check_folders(folder: Path) -> None:
    """See that nobody else can put a socket of his own in place of the agent's."""
    # Inside a user namespace the owner of / may be a number that stands for nobody.
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    for parent in (folder, *folder.parents):
        status = parent.stat()
        owner = status.st_uid
        if owner not in trusted:
            raise PortError(
                f"{parent}: belongs to user {owner}, who could replace the socket", _ELSEWHERE
            )
        by_group = status.st_mode & stat.S_IWGRP and status.st_gid not in {0, os.getegid()}
        by_all = status.st_mode & stat.S_IWOTH
        if (by_group or by_all) and not status.st_mode & stat.S_ISVTX:
            raise PortError(
                f"{parent}: others may write there and could replace the socket",
                f"chmod go-w {parent}, or {_ELSEWHERE}",
            )
