"""The captured machines against their truth, field by field."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.machines.discovery import read_live, read_machine
from pinfold.core.machine.machine import Machine
from tests.scenes.published_schemas import machine_document
from tests.scenes.sysfs_trees import SAMPLES, capture_name, captures, truth

FIELDS = (
    "name",
    "source",
    "cpu_model",
    "online",
    "offline",
    "allowed",
    "sockets",
    "l3",
    "numa",
    "numa_distances",
    "cpu_kinds",
    "memory_bytes",
    "hugepages_machine",
    "kubelet",
    "cores",
)


def document(machine: Machine) -> dict[str, Any]:
    """The document as it comes out of a JSON reader."""
    loaded: dict[str, Any] = json.loads(json.dumps(machine_document(machine)))
    return loaded


@pytest.mark.parametrize("path", captures(), ids=capture_name)
def test_machine_meets_its_truth(path: Path) -> None:
    expected = truth(path)
    found = document(read_machine(path))
    assert {name: found[name] for name in FIELDS} == {name: expected[name] for name in FIELDS}
    assert found["pci"] == expected.get("pci", [])
    if not (expected["architecture_from"] or "").startswith("name"):
        assert found["architecture"] == expected["architecture"]
    assert len(found["cpus"]) == len(expected["cpus"])
    for row, wanted in zip(found["cpus"], expected["cpus"], strict=True):
        assert row == wanted


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.tar.xz")), ids=capture_name)
def test_directory_and_archive_are_the_same_machine(path: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(path, tmp_path)
    machine = read_machine(path)
    top = tmp_path / capture_name(path)
    assert read_machine(top) == machine
    assert read_machine(tmp_path) == machine
    packed = tmp_path / "again.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(top, arcname=capture_name(path))
    assert read_machine(packed) == machine


def test_this_machine() -> None:
    if not Path("/sys/devices/system/cpu/online").exists():
        pytest.skip("no sysfs here")
    machine = read_live()
    assert machine.online
    assert document(machine)["kubelet"]["num_cpus"] >= 1
