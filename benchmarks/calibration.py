"""A fixed piece of work that says how fast this machine is right now.

The kubelet's figures were taken together with this loop, so that a ratio can be computed on any
machine: how many times longer ours takes, corrected by how much slower the loop runs here.
"""

from __future__ import annotations

import time
from typing import Final

REFERENCE_NS: Final = 31_600_000
"""The loop's fastest time on an idle machine, that of the kubelet's first figures."""


def loop() -> int:
    """Run the fixed work once and return its nanoseconds (CPython; take a minimum of many).

    CPU time, which on an idle machine is what the clock says: on a busy one a batch of some
    milliseconds finds a quiet moment sooner than this loop, and the ratio would flatter.
    """
    m = (1 << 256) - 1
    s = 0
    d: dict[int, int] = {}
    t = time.thread_time_ns()
    for i in range(20000):
        b = m >> (i % 256)
        s += (b & -b).bit_length() + b.bit_count()
        d[i & 1023] = b
        if i % 64 == 0:
            l = sorted(d, key=lambda k: -k)[:8]  # noqa: E741, F841 - the loop as it was recorded
    return time.thread_time_ns() - t
