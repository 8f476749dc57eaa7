"""Moving all threads of a container to other CPUs, as a cpuset does it.

A thread that has narrowed itself inside the container's CPUs, as data planes and databases do,
keeps its choice as far as it still fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from pinfold.adapters.affinity.processes import (
    Process,
    Refusal,
    allowed,
    is_alive,
    pin,
    read,
    threads,
)

NOTHING: Final[frozenset[int]] = frozenset()


@dataclass(slots=True)
class Sweep:
    """What one pass over some threads found: how many were moved, and which could not be."""

    moved: int = 0
    refused: list[Refusal] = field(default_factory=list)


def wanted(
    current: AbstractSet[int], before: AbstractSet[int], target: frozenset[int]
) -> AbstractSet[int]:
    """Where a thread is to run; ``before`` is what its container had (nothing: not known)."""
    if current < before:
        return current & target or target
    return target


def sweep(
    processes: Iterable[Process], before: AbstractSet[int], target: frozenset[int], result: Sweep
) -> None:
    """Move every thread that is not where it is wanted, once."""
    for process in processes:
        moves = [
            (tid, cpus)
            for tid in threads(process)
            if (current := allowed(tid)) is not None
            and (cpus := wanted(current, before, target)) != current
        ]
        # These threads were listed a moment ago: no thread id comes again so soon.
        if not moves or not process.is_same(read(process.pid)):
            continue
        for tid, cpus in moves:
            refusal = pin(process, tid, cpus)
            if refusal is None:
                result.moved += 1
            else:
                result.refused.append(refusal)


def union(processes: Iterable[Process]) -> frozenset[int]:
    """The CPUs on which any thread may run."""
    found: set[int] = set()
    for process in processes:
        for tid in threads(process):
            found |= allowed(tid) or NOTHING
    return frozenset(found)


def own_choice(processes: Iterable[Process], target: frozenset[int]) -> frozenset[int]:
    """What a container that was placed by somebody before us had.

    Threads that differ inside of ``target`` were pinned by the application, in what was
    ``target`` already; threads that are all alike were narrowed by who started them, and are to
    get all of ``target`` (nothing is known of what they had).
    """
    choices = {
        frozenset(cpus)
        for process in processes
        for tid in threads(process)
        if (cpus := allowed(tid)) is not None and cpus <= target
    }
    return target if len(choices) > 1 else NOTHING


def living(processes: Iterable[Process]) -> list[Process]:
    """Those that can still execute anything."""
    return [process for process in processes if is_alive(process)]
