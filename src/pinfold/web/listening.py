"""The agent's socket as a file: made for its user only, never taken from one who lives."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from pinfold.linux.folders import Purpose, make_folder, remove_made
from pinfold.linux.locks import SECOND_AGENT
from pinfold.linux.socket_places import (
    Identity,
    check_length,
    identity,
    locked,
    remove_own,
    remove_stale,
)
from pinfold.ports.errors import PortError

BACKLOG: Final = 256

_ELSEWHERE: Final = "give another path with --socket"
_PURPOSE: Final = Purpose("the socket", _ELSEWHERE)


@contextlib.asynccontextmanager
async def listening(path: Path) -> AsyncIterator[socket.socket]:
    """A socket that listens at ``path``, with mode 0600; its file is removed at the end.

    A missing folder is made with mode 0700, and removed again when the block, or this itself,
    raises.  The file of an agent that is dead is replaced.

    Raises:
        PortError: an agent lives there, somebody else could put his own socket there, or the
            path cannot be used.
    """
    made: list[Path] = []
    try:
        try:
            path, made = _prepared(path)
            async with locked(path):
                remove_stale(path, who="another agent", elsewhere=_ELSEWHERE, beside=SECOND_AGENT)
                sock, which = _bound(path)
        except OSError as error:
            raise PortError(f"{path}: {error.strerror or error}", _ELSEWHERE) from None
        try:
            yield sock
        finally:
            # The file goes first: as long as it is there, somebody listens.
            remove_own(path, which)
            sock.close()
    except BaseException:
        remove_made(made)
        raise


def _prepared(path: Path) -> tuple[Path, list[Path]]:
    """The absolute path, and the folders that were made for it."""
    path = path.absolute()
    check_length(path, "give a shorter one with --socket")
    return path, make_folder(path.parent, _PURPOSE)


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
