"""The folder of the plugins: where ``kubelet.sock`` is, and the sockets of plugins."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from pinfold.adapters.deviceplugin.registration_rules import SOCKET_NAME
from pinfold.linux.socket_files import SocketFile

ELSEWHERE: Final = "give the device plugins another folder"


def registration_socket(folder: Path) -> SocketFile:
    """The socket at which plugins register, in ``folder`` (absolute)."""
    return SocketFile(
        folder / SOCKET_NAME,
        shorter="give the device plugins a folder with a shorter path",
        elsewhere=ELSEWHERE,
        who="another process (perhaps a kubelet)",
    )


def remove_sockets(folder: Path) -> None:
    """Remove the sockets of plugins, as the kubelet does when it starts.

    Raises:
        OSError: one cannot be removed.
    """
    with os.scandir(folder) as entries:
        found = [(entry.path, entry.stat(follow_symlinks=False).st_mode) for entry in entries]
    if any(stat.S_ISDIR(mode) and not Path(path).name.startswith(".") for path, mode in found):
        return  # not a folder for plugins only: the sockets may be anybody's
    for path, mode in found:
        if stat.S_ISSOCK(mode):
            Path(path).unlink(missing_ok=True)
