"""Limits of huge pages on this machine's kernel, in a cgroup of the test's own."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinfold.adapters.cgroup.hierarchy import find_hierarchies
from pinfold.adapters.cgroup.limits import Setting, apply, v1_settings, v2_settings
from pinfold.ports.cgroups import Limits
from tests.scenes.hugepages_scene import SMALL, group_with_hugetlb, more_pages

MAPS = """
import mmap, sys
try:
    memory = mmap.mmap(-1, int(sys.argv[1]) << 21, flags=0x40022)
except OSError as error:
    sys.exit(error.strerror)
memory[0] = 1
"""

Rules = Callable[[Limits], Iterator[Setting]]


@pytest.fixture
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Four more pages of 2Mi."""
    with more_pages(tmp_path_factory, 4):
        yield


@pytest.fixture
def version2(pages: None) -> Iterator[Path]:
    """A cgroup of version 2 with the hugetlb controller."""
    del pages
    with group_with_hugetlb() as folder:
        yield folder


@pytest.fixture
def version1(pages: None) -> Iterator[Path]:
    """A cgroup of version 1 with the hugetlb controller."""
    del pages
    found = find_hierarchies().v1.get("hugetlb")
    if found is None:
        pytest.skip("no hugetlb controller in cgroup v1 here")
    folder = found.point / f"pinfold-test-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        folder.rmdir()


def mapped(folder: Path, count: int) -> str:
    """What a process in the cgroup is told when it maps so many pages, "" when it gets them."""
    done = subprocess.run(
        [
            "sh",
            "-c",
            f"echo $$ > {folder}/cgroup.procs && exec {sys.executable} -c '{MAPS}' {count}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, 1), done
    return done.stderr.strip()


def check(folder: Path, rules: Rules) -> None:
    def limit(amount: int) -> None:
        hugetlb = [s for s in rules(Limits(hugepages={SMALL: amount})) if s.controller == "hugetlb"]
        assert apply(hugetlb, lambda _: folder) == []

    assert mapped(folder, 3) == ""
    limit(2 * SMALL)
    assert mapped(folder, 2) == ""
    assert mapped(folder, 3) == "Cannot allocate memory"
    limit(0)
    assert mapped(folder, 1) == "Cannot allocate memory"
    limit(3 * SMALL)
    assert mapped(folder, 3) == ""


def test_limits_hold_on_version_2(version2: Path) -> None:
    check(version2, v2_settings)


def test_limits_hold_on_version_1(version1: Path) -> None:
    check(version1, v1_settings)
