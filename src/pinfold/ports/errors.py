"""How the outside world fails, and what it calls a container."""

from __future__ import annotations

from msgspec import Struct


class PortError(Exception):
    """The outside world refused or failed.

    ``problem`` names the place (a file, a pid, a socket) and what it said; ``remedy`` is what the
    administrator can do, "" where only waiting helps.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        # One that has parentheses is in none: they would end in two.
        told = f"; {remedy}" if "(" in remedy else f" ({remedy})"
        super().__init__(problem + told if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class CgroupError(PortError):
    """The kernel did not take what was written to a cgroup, or no cgroup could be written."""


class ProcessGoneError(CgroupError):
    """The process that was to be moved or looked at has ended."""


class RuntimeFailedError(PortError):
    """The runtime could not create, start, stop or remove a container.

    ``is_away``: it did not answer, which says nothing of the container.
    """

    def __init__(self, problem: str, remedy: str = "", *, is_away: bool = False) -> None:
        super().__init__(problem, remedy)
        self.is_away = is_away


class NoRoomError(CgroupError, RuntimeFailedError):
    """The kernel was short of files or memory: nobody knows what is there.

    It is an error of each port that looks at processes, so that it says the same through any.
    """


class StoreError(PortError):
    """The record could not be read or written durably; nothing was changed."""


class ContainerKey(Struct, frozen=True, order=True):
    """A container: the uid of its pod and its name in the pod."""

    pod_uid: str
    name: str

    def __str__(self) -> str:
        return f"{self.pod_uid}/{self.name}"
