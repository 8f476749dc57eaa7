"""Ending every process of a container, where no cgroup can be killed.

All are stopped first: what is stopped cannot fork, so that the last look before the kill sees
everybody.  Only a main process in a shell's session is not: its parent would take the stop for
Ctrl-Z, and stop as well.  It may have no more children instead.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from pinfold.adapters.affinity.family import Family
from pinfold.adapters.affinity.processes import (
    Refusal,
    forbid_children,
    is_alive,
    send,
    send_group,
)
from pinfold.linux.processes import Stat, stat_of

_STOPPED: Final = frozenset("TtZXx")
_STOP_PATIENCE: Final = 0.5
"""Seconds; a process that waits for a disk does not stop, and is killed as it is."""
_FIRST_NAP: Final = 0.001
_LONGEST_NAP: Final = 0.05
_LEAST_NAPS: Final = 20


async def kill_all(
    family: Family, find: Callable[[], Sequence[Stat]], wait: float
) -> list[Refusal]:
    """Kill until ``find`` gives nobody; who is left after ``wait`` seconds, and why.

    ``family`` is as of the last time that ``find`` was called.
    """
    deadline = time.monotonic() + wait
    nap = _FIRST_NAP
    while True:
        doomed: dict[int, Stat] = {}
        try:
            await _stop(family, find, doomed, min(deadline, time.monotonic() + _STOP_PATIENCE))
        finally:
            # Also when the caller gives up: nobody is left stopped.
            for group in family.groups():
                send_group(group, signal.SIGKILL)
            refused = {pid: send(process, signal.SIGKILL) for pid, process in doomed.items()}
        if not doomed:
            return []
        left = list(doomed.values())
        naps = 0
        # Also when it is late: on a slow machine, or after a stop, nobody had the time to end.
        while left and (time.monotonic() < deadline or naps < _LEAST_NAPS):
            naps += 1
            await asyncio.sleep(nap)
            nap = min(nap * 2, _LONGEST_NAP)
            left = [process for process in left if _lives(process)]
            if all(refused[process.pid] is not None for process in left):
                break
        if time.monotonic() >= deadline and (alive := find()):
            return [refused.get(process.pid) or _stuck(process, wait) for process in alive]


async def _stop(
    family: Family,
    find: Callable[[], Sequence[Stat]],
    found: dict[int, Stat],
    deadline: float,
) -> None:
    """Stop processes until all that are found are stopped; collects them in ``found``."""
    unstoppable: set[int] = set()
    fresh: Sequence[Stat] | None = None
    while True:
        if fresh is None or fresh:
            # Before the look: a process may be too short-lived to be seen while it runs.
            for group in family.groups():
                send_group(group, signal.SIGSTOP)
        alive = find()
        fresh = [process for process in alive if not process.is_same(found.get(process.pid))]
        found.update((process.pid, process) for process in fresh)
        for process in fresh:
            if family.is_guest(process):
                forbid_children(process)
                unstoppable.add(process.pid)
            elif send(process, signal.SIGSTOP) is not None:
                unstoppable.add(process.pid)
        is_quiet = all(p.state in _STOPPED or p.pid in unstoppable for p in alive)
        if (is_quiet and not fresh) or time.monotonic() >= deadline:
            return
        await asyncio.sleep(0 if fresh else _FIRST_NAP)


def _lives(process: Stat) -> bool:
    now = stat_of(process.pid)
    return now is not None and now.is_same(process) and is_alive(now)


def _stuck(process: Stat, wait: float) -> Refusal:
    return Refusal(
        f"process {process.pid} (state {process.state}) is left {wait:g} s after SIGKILL",
        "one that waits for a disk or network file system (state D) ends when that answers",
    )
