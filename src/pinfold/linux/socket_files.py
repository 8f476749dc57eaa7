"""The socket of a server that binds by itself: whole when it appears, in nobody's place.

gRPC binds a path by itself, and would remove any socket that is there.  So it binds in a folder
of our own, and the finished socket is linked to its place, which fails where a file is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.linux.folders import Purpose, make_folder
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
        """Make the folders that are missing, with mode 0750; raises PortError."""
        check_length(self.path, self.shorter)
        socket_folder(self.path.parent, self.elsewhere, self.group)

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


def socket_folder(folder: Path, elsewhere: str, group: int | None = None) -> None:
    """Make the folders that are missing, with mode 0750, for this user and ``group``.

    Raises:
        PortError: it cannot be used; see :func:`pinfold.linux.folders.check_path`.
    """
    try:
        for new in make_folder(folder, Purpose("the socket", elsewhere), mode=_FOLDER_MODE):
            new.chmod(_FOLDER_MODE)  # whatever the umask is
            if group is not None:
                os.chown(new, -1, group)
        if not folder.is_dir():
            raise PortError(f"{folder}: is no folder", elsewhere)
    except OSError as error:
        raise _refused(folder, error, elsewhere) from None


def _refused(path: Path, error: OSError, elsewhere: str) -> PortError:
    remedy = "name a group that the agent may use" if error.errno == errno.EPERM else elsewhere
    return PortError(f"{path}: {error.strerror or error}", remedy)
