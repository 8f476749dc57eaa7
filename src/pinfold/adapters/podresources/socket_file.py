"""The server's socket as a file: whole when it appears, and never put in somebody else's place.

gRPC binds a path by itself, and would remove any socket that is there.  So it binds in a folder
of our own, and the finished socket is linked to its place, which fails where a file is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pinfold.node.port_errors import PortError

LONGEST_PATH: Final = 107
"""Bytes of a socket's path (``sun_path`` of ``unix(7)`` without its end)."""

_FOLDER_MODE: Final = 0o750
_ELSEWHERE: Final = "give the podresources socket another path"
_BUSY: Final = "its folder is locked"
_LOCK_TRIES: Final = 50
_LOCK_PAUSE: Final = 0.02


@dataclass(frozen=True, slots=True)
class SocketFile:
    """Where the socket is to be, and who may connect: its owner, and ``group`` if there is one."""

    path: Path
    group: int | None = None

    @classmethod
    def at(cls, path: Path, group: str | int | None) -> SocketFile:
        """The file at a path, for a group by its name or number.

        Raises:
            PortError: there is no such group.
        """
        if isinstance(group, str):
            try:
                group = grp.getgrnam(group).gr_gid
            except KeyError:
                raise PortError(
                    f"{path}: there is no group {group!r} that could use the podresources socket",
                    "make the group, or name another",
                ) from None
        return cls(path.absolute(), group)

    def prepare(self) -> None:
        """Make the folders that are missing, with mode 0750.

        Raises:
            PortError: the path cannot be used.
        """
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            raise PortError(
                f"{self.path}: the path of a socket has {LONGEST_PATH} bytes at most",
                "give the podresources socket a shorter one",
            )
        folder = self.path.parent
        missing = [f for f in (folder, *folder.parents) if not f.exists()]
        try:
            for new in reversed(missing):
                new.mkdir(mode=_FOLDER_MODE, exist_ok=True)
                new.chmod(_FOLDER_MODE)  # whatever the umask is
                if self.group is not None:
                    os.chown(new, -1, self.group)
            mode = folder.stat().st_mode
        except OSError as error:
            raise self.refused(error) from None
        if mode & (stat.S_IWOTH | stat.S_IWGRP) and not mode & stat.S_ISVTX:
            raise PortError(
                f"{folder}: others may write there and could replace the socket",
                f"chmod go-w {folder}, or {_ELSEWHERE}",
            )

    @contextlib.contextmanager
    def workshop(self) -> Iterator[Path]:
        """A path in a private folder beside the socket's, at which it can be made.

        Raises:
            PortError: there can be none.
        """
        try:
            folder = Path(tempfile.mkdtemp(prefix=".", dir=self.path.parent))
        except OSError as error:
            raise self.refused(error) from None
        made = folder / "s"
        try:
            if len(os.fsencode(made)) > LONGEST_PATH:
                raise PortError(
                    f"{self.path.parent}: the path of a socket there would have more than "
                    f"{LONGEST_PATH} bytes",
                    "give the podresources socket a shorter one",
                )
            yield made
        finally:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
                folder.rmdir()

    async def put(self, made: Path) -> tuple[int, int]:
        """Give the socket at ``made`` its mode and its place.

        Returns:
            What tells it from another file that is there later.

        Raises:
            PortError: somebody lives there, or a file is there that is no socket.
        """
        try:
            self._admit(made)
            async with self._locked():
                self._remove_stale()
                os.link(made, self.path)
            return _identity(made)
        except OSError as error:
            raise self.refused(error) from None

    def identity(self) -> tuple[int, int] | None:
        """The file that is there now, None if there is none."""
        try:
            return _identity(self.path)
        except OSError:
            return None

    def remove(self, identity: tuple[int, int]) -> None:
        """Remove the socket, if it is still that one."""
        with contextlib.suppress(OSError):
            if self.identity() == identity:
                self.path.unlink()

    def refused(self, error: OSError) -> PortError:
        """The error to raise for what the system said."""
        problem = error.strerror or str(error)
        remedy = "name a group that the agent may use" if error.errno == errno.EPERM else _ELSEWHERE
        return PortError(f"{self.path}: {problem}", remedy)

    def _admit(self, made: Path) -> None:
        if self.group is not None:
            os.chown(made, -1, self.group)
        made.chmod(0o600 if self.group is None else 0o660)

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Keep two servers from both finding the same file stale; it is held for an instant."""
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for _ in range(_LOCK_TRIES):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(_LOCK_PAUSE)
            else:
                raise PortError(f"{self.path}: {_BUSY}", "see who holds a lock on that folder")
            yield
        finally:
            os.close(descriptor)

    def _remove_stale(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise PortError(
                f"{self.path}: is there and is no socket", f"remove it, or {_ELSEWHERE}"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(0)
            try:
                probe.connect(os.fsencode(self.path))
            except ConnectionRefusedError:
                self.path.unlink()
                return
            except BlockingIOError:
                pass  # so many wait that no more can
        raise PortError(f"{self.path}: another process listens there", f"stop it, or {_ELSEWHERE}")


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
