"""How much this process counts beside others of its cgroup: its nice value.

Source: setpriority(2), sched(7).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def nice_value() -> int:
    """That of the thread that asks; those that it starts have the same."""
    return os.getpriority(os.PRIO_PROCESS, 0)


@contextmanager
def at_least(nice: int, refused: Callable[[str], None]) -> Iterator[None]:
    """Have this nice value, or a lower one that it has already, for the time being.

    ``refused`` is told where it may not be had, in words.
    """
    before = nice_value()
    if nice < before:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except OSError as error:
            refused(f"the agent's nice value stays {before}, and is not {nice}: {error.strerror}")
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
