"""Threads: what they are, where they may run, and confining one by its affinity.

Source: ``proc_pid_stat(5)``, ``sched_setaffinity(2)``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet

_PF_EXITING: Final = 0x00000004
_PF_KTHREAD: Final = 0x00200000
_PF_NO_SETAFFINITY: Final = 0x04000000


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
    """Look at a thread; None when it has ended, is ending, or is a zombie, which runs nowhere."""
    try:
        text = Path(f"/proc/{tid}/stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    # The name may hold anything, so that only the last parenthesis ends it.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 20 or fields[0] in "ZXx":
        return None
    flags = int(fields[6])
    if flags & _PF_EXITING:
        return None
    return Thread(
        tid=tid,
        comm=head.partition("(")[2],
        start_time=int(fields[19]),
        is_kernel=bool(flags & _PF_KTHREAD),
        is_bound=bool(flags & _PF_NO_SETAFFINITY),
    )


def allowed(tid: int) -> CPUSet | None:
    """Where a thread may run; None when it has ended."""
    try:
        return CPUSet(os.sched_getaffinity(tid))
    except OSError:
        return None


def set_affinity(tid: int, cpus: CPUSet) -> OSError | None:
    """Let a thread run on ``cpus``, as far as its cpuset lets it; the kernel's refusal if any."""
    try:
        os.sched_setaffinity(tid, cpus)
    except OSError as error:
        return error
    return None


def everybody() -> list[int]:
    """Every thread of the machine."""
    tids: list[int] = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names only
        if name.isdigit():
            tids += threads_of(int(name))
    return tids


def threads_of(pid: int) -> list[int]:
    """The threads of a process; none when it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - names only
    except OSError:
        return []


def outside(tids: Iterable[int], cpus: CPUSet) -> list[Thread]:
    """The threads that may run elsewhere than on ``cpus``, without those the kernel binds."""
    found = []
    for tid in tids:
        mask = allowed(tid)
        if mask is None or mask <= cpus:
            continue
        one = thread(tid)
        if one is not None and not one.is_bound:
            found.append(one)
    return found
