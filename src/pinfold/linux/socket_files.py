"""The socket of a server that binds by itself: whole when it appears, in nobody's place.

gRPC binds a path by itself, and would remove any socket that is there.  So it binds in a folder
of our own, and the finished socket is linked to its place, which fails where a file is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.linux.socket_places import Identity, check_length, identity, locked, remove_stale
from pinfold.ports.errors import PortError

_FOLDER_MODE: Final = 0o750


class SocketFile(Struct, frozen=True):
    """Where the socket is to be (``path`` is absolute), and what is said when it cannot be.

    Attributes:
        path: its place.
        shorter: the remedy for a path that is too long.
        elsewhere: how another place is given.
        who: who may be listening there.
        group: a group whose members may connect, beside the owner.
    """

    path: Path
    shorter: str
    elsewhere: str
    who: str = "another process"
    group: int | None = None

    def prepare(self) -> None:
        """Make the folders that are missing, with mode 0750.

        Raises:
            PortError: the path cannot be used.
        """
        check_length(self.path, self.shorter)
        make_folder(self.path.parent, self.elsewhere, self.group)

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
            check_length(made, self.shorter)
            yield made
        finally:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
                folder.rmdir()

    async def put(self, made: Path, *, first: Callable[[], None] | None = None) -> Identity | None:
        """Give the socket at ``made`` its mode and its place.

        Args:
            made: the socket, which listens.
            first: what is done when nobody lives there, right before.

        Returns:
            What tells it from another file that is there later.

        Raises:
            PortError: somebody lives there, or a file is there that is no socket.
        """
        try:
            if self.group is not None:
                os.chown(made, -1, self.group)
            os.chmod(made, 0o600 if self.group is None else 0o660)  # noqa: PTH101 - as os.link
            async with locked(self.path):
                remove_stale(self.path, who=self.who, elsewhere=self.elsewhere)
                if first is not None:
                    first()
                os.link(made, self.path)
            return identity(made)
        except OSError as error:
            raise self.refused(error) from None

    def refused(self, error: OSError) -> PortError:
        """The error to raise for what the system said."""
        return _refused(self.path, error, self.elsewhere)


def make_folder(folder: Path, elsewhere: str, group: int | None = None) -> None:
    """Make the folders that are missing, with mode 0750.

    Args:
        folder: the one that is wanted.
        elsewhere: how another place is given, for the remedy.
        group: a group that the new ones belong to.

    Raises:
        PortError: it cannot be used.
    """
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        for new in reversed(missing):
            new.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            new.chmod(_FOLDER_MODE)  # whatever the umask is
            if group is not None:
                os.chown(new, -1, group)
        mode = folder.stat().st_mode
    except OSError as error:
        raise _refused(folder, error, elsewhere) from None
    if not stat.S_ISDIR(mode):
        raise PortError(f"{folder}: is no folder", elsewhere)
    if mode & (stat.S_IWOTH | stat.S_IWGRP) and not mode & stat.S_ISVTX:
        raise PortError(
            f"{folder}: others may write there and could replace the socket",
            f"chmod go-w {folder}, or {elsewhere}",
        )


def _refused(path: Path, error: OSError, elsewhere: str) -> PortError:
    remedy = "name a group that the agent may use" if error.errno == errno.EPERM else elsewhere
    return PortError(f"{path}: {error.strerror or error}", remedy)
