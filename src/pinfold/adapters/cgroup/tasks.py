"""The processes of a container: all of a tree, where they are, and that none may run elsewhere.

Each look at ``/proc`` raises NoRoomError as those of :mod:`pinfold.linux.processes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.watch import CPUS
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.affinity import outside, widen
from pinfold.linux.descriptors import gone_or_raise
from pinfold.linux.processes import PROC, began, is_over, lives, living_threads, pids, threads
from pinfold.ports.errors import CgroupError

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
            widen(tid)
        if not strays and known.issuperset(now):
            return {}
        known.update(now)
        await asyncio.sleep(_LOOK_PAUSE if attempt else 0)
    return {tid: mask for tid, mask in outside(strays, cpus).items() if lives(tid)}


async def confirm(who: str, tids: Callable[[], list[int]], cpus: CPUSet) -> None:
    """See that no thread may run elsewhere, as :func:`catch_strays` does.

    Raises:
        CgroupError: one still may; ``who`` says whose they are.
    """
    for tid, mask in (await catch_strays(tids, cpus)).items():
        raise CgroupError(f"{who}: thread {tid} may still run on {mask - cpus}")


def check_in_force(folder: Path, cpus: CPUSet, effective: CPUSet) -> None:
    """Check that a cpuset has some of the CPUs that were written, and no others.

    With none of its own it would be let use those of its parent.

    Raises:
        CgroupError: others are in force, or none.
    """
    if not effective or effective - cpus:
        raise CgroupError(
            f"{folder}: {CPUS} is {cpus}, but in force is {effective}",
            "a cgroup above it or a partition has these CPUs, or they are offline",
        )


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
        return [pid for pid in pids() if pid != leader and _session_of(pid) == leader]
    except OSError as error:
        gone_or_raise("/proc", error)
        return []


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0  # it has ended


def cgroups_of(pid: int, began_at: int, proc: Path = PROC) -> str | None:
    """What ``/proc/PID/cgroup`` says of a process; None when it does not live any more.

    What it says of one that ends is no place where anybody was, so it is looked again after that.
    """
    while began(pid, proc) == began_at and (living := list(living_threads(pid, proc))):
        with contextlib.suppress(OSError):
            text = (proc / f"{pid}/task/{living[0]}/cgroup").read_text(errors="surrogateescape")
            if not is_over(f"{pid}/task/{living[0]}", proc):
                return text
    return None


def widen_all(pid: int) -> None:
    """Let every thread of a process use all CPUs of its cpuset, now and when that grows."""
    for tid in threads(pid):
        widen(tid)
