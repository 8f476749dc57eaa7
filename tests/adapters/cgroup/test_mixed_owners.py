"""Mixed owners that follow the pool, where the kernel does not do as it is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pinfold.adapters.cgroup.files import CgroupGoneError
from pinfold.adapters.cgroup.mixed import MixedOwners
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey

A, B, C = (ContainerKey("uid", name) for name in "abc")


class Cpusets:
    """Cpusets in folders, of which some refuse what is written."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.has: dict[Path, CPUSet] = {}
        self.refuses: dict[Path, type[CgroupError]] = {}
        self.adds = CPUSet()
        self.mixed = MixedOwners(self.of, self.write, self.effective, "tasks")

    def of(self, key: ContainerKey) -> Path:
        return self.root / key.name

    def effective(self, folder: Path) -> CPUSet:
        return self.has[folder]

    def write(self, folder: Path, cpus: CPUSet) -> CPUSet:
        if folder in self.refuses:
            raise self.refuses[folder](f"{folder}: refused")
        self.has[folder] = cpus
        return cpus | self.adds

    def put(self, key: ContainerKey, own: int) -> None:
        self.of(key).mkdir()
        (self.of(key) / "tasks").touch()
        self.mixed.put(key, Placement(CPUSet([own]), mixed=True))
        self.has[self.of(key)] = CPUSet([own]) | self.mixed.pool


def test_one_that_cannot_be_narrowed_is_said_and_the_others_follow(tmp_path: Path) -> None:
    cpusets = Cpusets(tmp_path)
    cpusets.mixed.pool = CPUSet([0, 1, 2])
    for number, key in enumerate((A, B, C), 4):
        cpusets.put(key, number)
    cpusets.refuses[cpusets.of(B)] = CgroupError
    with pytest.raises(CgroupError, match="/b: refused"):
        asyncio.run(cpusets.mixed.follow(CPUSet([0])))
    assert [str(cpus) for cpus in cpusets.has.values()] == ["0,4", "0-2,5", "0,6"]
    # It is tried again with the next change of the pool, and is no error once it is gone.
    cpusets.refuses[cpusets.of(B)] = CgroupGoneError
    asyncio.run(cpusets.mixed.follow(CPUSet([0, 1])))
    assert [str(cpus) for cpus in cpusets.has.values()] == ["0-1,4", "0-2,5", "0-1,6"]


def test_where_something_else_is_in_force_it_is_said(tmp_path: Path) -> None:
    cpusets = Cpusets(tmp_path)
    cpusets.put(A, 4)
    cpusets.adds = CPUSet([7])
    with pytest.raises(CgroupError, match="in force is 0,4,7"):
        asyncio.run(cpusets.mixed.follow(CPUSet([0])))


def test_one_that_is_expected_is_followed_before_it_was_placed(tmp_path: Path) -> None:
    """Its placement has failed: what it had is known, and is not forgotten for that."""
    cpusets = Cpusets(tmp_path)
    cpusets.put(A, 4)
    cpusets.mixed.forget(A)
    cpusets.mixed.expect(A, Placement(CPUSet([5]), mixed=True))
    asyncio.run(cpusets.mixed.follow(CPUSet([0])))
    assert cpusets.has[cpusets.of(A)] == CPUSet([0, 5])
    cpusets.mixed.expect(A, Placement(CPUSet([6]), mixed=True))
    asyncio.run(cpusets.mixed.follow(CPUSet([1])))
    assert cpusets.has[cpusets.of(A)] == CPUSet([1, 5]), "until it is placed there"
    cpusets.mixed.put(A, Placement(CPUSet([6])))
    asyncio.run(cpusets.mixed.follow(CPUSet([0])))
    assert cpusets.has[cpusets.of(A)] == CPUSet([1, 5]), "it is mixed no more"
