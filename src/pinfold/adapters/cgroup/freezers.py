"""Stopping all processes of a cgroup at once, as each version of cgroups does it."""

from __future__ import annotations

from pathlib import Path

from pinfold.adapters.cgroup.files import put, read, write


class FreezerV1:
    """``freezer.state``, where there is that hierarchy."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "freezer.state"

    def __call__(self, *, frozen: bool) -> None:
        """Stop them, or let them go."""
        if self._file is None or not self._file.exists():
            return
        if frozen or read(self._file) != "THAWED":
            write(self._file, "FROZEN" if frozen else "THAWED")


class FreezerV2:
    """``cgroup.freeze``, where the kernel has it (5.2 and later)."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "cgroup.freeze"

    def __call__(self, *, frozen: bool) -> None:
        """Stop them, or let them go."""
        if self._file.exists():
            put(self._file, "1" if frozen else "0")
