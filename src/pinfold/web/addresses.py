"""Where a server of the network listens: ``[HOST]:PORT``."""

from __future__ import annotations

import os
import re
import socket
from typing import Final

from pinfold.ports.errors import PortError
from pinfold.web.listening import BACKLOG

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[\w.\-]*)):(?P<port>\d{1,5})"
)


def parsed_address(address: str) -> tuple[str, int, bool]:
    """Host ("": all), port, and whether the host is an IPv6 address; raises PortError."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        raise PortError(f"{address!r}: must be HOST:PORT, [IPV6]:PORT or :PORT")
    return found["six"] or found["host"], int(found["port"]), bool(found["six"])


def listen(address: str) -> socket.socket:
    """A socket that listens; without a host on all addresses of the machine, IPv6 and IPv4.

    Raises:
        PortError: that is no address, or it cannot be had.
    """
    host, port, is_six = parsed_address(address)
    dual = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or is_six else socket.AF_INET
    try:
        sock = socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=dual
        )
    except OSError as error:
        # Its own text has the address once more, as Python writes it.
        problem = os.strerror(error.errno) if error.errno else str(error)
        raise PortError(f"{address}: {problem}", "give another address") from None
    # Those that it accepts have it, too. asyncio sets it on sockets of its own only, and an answer
    # in two parts would wait for the peer's delayed acknowledgement, 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(0)
    return sock
