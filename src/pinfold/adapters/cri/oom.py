"""How far down an ``oom_score_adj`` may be set here."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

_CAP_SYS_RESOURCE: Final = 24
_LOWEST: Final = -1000
_PATIENCE: Final = 1.0


def oom_score_floor(socket_path: str) -> int:
    """The lowest ``oom_score_adj`` that the runtime at a socket can give a container.

    A process without CAP_SYS_RESOURCE can go no lower than itself is, and runc fails there with a
    message that tells nobody why.  The process is the one that listens; where it cannot be told,
    this one.
    """
    pid = _listener(socket_path) or os.getpid()
    try:
        if _may_lower(Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")):
            return _LOWEST
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _listener(path: str) -> int | None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except OSError:
        return None
    pid: int = struct.unpack("3i", credentials)[0]
    # 0: it lives in a pid namespace that is not seen from here.
    return pid or None


def _may_lower(status: str) -> bool:
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False
