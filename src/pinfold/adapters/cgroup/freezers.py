"""Stopping all processes of a cgroup at once, and letting them go: both versions' freezers.

Sources: the kernel's ``cgroup-v1/freezer-subsystem.rst`` and ``cgroup-v2.rst`` (``cgroup.freeze``).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.adapters.cgroup.files import read, write
from pinfold.ports.errors import CgroupError

_LONGEST: Final = 2.0
_PAUSE: Final = 0.001


class Words(Struct, frozen=True):
    """What a version of cgroups writes, and where it says that every process has stopped."""

    frozen: str
    thawed: str
    report: str
    stopped: str


FROZEN_V1: Final = Words("FROZEN", "THAWED", "freezer.state", "FROZEN")
FROZEN_V2: Final = Words("1", "0", "cgroup.events", "frozen 1")


class Freezer:
    """The freezer of one cgroup; without a file (None, or a kernel before 5.2) it does nothing.

    Once it was told to :meth:`hold`, it lets nobody go any more: another one does.
    """

    def __init__(self, file: Path | None, words: Words) -> None:
        self._file = file
        self._words = words
        self._held = False

    def __call__(self, *, frozen: bool) -> None:
        """Stop them, or let them go."""
        if self._held or self._file is None or not self._file.exists():
            return
        word = self._words.frozen if frozen else self._words.thawed
        if frozen or read(self._file) != word:
            write(self._file, word)

    @property
    def is_held(self) -> bool:
        """Whether none of them runs."""
        if self._file is None:
            return False
        try:
            if read(self._file) == self._words.thawed:
                return False
            return self._words.stopped in read(self._file.parent / self._words.report)
        except CgroupError:
            return False

    async def hold(self, *, wanted: bool) -> list[str]:
        """Stop them if that is wanted, and see that they have stopped; what was not granted.

        Raises:
            CgroupError: some go on.
        """
        if not wanted:
            return []
        if self._file is None or not self._file.exists():
            return ["not frozen: there is no freezer"]
        self(frozen=True)
        self._held = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LONGEST
        while not self.is_held:
            if loop.time() > deadline:
                raise CgroupError(f"{self._file}: processes are not frozen after {_LONGEST:g} s")
            await asyncio.sleep(_PAUSE)
        return []


def freezer_v1(folder: Path | None) -> Freezer:
    """``freezer.state``, where there is that hierarchy."""
    return Freezer(None if folder is None else folder / "freezer.state", FROZEN_V1)


def freezer_v2(folder: Path | str) -> Freezer:
    """``cgroup.freeze``, where the kernel has it (5.2 and later)."""
    return Freezer(Path(folder) / "cgroup.freeze", FROZEN_V2)
