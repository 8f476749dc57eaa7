"""Huge pages of this machine's own kernel; what was there before is there afterwards."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinfold.adapters.hugetlb import HugePagePoolError, HugePagePools
from tests.scenes.hugepages_scene import SMALL, more_pages

LARGE = 1 << 30
PINFOLD = Path(sysconfig.get_path("scripts"), "pinfold")
MAP_HUGETLB = 0x40000
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HugePagePools]:
    """The pools of this machine with one more page; restored."""
    with more_pages(tmp_path_factory, 1) as found:
        yield found


def pinfold(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PINFOLD, "hugepages", *words], capture_output=True, text=True, check=False, timeout=60
    )


def shown() -> int:
    done = pinfold("show", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["pools"]
    return sum(row["total"] - row["surplus"] for row in rows if row["size"] == SMALL)


def test_pages_come_and_go(pools: HugePagePools) -> None:
    del pools
    before = shown()
    assert pinfold("allocate", "2Mi", "6").returncode == 0
    assert shown() == before + 6
    again = pinfold("allocate", "2Mi", "--total", str(before + 6))
    assert again.stdout == f"nothing to do: {before + 6} pages of 2Mi\n"
    assert pinfold("release", "2Mi", "5").returncode == 0
    assert shown() == before + 1


def test_pages_in_use_stay(pools: HugePagePools) -> None:
    pools.allocate(pools.of_size(SMALL), 3)
    idle = pools.spare(SMALL)
    with mmap.mmap(-1, 2 * SMALL, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB) as memory:
        assert pools.spare(SMALL) == idle - 2, "mapped, so they are promised"
        memory[0] = memory[SMALL] = 1
        before = shown()
        refused = pinfold("release", "2Mi", str(idle - 1))
        assert refused.returncode == 1
        assert f"2 are in use and {idle - 2} can be given back" in refused.stderr
        assert shown() == before
        assert memory[SMALL] == 1


def test_what_the_kernel_cannot_grant_is_given_back(pools: HugePagePools) -> None:
    try:
        before = pools.of_size(LARGE)
    except HugePagePoolError as error:
        pytest.skip(str(error))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = memory // LARGE - sum(pool.total for pool in before.values())
    if most < 2:
        pytest.skip("a machine of so little memory has no room for pages of 1Gi")
    refused = pinfold("allocate", "1Gi", str(most))
    assert refused.returncode == 1
    assert f"of {most} pages of 1Gi" in refused.stderr
    assert "they were given back; memory is fragmented or in use" in refused.stderr
    assert pools.of_size(LARGE) == before


def test_compaction(pools: HugePagePools) -> None:
    del pools
    before = shown()
    done = pinfold("allocate", "2Mi", "1", "--compact")
    assert done.returncode == 0, done.stderr
    assert shown() == before + 1


def test_it_takes_root(pools: HugePagePools) -> None:
    del pools
    before = shown()
    # Another user may not be able to read the program, so it is loaded first.
    program = (
        "import encodings.ascii, os, pinfold.adapters.hugetlb\n"
        "from pinfold.cli.commands.hugepages import hugepages\n"
        "os.seteuid(65534)\n"
        "hugepages(['allocate', '2Mi', '1'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.endswith("Permission denied (run as root)\n")
    assert done.stderr.count("\n") == 1
    assert shown() == before
