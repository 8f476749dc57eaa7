"""One connection to the local API: who may ask."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from typing import ClassVar, Final

from pinfold.ports.held_process import Peer
from pinfold.web.limited_connection import LimitedConnection

_CREDENTIALS: Final = struct.Struct("iII")
"""``struct ucred`` of ``unix(7)``: pid, uid, gid of the process that connected."""


class Connection(LimitedConnection):
    """A connection with a check at the door."""

    stopping: ClassVar = (
        "the agent is stopping; what was begun goes on",
        "ask again when it is back",
    )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Only root and the agent's own user may ask; others are not answered."""
        peer = _peer(transport)
        if peer.uid not in (0, os.geteuid()):
            transport.abort()
            return
        self.app_state = {**self.app_state, "peer": peer}
        super().connection_made(transport)


def _peer(transport: asyncio.Transport) -> Peer:
    sock: socket.socket = transport.get_extra_info("socket")
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return Peer(pid, uid, time.clock_gettime(time.CLOCK_BOOTTIME))
