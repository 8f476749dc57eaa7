"""What a container sees of the folder in which it is told its CPUs, from inside its mounts."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from pinfold.core.pod.workload import ASSIGNMENT_FOLDER


def told_in(pid: int) -> Path:
    """Where the container of a process is told, if it is."""
    return Path("/proc", str(pid), "root", ASSIGNMENT_FOLDER.lstrip("/"))


def check_assignment(pid: int, cpus: str) -> None:
    """The container of a process is told these CPUs, and writes nothing but its word."""
    seen = told_in(pid)
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"PINFOLD_ASSIGNMENT_DIR=/run/pinfold" in environment
    told = json.loads((seen / "assignment.json").read_text())
    assert (told["generation"], told["current"]["cpus"]) == (1, cpus)
    assert (seen / "assigned.cpuset").read_text() == cpus
    (seen / "ack" / "generation").write_text("1")
    for path in (seen / "x", seen / "ack" / "x", seen / "..data" / "assigned.cpuset"):
        with pytest.raises(OSError) as refused:  # noqa: PT011 - which one is looked at below
            path.write_text("x")
        assert refused.value.errno == errno.EROFS, path
