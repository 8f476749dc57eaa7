"""Where threads may run: their CPU affinity.

Source: sched_setaffinity(2).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Final

from pinfold.core.values.cpuset import CPUSet

EVERY_CPU: Final = range(8192)
"""Up to the kernel's greatest NR_CPUS; it ignores what the machine does not have."""


def affinity_of(tid: int) -> set[int] | None:
    """The online CPUs on which a thread may run, as a plain set; None when it has ended."""
    try:
        return os.sched_getaffinity(tid)
    except OSError:
        return None


def allowed(tid: int) -> CPUSet | None:
    """The online CPUs on which a thread may run; None when it has ended."""
    mask = affinity_of(tid)
    return None if mask is None else CPUSet(mask)


def outside(tids: Iterable[int], cpus: CPUSet) -> dict[int, CPUSet]:
    """The threads that may run elsewhere than on ``cpus``, and where."""
    found, wanted = {}, set(cpus)
    for tid in tids:
        try:
            mask = os.sched_getaffinity(tid)
        except OSError:
            continue  # it is gone
        if not mask <= wanted:
            found[tid] = CPUSet(mask)
    return found


def set_affinity(tid: int, cpus: CPUSet) -> OSError | None:
    """Let a thread run on ``cpus``, as far as its cpuset lets it; the kernel's refusal if any."""
    try:
        os.sched_setaffinity(tid, cpus)
    except OSError as error:
        return error
    return None


def widen(tid: int) -> None:
    """Let a thread use all CPUs of its cpuset, now and when that grows.

    A mask that was set by ``sched_setaffinity`` (or inherited from one) is kept by the kernel and
    cut with every cpuset; one of all CPUs cuts nothing.
    """
    with contextlib.suppress(OSError):  # it has ended
        os.sched_setaffinity(tid, EVERY_CPU)
