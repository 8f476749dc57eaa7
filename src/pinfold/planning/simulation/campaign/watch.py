"""How far runs are, and that they shall end: a page of memory that processes on a machine share.

It is a file without a name (``memfd_create(2)``), which ends with the process that made it.  Who
runs somewhere else, or may not look, goes without: then a run is told of when it has ended.  All
of it is for people to look at, and for ending; no result depends on it.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
from enum import IntEnum
from types import TracebackType
from typing import Final, Self

from msgspec import Struct

_HEAD: Final = struct.Struct("=16sd")
_CELL: Final = struct.Struct("=dddd")
"""Of one run: the process, its stage, the share that is done, pods that were placed."""
_PAIR: Final = struct.Struct("=dd")


class Stage(IntEnum):
    """Of the run that has a cell."""

    FREE = 0
    BEGUN = 1
    ENDED = 2


class Place(Struct, frozen=True):
    """Where the page is found; ``token`` tells it from what is there on another machine."""

    path: str
    token: bytes


class Cell(Struct, frozen=True):
    """What is told of a run."""

    process: int
    stage: Stage
    share: float
    placed: int


class Watch:
    """The page, as the one sees it who starts the runs; ``cells``: for as many at once."""

    def __init__(self, cells: int) -> None:
        self._file = os.memfd_create("pinfold-simulate")
        os.ftruncate(self._file, _HEAD.size + cells * _CELL.size)
        self._page = mmap.mmap(self._file, 0)
        self.cells = cells
        token = secrets.token_bytes(16)
        _HEAD.pack_into(self._page, 0, token, 0.0)
        self.place = Place(f"/proc/{os.getpid()}/fd/{self._file}", token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._page.close()
        os.close(self._file)

    def clear(self, cell: int) -> None:
        """Have the cell for another run."""
        _CELL.pack_into(self._page, _at(cell), 0.0, 0.0, 0.0, 0.0)

    def see(self, cell: int) -> Cell:
        """How far the run is."""
        process, stage, share, placed = _CELL.unpack_from(self._page, _at(cell))
        return Cell(int(process), Stage(int(stage)), share, int(placed))

    def stop(self) -> None:
        """Have all runs end that see it."""
        _HEAD.pack_into(self._page, 0, self.place.token, 1.0)


class Told:
    """The page, as a run sees it; where there is none, all is told to nobody."""

    def __init__(self, place: Place | None, cell: int) -> None:
        self._at = _at(cell)
        self._page = None if place is None else _opened(place)
        self.tell(Stage.BEGUN)

    @property
    def stopped(self) -> bool:
        """Whether the run shall end."""
        if self._page is None:
            return False
        return bool(_HEAD.unpack_from(self._page, 0)[1])

    def go_on(self, share: float, placed: int) -> bool:
        """Tell how far it is; whether to go on."""
        if self._page is None:
            return True
        _PAIR.pack_into(self._page, self._at + _PAIR.size, share, placed)
        return not _HEAD.unpack_from(self._page, 0)[1]

    def tell(self, stage: Stage) -> None:
        """Tell the stage."""
        if self._page is not None:
            _PAIR.pack_into(self._page, self._at, os.getpid(), stage)

    def close(self) -> None:
        """Let the page go."""
        if self._page is not None:
            self._page.close()
            self._page = None


def _at(cell: int) -> int:
    return _HEAD.size + cell * _CELL.size


def _opened(place: Place) -> mmap.mmap | None:
    try:
        file = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        page = mmap.mmap(file, 0)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    if page[: len(place.token)] != place.token:
        page.close()
        return None
    return page
