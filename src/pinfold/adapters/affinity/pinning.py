"""Moving all threads of a container to other CPUs, as a cpuset does it.

A thread that has narrowed itself inside the container's CPUs, as data planes and databases do,
keeps its choice as far as it still fits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from pinfold.adapters.affinity.processes import (
    Refusal,
    is_alive,
    pin,
    threads,
    time_on_cpu,
)
from pinfold.linux.affinity import affinity_of
from pinfold.linux.processes import Stat, stat_of

NOTHING: Final[frozenset[int]] = frozenset()

_AWAKE: Final = frozenset("RD")
_LONGEST_FORK: Final = 2_000_000
"""Nanoseconds on a CPU; that of a process with many gigabytes can take longer."""
_NAP: Final = 0.001
_PATIENCE: Final = 0.1
"""Seconds: where there is too much to do, a thread waits for a CPU in the middle of a fork."""


def wanted(
    current: AbstractSet[int], before: AbstractSet[int], target: frozenset[int]
) -> AbstractSet[int]:
    """Where a thread is to run; ``before`` is what its container had (nothing: not known)."""
    if current < before:
        return current & target or target
    return target


class Move:
    """One move of some containers, in rounds, each of a look at the machine and a sweep.

    What is born of a process that is in place is born in place.  But one that ends between look
    and sweep may have left a child that the look did not see; so a round counts only when all that
    was met, and all that was not, is in place; and after one that does not count, two must.

    A thread that is moved in the middle of a fork has copied its old affinity for the child
    already.  So there are rounds until each has been seen to sleep or has run on for a while.

    ``refused`` is who could not be moved in this round, ``restless`` how many threads were moved,
    or processes not met; ``rounds`` counts.
    """

    def __init__(self) -> None:
        self.refused: list[Refusal] = []
        self.restless = 0
        self.rounds = 0
        self._needed = 1
        self._patience_ends = 0.0
        self._forking: dict[int, int] = {}
        self._ended: set[tuple[int, int]] = set()

    def begin_round(self) -> None:
        """Start anew, before a look."""
        if time.monotonic() >= self._patience_ends:
            self._forking.clear()
        self._forking = {
            tid: ran
            for tid, ran in self._forking.items()
            if is_awake(tid) and time_on_cpu(tid) - ran < _LONGEST_FORK
        }
        self.rounds += 1
        self.refused = []
        self.restless = 0

    def end_round(self) -> bool:
        """Whether it was the last one."""
        if self.restless or self._forking:
            self._needed = 2
        else:
            self._needed -= 1
        return self._needed == 0

    async def pause(self) -> None:
        """Let others run before the next round, and threads come to the end of a fork."""
        await asyncio.sleep(_NAP if self._forking else 0)

    def sweep(
        self,
        members: Mapping[int, Stat],
        before: AbstractSet[int],
        target: frozenset[int],
        allowed: Mapping[int, frozenset[int]],
    ) -> None:
        """Move every thread of a container that is not where it is wanted, once.

        ``allowed`` is where each process might run at the look.
        """
        for process in members.values():
            tids = threads(process)
            masks = [(tid, affinity_of(tid)) for tid in tids]
            moves = [
                (tid, cpus)
                for tid, current in masks
                if current is not None and (cpus := wanted(current, before, target)) != current
            ]
            # These threads were listed a moment ago: no thread id comes again so soon.
            if moves and process.is_same(stat_of(process.pid)):
                self._move(process, moves)
            elif not tids or any(current is None for _, current in masks):
                last = allowed.get(process.pid)
                was_in_place = last is not None and wanted(last, before, target) == last
                identity = (process.pid, process.start)
                if (process.threads > 1 or not was_in_place) and identity not in self._ended:
                    self.restless += 1
                    # A zombie counts once: what it may have left, the next look sees.
                    self._ended.add(identity)

    def _move(self, process: Stat, moves: Sequence[tuple[int, AbstractSet[int]]]) -> None:
        self._patience_ends = time.monotonic() + _PATIENCE
        for tid, cpus in moves:
            refusal = pin(process, tid, cpus)
            if refusal is not None:
                self.refused.append(refusal)
                continue
            self.restless += 1
            if is_awake(tid):
                self._forking[tid] = time_on_cpu(tid)


def is_awake(tid: int) -> bool:
    """Whether a thread runs, waits for a CPU, or sleeps as one does inside of a fork."""
    thread = stat_of(tid)
    return thread is not None and thread.state in _AWAKE


def union(processes: Iterable[Stat]) -> frozenset[int]:
    """The CPUs on which any thread may run."""
    found: set[int] = set()
    for process in processes:
        for tid in threads(process):
            found |= affinity_of(tid) or NOTHING
    return frozenset(found)


def own_choice(processes: Iterable[Stat], target: frozenset[int]) -> frozenset[int]:
    """What a container that was placed by somebody before us had.

    Threads that differ inside of ``target`` were pinned by the application, in what was
    ``target`` already; threads that are all alike were narrowed by who started them, and are to
    get all of ``target`` (nothing is known of what they had).
    """
    choices = {
        frozenset(cpus)
        for process in processes
        for tid in threads(process)
        if (cpus := affinity_of(tid)) is not None and cpus <= target
    }
    return target if len(choices) > 1 else NOTHING


def living(processes: Iterable[Stat]) -> list[Stat]:
    """Those that can still execute anything."""
    return [process for process in processes if is_alive(process)]
