"""Processes and threads: finding all of a tree, and where they may run.

Each look at ``/proc`` raises NoRoomError where the kernel has no file to open for it: that nothing
was read is no sign that somebody has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import gone_or_raise
from pinfold.core.values.cpuset import CPUSet

PROC: Final = Path("/proc")

_EVERY_CPU: Final = range(8192)
_GONE: Final = b"ZXx"
_PF_EXITING: Final = 0x4
_LOOKS: Final = 30
_LOOK_PAUSE: Final = 0.001


async def catch_strays(tids: Callable[[], list[int]], cpus: CPUSet) -> dict[int, CPUSet]:
    """See that no thread may run elsewhere; return those that still may.

    The kernel moves every thread before a write to ``cpuset.cpus`` returns, but a child that is
    being born takes its parent's mask, and that may still be the old one.  So it is looked until
    no child was born between two looks, or for some time where they are born all the time.
    """
    known: set[int] = set()
    strays: dict[int, CPUSet] = {}
    for attempt in range(_LOOKS):
        now = tids()
        strays = outside(now, cpus)
        for tid in strays:
            widen_thread(tid)
        if not strays and known.issuperset(now):
            return {}
        known.update(now)
        await asyncio.sleep(_LOOK_PAUSE if attempt else 0)
    return {tid: mask for tid, mask in outside(strays, cpus).items() if lives(tid)}


def threads(pid: int, proc: Path = PROC) -> list[int]:
    """The threads of a process; none when it is gone."""
    try:
        return [int(name) for name in os.listdir(f"{proc}/{pid}/task")]  # noqa: PTH208 - names only
    except OSError as error:
        gone_or_raise(f"{proc}/{pid}/task", error)
        return []


def tree(pid: int) -> list[int]:
    """A process and all its descendants, with those of its session whose parent has ended.

    Zombies are left out: they run nowhere, and cannot be moved.
    """
    found: list[int] = []
    front = [pid, *_session(pid)]
    seen = set(front)
    while front:
        current = front.pop()
        if lives(current):
            found.append(current)
        for tid in threads(current):
            try:
                text = Path(f"/proc/{current}/task/{tid}/children").read_text(encoding="ascii")
            except OSError as error:
                gone_or_raise(f"/proc/{current}", error)
                continue
            born = {int(word) for word in text.split()} - seen
            seen |= born
            front += born
    return found


def _session(leader: int) -> list[int]:
    """The other processes of the session that a process leads."""
    try:
        if os.getsid(leader) != leader:
            return []
        names = os.listdir("/proc")  # noqa: PTH208 - names only
    except OSError as error:
        gone_or_raise("/proc", error)
        return []
    pids = [int(name) for name in names if name.isdigit()]
    return [pid for pid in pids if pid != leader and _session_of(pid) == leader]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0  # it has ended


def lives(pid: int, proc: Path = PROC) -> bool:
    """Whether a process or thread is there and can still execute anything.

    A zombie cannot, nor can one that the kernel has begun to end, however long that takes: neither
    can be moved any more, and cgroup v1 shows both in the root.  A process whose first thread has
    ended lives as long as its others.
    """
    return not _is_over(f"{proc}/{pid}") or any(_living_threads(pid, proc))


def began(pid: int, proc: Path = PROC) -> int | None:
    """When a process began, in clock ticks since the boot; None when it is gone, or a zombie.

    A pid is used again; a pid with this is not.
    """
    fields = _stat(f"{proc}/{pid}")
    if fields is None:
        return None
    if fields[0] in _GONE and all(tid == pid for tid in threads(pid, proc)):
        return None
    return int(fields[19])


def age(pid: int, proc: Path = PROC) -> float | None:
    """Seconds since a process began; None once it has ended."""
    ticks = began(pid, proc)
    if ticks is None:
        return None
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, now - ticks / os.sysconf("SC_CLK_TCK"))


def parent_of(pid: int) -> tuple[int, int] | None:
    """The parent of a process, and when the process began; None when it is gone, or a zombie."""
    fields = _stat(f"{PROC}/{pid}")
    return None if fields is None or fields[0] in _GONE else (int(fields[1]), int(fields[19]))


def cgroups_of(pid: int, began_at: int, proc: Path = PROC) -> str | None:
    """What ``/proc/PID/cgroup`` says of a process; None when it does not live any more.

    What it says of one that ends is no place where anybody was, so it is looked again after that.
    """
    while began(pid, proc) == began_at and (living := list(_living_threads(pid, proc))):
        with contextlib.suppress(OSError):
            text = (proc / f"{pid}/task/{living[0]}/cgroup").read_text(errors="surrogateescape")
            if not _is_over(f"{proc}/{pid}/task/{living[0]}"):
                return text
    return None


def _living_threads(pid: int, proc: Path) -> Iterator[int]:
    for tid in threads(pid, proc):
        if not _is_over(f"{proc}/{pid}/task/{tid}"):
            yield tid


def _is_over(folder: str) -> bool:
    fields = _stat(folder)
    return fields is None or fields[0] in _GONE or bool(int(fields[6]) & _PF_EXITING)


def _stat(folder: str) -> list[bytes] | None:
    """What follows the name in ``stat``, from the state on; None when it is gone."""
    try:
        status = Path(folder, "stat").read_bytes()
    except OSError as error:
        gone_or_raise(folder, error)
        return None
    # The name may hold anything: the last parenthesis ends it.
    fields = status.rpartition(b")")[2].split()
    return fields if len(fields) >= 20 else None


def widen_thread(tid: int) -> None:
    """Let one thread use all CPUs of its cpuset; see :func:`widen`."""
    with contextlib.suppress(OSError):  # it has ended
        os.sched_setaffinity(tid, _EVERY_CPU)


def widen(pid: int) -> None:
    """Let every thread of a process use all CPUs of its cpuset, now and when that grows.

    A mask that was set by ``sched_setaffinity`` (or inherited from one) is kept by the kernel and
    cut with every cpuset; one of all CPUs cuts nothing.
    """
    for tid in threads(pid):
        widen_thread(tid)


def allowed(tid: int) -> CPUSet | None:
    """Where a thread may run; None when it is gone."""
    try:
        return CPUSet(os.sched_getaffinity(tid))
    except OSError:
        return None


def outside(tids: Iterable[int], cpus: CPUSet) -> dict[int, CPUSet]:
    """The threads that may run elsewhere than on ``cpus``."""
    found = {}
    for tid in tids:
        mask = allowed(tid)
        if mask is not None and mask - cpus:
            found[tid] = mask
    return found
