"""``sd_notify``: tells the service manager that the agent is ready, alive, or stopping.

Source: ``sd_notify(3)``: datagrams of ``NAME=VALUE`` lines to the socket in ``NOTIFY_SOCKET``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Tells systemd; where no service manager listens, nothing happens.

    ``watchdog`` is how often it wants a sign of life, in seconds (half of ``WATCHDOG_USEC``), None
    when it does not.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog = _watchdog(environment)

    def ready(self, status: str) -> None:
        """The agent serves."""
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """A sign of life."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The agent ends."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is in the abstract namespace.
        address = f"\0{self._address[1:]}" if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto(message.encode(), address)
        except OSError:
            # The service manager is gone or does not listen: that is no reason to end.
            return


def _watchdog(environment: Mapping[str, str]) -> float | None:
    text = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", str(os.getpid()))
    if not text.isascii() or not text.isdigit() or pid != str(os.getpid()) or int(text) == 0:
        return None
    return int(text) / 2_000_000
