"""More huge pages on this machine for a while, for tests that need some."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pinfold.adapters.hugetlb import HugePagePoolError, HugePagePools

SMALL = 2 << 20


@contextmanager
def more_pages(factory: pytest.TempPathFactory, count: int) -> Iterator[HugePagePools]:
    """So many more pages of 2Mi, given back at the end; one test at a time, of all workers.

    Skips the test, with the reason, where none can be had.
    """
    if os.geteuid() != 0:
        pytest.skip("setting the pools of huge pages needs root")
    pools = HugePagePools()
    with (factory.getbasetemp().parent / "hugepages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            before = pools.of_size(SMALL)
            pools.allocate(before, count)
        except HugePagePoolError as error:
            pytest.skip(f"no huge pages can be had here: {error}")
        try:
            yield pools
        finally:
            for node, pool in pools.of_size(SMALL).items():
                if pool.kept > before[node].kept:
                    pools.release({node: pool}, pool.kept - before[node].kept)
