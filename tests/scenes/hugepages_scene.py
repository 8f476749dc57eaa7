"""More huge pages on this machine for a while, for tests that need some."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from pinfold.adapters.cgroup.hierarchy import find_hierarchies
from pinfold.adapters.hugetlb import HugePagePoolError, HugePagePools

SMALL = 2 << 20
SHM_GROUP: Final = Path("/proc/sys/vm/hugetlb_shm_group")

_SEGMENT: Final = """
my ($out, $pages, $seconds) = @ARGV;
my $made = shmget(0, $pages << 21, 04000 | 01000 | 0600);
my $told = defined $made ? "" : "$!";
shmctl($made, 0, 0) if defined $made;
open(my $file, ">", "$out.new"); print $file $told; close $file;
rename("$out.new", $out); sleep($seconds);
"""
"""SHM_HUGETLB | IPC_CREAT | 0600, then IPC_RMID."""

SHMGET: Final = ("perl", "-e", _SEGMENT)
"""Makes a segment of so many huge pages and removes it, writes down what it was told ("" is well),
and sleeps.  It is perl, because who is not root may not get to this test's Python."""


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


@contextmanager
def group_with_hugetlb() -> Iterator[Path]:
    """A cgroup of version 2 with the hugetlb controller, of the test's own; else it is skipped."""
    found = find_hierarchies()
    if found.unified is None or "hugetlb" not in found.unified_controllers:
        pytest.skip("no hugetlb controller in cgroup v2 here")
    root = found.unified.point
    control = root / "cgroup.subtree_control"
    was_on = "hugetlb" in control.read_text().split()
    control.write_text("+hugetlb")
    folder = root / f"pinfold-test-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        folder.rmdir()
        if not was_on:
            control.write_text("-hugetlb")


@contextmanager
def everybodys_folder() -> Iterator[Path]:
    """A folder in which everybody may write, which those of the tests are not."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@contextmanager
def shm_group(group: int) -> Iterator[None]:
    """Have the kernel let this group make segments of huge pages; call it within more_pages."""
    before = SHM_GROUP.read_text()
    SHM_GROUP.write_text(str(group))
    try:
        yield
    finally:
        SHM_GROUP.write_text(before)
