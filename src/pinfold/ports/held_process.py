"""A process that somebody holds back until it is on its CPUs, and who may have that done."""

from __future__ import annotations

from typing import NamedTuple


class HeldProcess(NamedTuple):
    """A process that waits to become a container: ``start`` is in clock ticks since the boot."""

    pid: int
    start: int


class Peer(NamedTuple):
    """Who asks over a socket, as the kernel tells it (``SO_PEERCRED`` of ``unix(7)``).

    ``pid`` is 0 for a process that the agent's PID namespace does not show; ``since`` is when it
    connected, in seconds since the boot: whoever has its pid and is younger is somebody else.
    """

    pid: int
    uid: int
    since: float


class ForeignProcessError(Exception):
    """A process is not that of the one who asks for it; the text says why."""
