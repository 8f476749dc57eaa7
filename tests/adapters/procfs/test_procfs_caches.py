"""The groups of resctrl, as the audit reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinfold.adapters.procfs.caches import read_caches
from pinfold.adapters.procfs.files import KernelFiles, SnapshotError
from pinfold.core.cache.offers import Group
from pinfold.core.values.cpuset import CPUSet


def group(folder: Path, cpus: str, schemata: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpus_list").write_text(f"{cpus}\n")
    (folder / "schemata").write_text(schemata)


def test_every_group_is_read_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "sys/fs/resctrl"
    assert read_caches(KernelFiles(tmp_path)) is None
    group(root, "0-1,4-7", "    L3:0=ff0;1=fff\n    MB:0= 100;1= 100\n")
    assert read_caches(KernelFiles(tmp_path)) is None, "not mounted: there is no info"
    (root / "info").mkdir()
    group(root / "pinfold.fast.1", "2-3", "    L3:0=00f;1=fff\n    MB:0=  50;1=  50\n")
    group(root / "mon_groups" / "theirs", "", "")
    (root / "mon_data").mkdir()
    assert read_caches(KernelFiles(tmp_path)) == {
        "": Group(
            "",
            CPUSet([0, 1, 4, 5, 6, 7]),
            {"L3": {0: 0xFF0, 1: 0xFFF}, "MB": {0: 100, 1: 100}},
        ),
        "pinfold.fast.1": Group(
            "pinfold.fast.1", CPUSet([2, 3]), {"L3": {0: 0xF, 1: 0xFFF}, "MB": {0: 50, 1: 50}}
        ),
    }
    (root / "pinfold.fast.1/schemata").write_text("L3\n")
    with pytest.raises(SnapshotError, match=r"pinfold\.fast\.1/schemata: 'L3' is no line"):
        read_caches(KernelFiles(tmp_path))
