"""Run in a mount namespace of its own: what a container writes fills no disk but the small one.

``python -m tests.scenes.small_disk_scene FOLDER``, where the folder is on a shared mount.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from pinfold.adapters.podfiles import AssignmentFolders
from pinfold.core.pod.workload import ACKNOWLEDGEMENT
from pinfold.linux.mounting import mounts_below
from pinfold.ports.errors import ContainerKey
from tests.scenes.teller_contract import ANNOUNCED, FIRST, OTHER, OWNER

_PIECE = b"1" * (1 << 20)
_MOST = 128


def fill(path: Path) -> int:
    """Write until the kernel has no more room: how many MiB there were."""
    with path.open("wb", buffering=0) as file:
        for count in range(_MOST):
            try:
                if file.write(_PIECE) < len(_PIECE):
                    return count
            except OSError:
                return count
    return _MOST


async def scene(base: Path) -> None:
    root = base / "assignments"
    problems: list[str] = []

    def again() -> AssignmentFolders:
        return AssignmentFolders(root, lambda _pod, problem: problems.append(problem))

    def acknowledgement(owner: ContainerKey) -> Path:
        return Path(again().folder(owner), ACKNOWLEDGEMENT)

    def kinds() -> list[str]:
        return [found.kind for found in mounts_below(root)]

    folders = again()
    await folders.tell(OWNER, FIRST)
    assert kinds() == ["tmpfs"]
    assert os.statvfs(root).f_flag & os.ST_NOEXEC
    assert os.statvfs(root).f_flag & os.ST_NOSUID
    await folders.tell(OTHER, FIRST)
    assert 0 < fill(acknowledgement(OWNER)) < _MOST
    (base / "record").write_bytes(_PIECE)
    # Another one is told all the same, by a later agent too.
    folders = again()
    await folders.tell(OTHER, ANNOUNCED)
    assert await again().told(OTHER) == ANNOUNCED
    assert kinds() == ["tmpfs"]
    assert acknowledgement(OWNER).stat().st_size == 0
    assert len(problems) == 1
    assert str(OWNER.name) in problems[0]
    await folders.forget(OWNER.pod_uid)
    assert list(await folders.retain([])) == []
    assert kinds() == []
    # Who is told on a disk, as by an older agent, has mounted that, and stays there.
    older = root / "older"
    older.mkdir()
    await folders.tell(OWNER, FIRST)
    assert kinds() == []
    older.rmdir()
    await folders.forget(OWNER.pod_uid)
    await folders.tell(OWNER, FIRST)
    assert kinds() == ["tmpfs"]


if __name__ == "__main__":
    asyncio.run(scene(Path(sys.argv[1])))
    sys.stdout.write("well\n")
