"""``kubelet.sock`` in the folder of the plugins: whole when it appears, and nobody else's.

gRPC binds a path by itself, and would remove any socket that is there.  So it binds in a folder
of our own, and the finished socket is linked to its place, which fails where a file is.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pinfold.adapters.deviceplugin.registration_rules import LONGEST_PATH, SOCKET_NAME
from pinfold.node.port_errors import PortError

Identity = tuple[int, int, int]
"""Device, inode and time of a file: what tells it from another one at its place later."""

_FOLDER_MODE: Final = 0o750
_ELSEWHERE: Final = "give the device plugins another folder"
_LOCK_TRIES: Final = 50
_LOCK_PAUSE: Final = 0.02


def identity(path: Path) -> Identity | None:
    """The file that is there now, None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def make_folder(folder: Path) -> None:
    """Make the folders that are missing, with mode 0750.

    Raises:
        PortError: it cannot be used.
    """
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        for new in reversed(missing):
            new.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            new.chmod(_FOLDER_MODE)  # whatever the umask is
        mode = folder.stat().st_mode
    except OSError as error:
        raise PortError(f"{folder}: {error.strerror or error}", _ELSEWHERE) from None
    if not stat.S_ISDIR(mode):
        raise PortError(f"{folder}: is no folder", _ELSEWHERE)
    if mode & (stat.S_IWOTH | stat.S_IWGRP) and not mode & stat.S_ISVTX:
        raise PortError(
            f"{folder}: others may write there and could replace sockets",
            f"chmod go-w {folder}, or {_ELSEWHERE}",
        )


@dataclass(frozen=True, slots=True)
class RegistrationSocket:
    """The socket at which plugins register, in ``folder`` (absolute)."""

    folder: Path

    @property
    def path(self) -> Path:
        """Its place."""
        return self.folder / SOCKET_NAME

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            PortError: it cannot be used.
        """
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            raise PortError(
                f"{self.path}: the path of a socket has {LONGEST_PATH} bytes at most",
                "give the device plugins a folder with a shorter path",
            )
        make_folder(self.folder)

    @contextlib.contextmanager
    def workshop(self) -> Iterator[Path]:
        """A path in a private folder, at which the socket can be made.

        Raises:
            PortError: there can be none.
        """
        try:
            folder = Path(tempfile.mkdtemp(prefix=".", dir=self.folder))
        except OSError as error:
            raise self._refused(error) from None
        made = folder / "s"
        try:
            yield made
        finally:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
                folder.rmdir()

    async def put(self, made: Path, *, clean: bool) -> Identity | None:
        """Give the socket at ``made`` its place.

        Args:
            made: the socket, which listens.
            clean: remove the sockets of plugins, as the kubelet does when it starts: there are
                plugins that register again only when they see that.

        Returns:
            What tells it from another file that is there later.

        Raises:
            PortError: somebody lives there, or a file is there that is no socket.
        """
        try:
            os.chmod(made, 0o600)  # noqa: PTH101 - no path of its own, as os.link below
            async with self._locked():
                self._remove_stale()
                if clean:
                    self._clean()
                os.link(made, self.path)
            return identity(made)
        except OSError as error:
            raise self._refused(error) from None

    def remove(self, which: Identity | None) -> None:
        """Remove the socket, if it is still that one."""
        with contextlib.suppress(OSError):
            if which is not None and identity(self.path) == which:
                self.path.unlink()

    def _refused(self, error: OSError) -> PortError:
        return PortError(f"{self.path}: {error.strerror or error}", _ELSEWHERE)

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Keep two agents from both finding the same file stale; it is held for an instant."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for _ in range(_LOCK_TRIES):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(_LOCK_PAUSE)
            else:
                raise PortError(
                    f"{self.path}: its folder is locked", "see who holds a lock on that folder"
                )
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
        raise PortError(
            f"{self.path}: another process listens there, a kubelet perhaps",
            f"stop it, or {_ELSEWHERE}",
        )

    def _clean(self) -> None:
        with os.scandir(self.folder) as entries:
            found = [(entry.path, entry.stat(follow_symlinks=False).st_mode) for entry in entries]
        if any(stat.S_ISDIR(mode) and not _ours(path) for path, mode in found):
            return  # not a folder for plugins only: the sockets may be anybody's
        for path, mode in found:
            if stat.S_ISSOCK(mode):
                Path(path).unlink(missing_ok=True)


def _ours(path: str) -> bool:
    return Path(path).name.startswith(".")
