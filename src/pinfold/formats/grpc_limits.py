"""What the clients of a gRPC server on a socket may take, so that none keeps others out.

gRPC accepts by itself, so that :mod:`pinfold.linux.descriptors` cannot count what it holds.
"""

from __future__ import annotations

from typing import Final

from pinfold.linux.descriptors import RESERVE, file_limit

CONNECTIONS: Final = 64
FEWEST_CONNECTIONS: Final = 4
HANDSHAKE_MS: Final = 2000
"""From a connection to the first frames of HTTP/2; both ends are on this machine."""

IDLE_MS: Final = 15_000
"""After so long without a call a client is told to connect again when it has one."""

CALLS: Final = 64
"""Calls that are answered at once, of all clients."""


def server_options() -> list[tuple[str, int]]:
    """Options of a server; it is also made with ``maximum_concurrent_rpcs`` :data:`CALLS`."""
    share = (file_limit() - RESERVE) // 5
    return [
        ("grpc.max_allowed_incoming_connections", max(FEWEST_CONNECTIONS, min(CONNECTIONS, share))),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.max_concurrent_streams", CALLS),
    ]
