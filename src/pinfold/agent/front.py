"""What may stand in front of the ports of an agent."""

from __future__ import annotations

from typing import Protocol, TypeVar

_P = TypeVar("_P")


class Front(Protocol):
    """What stands in front of each port of an agent: nothing, unless a test puts something there.

    Ports are what an agent touches the world through: cgroups, runtime, record, pods' files,
    device plugins, and whoever answers a runtime's events.
    """

    def __call__(self, port: _P, /) -> _P:
        """The port, or what stands in front of it and answers as it does."""


def nothing_in_front(port: _P, /) -> _P:
    """The ports are used as they are."""
    return port
