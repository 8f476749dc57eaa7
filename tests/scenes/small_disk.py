"""A world of plain processes on a small disk of its own, which can be filled."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenes.process_world import ProcessWorld


class SmallDisk(ProcessWorld):
    """A world whose containers lie on a disk of their own."""

    @property
    def root(self) -> Path:
        return self.folder / "disk" / "containers"

    def fill(self) -> Path:
        """Leave no room on the disk."""
        return fill(self.folder / "disk")

    def remounts(self, mode: str) -> bool:
        """Make the disk read-only (``ro``) or writable (``rw``); whether the kernel did."""
        command = ["mount", "-o", f"remount,{mode}", str(self.root.parent)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def fill(folder: Path) -> Path:
    """Leave no room on the disk of a folder: with this file, whose end makes room again."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """A tmpfs of this size on a folder, which is made."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "pinfold-test", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk (needs root): {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Such a world below a folder, cleared afterwards."""
    world = SmallDisk(folder)
    with mounted(folder / "disk", "256k"):
        yield world
        world.clear()
