"""The threads of the machine: what they are, and which may run where they are not to."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.affinity import outside as beyond
from pinfold.linux.processes import pids, stat_of, threads


class Thread(Struct, frozen=True):
    """A living thread; ``start_time`` (clock ticks since boot) tells it from a later namesake."""

    tid: int
    comm: str
    start_time: int
    is_kernel: bool
    is_bound: bool
    """Whether the kernel binds it to its CPU (``PF_NO_SETAFFINITY``)."""

    def __str__(self) -> str:
        return f"{'kernel thread' if self.is_kernel else 'thread'} {self.tid} ({self.comm})"


def thread(tid: int) -> Thread | None:
    """Look at a thread; None when it has ended, is ending, or is a zombie, which runs nowhere.

    Raises:
        NoRoomError: nobody knows.
    """
    stat = stat_of(tid)
    if stat is None or stat.is_over:
        return None
    return Thread(
        tid=tid,
        comm=stat.comm,
        start_time=stat.start,
        is_kernel=stat.is_kernel,
        is_bound=stat.is_bound,
    )


def everybody() -> list[int]:
    """Every thread of the machine."""
    return [tid for pid in pids() for tid in threads(pid)]


def outside(tids: Iterable[int], cpus: CPUSet) -> list[Thread]:
    """The threads that may run elsewhere than on ``cpus``, without those the kernel binds."""
    found = []
    for tid in beyond(tids, cpus):
        one = thread(tid)
        if one is not None and not one.is_bound:
            found.append(one)
    return found
