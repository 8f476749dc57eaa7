"""Where the webhook listens."""

from __future__ import annotations

import socket

import pytest

from pinfold.ports.errors import PortError
from pinfold.web.addresses import listen


def test_answers_wait_for_no_acknowledgement() -> None:
    with listen("127.0.0.1:0") as sock:
        sock.settimeout(5.0)
        with socket.create_connection(sock.getsockname()):
            accepted, _ = sock.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("address", ["", "host", "host:", ":99999", "[::1:1", "a b:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(PortError, match="must be HOST:PORT"):
        listen(address)
