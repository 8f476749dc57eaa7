"""The agent's socket as a file: made for its user only, never taken from one who lives."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from pinfold.node.port_errors import PortError

LONGEST_PATH: Final = 107
"""Bytes of a socket's path (``sun_path`` of ``unix(7)`` without its end)."""

BACKLOG: Final = 256

_ELSEWHERE: Final = "give another path with --socket"
_LOCK_PATIENCE: Final = 1.0


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
        async with _locked(path.parent):
            _remove_stale(path)
            sock, identity = _bound(path)
    except OSError as error:
        raise PortError(f"{path}: {error.strerror or error}", _ELSEWHERE) from None
    try:
        yield sock
    finally:
        # The file goes first: as long as it is there, somebody listens.
        with contextlib.suppress(OSError):
            if _identity(path) == identity:
                path.unlink()
        sock.close()


def _prepared(path: Path) -> Path:
    path = path.absolute()
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise PortError(
            f"{path}: the path of a socket has {LONGEST_PATH} bytes at most",
            "give a shorter one with --socket",
        )
    folder = path.parent.resolve()
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    _check_folders(folder.parents[len(missing) - 1] if missing else folder)
    for new in reversed(missing):
        new.mkdir(mode=0o700, exist_ok=True)
    return path


def _bound(path: Path) -> tuple[socket.socket, tuple[int, int]]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file gets the mode of the socket (less the umask) when it is made, so that it is never
        # open to others, and the process's umask need not be touched.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(os.fsencode(path))
        identity = _identity(path)
        sock.listen(BACKLOG)
        sock.settimeout(0)
    except BaseException:
        sock.close()
        raise
    return sock, identity


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise PortError(f"{path}: is there and is no socket", f"remove it, or {_ELSEWHERE}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(os.fsencode(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # so many wait that no more can
    raise PortError(
        f"{path}: another agent listens there", f"stop it, or {_ELSEWHERE} and --state-dir"
    )


@contextlib.asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[None]:
    """Keep two agents from both finding the same file stale."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = asyncio.get_running_loop().time() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


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
