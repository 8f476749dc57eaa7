"""A shield where systemd runs: a program that answers as ``systemctl`` does, and plain files.

The program keeps the properties in files and gives the slices their CPUs, as systemd would.  The
processes are real: what is in the root cgroup there is confined by its affinity.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pinfold.adapters.shield import (
    Method,
    Place,
    ShieldError,
    ShieldReport,
    lower_shield,
    raise_shield,
    read_shield,
)
from pinfold.core.values.cpuset import CPUSet

ONLINE = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text())
LAST = CPUSet([max(ONLINE)])
LOW = CPUSet([min(ONLINE)])
SYSTEMCTL = """#!/bin/sh
root={root}
for unit do :; done
case $1 in
show) cat "$root/$unit/AllowedCPUs" ;;
set-property)
    [ "$2" = --runtime ] || exit 3
    cpus=${{4#AllowedCPUs=}}
    if [ -e "$root/$3/refuse" ]; then echo "Failed to set unit properties: no" >&2; exit 1; fi
    echo "$cpus" | tr , ' ' > "$root/$3/AllowedCPUs"
    echo "${{cpus:-{online}}}" > "$root/$3/cpuset.cpus.effective" ;;
*) exit 4 ;;
esac
"""


@dataclass
class Slices:
    """The root of the hierarchy, with its slices, and the record."""

    root: Path
    record: Path

    def add(self, unit: str, cpus: CPUSet | None = None) -> Path:
        folder = self.root / unit
        folder.mkdir()
        (folder / "AllowedCPUs").write_text(f"{cpus or ''}\n")
        (folder / "cpuset.cpus.effective").write_text(f"{cpus or ONLINE}\n")
        (folder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        return folder

    def of(self, unit: str) -> str:
        return (self.root / unit / "AllowedCPUs").read_text().strip()

    def up(self, cpus: CPUSet, *keep: str) -> ShieldReport:
        place = Place(Method.SYSTEMD, self.root)
        return asyncio.run(raise_shield(cpus, keep=keep, record=self.record, place=place))

    def down(self) -> ShieldReport:
        return asyncio.run(lower_shield(record=self.record))


@pytest.fixture
def slices(tmp_path: Path) -> Iterator[Slices]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if len(ONLINE) < 2:
        pytest.skip("needs two CPUs")
    root, programs = tmp_path / "cgroup", tmp_path / "bin"
    root.mkdir()
    programs.mkdir()
    (root / "cpuset.cpus.effective").write_text(str(ONLINE))
    program = programs / "systemctl"
    program.write_text(SYSTEMCTL.format(root=root, online=ONLINE))
    program.chmod(0o755)
    made = Slices(root, tmp_path / "shield.json")
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{programs}:{path}"
    try:
        yield made
        with contextlib.suppress(ShieldError):
            made.down()
    finally:
        os.environ["PATH"] = path


def test_slices_and_the_rest_of_the_root_go_and_come_back(slices: Slices) -> None:
    slices.add("system.slice")
    slices.add("init.scope", ONLINE)
    inside = slices.add("user.slice", LAST)
    slices.add("machine.slice")
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            (slices.root / "cgroup.procs").write_text(f"{child.pid}\n")
            report = slices.up(LAST)
            assert os.sched_getaffinity(child.pid) == set(ONLINE - LAST)
            assert report.moved == 1
            during = [slices.of(unit) for unit in ("system.slice", "init.scope", inside.name)]
            again = slices.up(LOW)
            assert os.sched_getaffinity(child.pid) == set(ONLINE - LOW)
            assert CPUSet.parse(slices.of("system.slice").replace(" ", ",")) == ONLINE - LOW
            slices.down()
            assert os.sched_getaffinity(child.pid) == set(ONLINE)
        finally:
            child.kill()
    assert during == [str(ONLINE - LAST), str(ONLINE - LAST), str(LAST)]
    assert [left.partition(":")[0] for left in report.left] == ["user.slice", "machine.slice"]
    assert [left.partition(":")[0] for left in again.left] == ["machine.slice"]
    assert slices.of("system.slice") == ""
    assert slices.of("init.scope") == str(ONLINE)
    assert slices.of("user.slice") == str(LAST)
    assert slices.of("machine.slice") == ""
    assert not slices.record.exists()


def test_a_refusal_of_systemd_undoes_what_was_done(slices: Slices) -> None:
    slices.add("system.slice")
    (slices.add("user.slice") / "refuse").touch()
    with pytest.raises(ShieldError, match=r"set-property --runtime user\.slice.*properties: no"):
        slices.up(LAST)
    assert slices.of("system.slice") == ""
    assert not slices.record.exists()


def test_a_change_by_somebody_else_is_left(slices: Slices) -> None:
    folder = slices.add("system.slice")
    slices.up(LAST)
    (folder / "AllowedCPUs").write_text(f"{LAST}\n")
    (note,) = slices.down().notes
    assert "system.slice" in note
    assert slices.of("system.slice") == str(LAST)


def test_a_tree_inside_a_slice_that_is_cut_is_refused(slices: Slices) -> None:
    (slices.add("system.slice") / "pinfold.service").mkdir()
    with pytest.raises(ShieldError, match="a slice of its own"):
        slices.up(LAST, "/system.slice/pinfold.service")
    assert slices.of("system.slice") == ""
    assert read_shield(slices.record) is None


def test_without_systemctl_it_is_said(slices: Slices) -> None:
    slices.add("system.slice")
    os.environ["PATH"] = str(slices.root)
    with pytest.raises(ShieldError, match=r"systemctl show .*No such file"):
        slices.up(LAST)
    assert not slices.record.exists()
