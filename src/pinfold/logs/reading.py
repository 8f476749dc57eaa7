"""Reads the log of a container's attempt, whoever writes it and however often it is rotated.

The files are opened as soon as they are seen: what is rotated away while somebody reads is read
all the same.  Only one piece of a file is in memory at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.logs.layout import rotated

PIECE: Final = 1 << 16
LOOK_PERIOD: Final = 0.1
"""Seconds between two looks at a log that is followed."""

_LONGEST: Final = 1 << 20
"""Bytes of one line; runtimes and supervisors mark longer ones as partial."""


class LogOptions(Struct, frozen=True):
    """What is wanted of a log.

    With ``follow`` it goes on until the container has ended; ``tail`` is how many of the last lines
    (None: all); ``since`` in seconds of the epoch; ``timestamps``: with each line's time before it.
    """

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    timestamps: bool = False


async def read_log(
    file: Path, options: LogOptions, has_ended: Callable[[], bool] = lambda: True
) -> AsyncIterator[bytes]:
    """What a container has written, in pieces.

    The file that is written to need not be there (yet); ``has_ended``: nothing more will be.
    """
    lines = _Lines(options)
    source = _Source(file)
    try:
        await asyncio.to_thread(source.look)
        if options.tail is not None:
            await asyncio.to_thread(source.go_to_tail, options.tail)
        while True:
            # Asked before: what is written until the end is there afterwards.
            ended = not options.follow or has_ended()
            await asyncio.to_thread(source.look)
            while piece := await asyncio.to_thread(source.read):
                if text := lines.take(piece):
                    yield text
            if ended:
                return
            await asyncio.sleep(LOOK_PERIOD)
    finally:
        source.close()


class _Opened(Struct, frozen=True):
    """A file that is open; ``id`` are its device and its inode."""

    descriptor: int
    id: tuple[int, int]

    def is_at(self, path: Path) -> bool:
        """Whether it is what a path names."""
        try:
            status = path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.id

    @property
    def is_linked(self) -> bool:
        """Whether it has a name still."""
        return os.fstat(self.descriptor).st_nlink > 0


def _opened(path: Path) -> _Opened | None:
    """A file to read; None where there is none (any more)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(descriptor)
    return _Opened(descriptor, (status.st_dev, status.st_ino))


def _close(files: list[_Opened]) -> None:
    for one in files:
        os.close(one.descriptor)


class _Source:
    """The files of one log, oldest first, each until it is read to its end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._open: deque[int] = deque()
        self._newest: tuple[int, int] | None = None

    def look(self) -> None:
        """Open the files that are newer than those which were seen."""
        current = _opened(self._file)
        older = self._older_than(current)
        if older is None:
            # It was rotated during the listing, which need not have it: the next one has.
            older = self._older_than(current) or []
        fresh = older if current is None else [*older, current]
        if fresh and fresh[-1].id == self._newest:
            os.close(fresh.pop().descriptor)
        self._open.extend(one.descriptor for one in fresh)
        self._newest = fresh[-1].id if fresh else self._newest

    def _older_than(self, current: _Opened | None) -> list[_Opened] | None:
        """What was rotated away before a file and not seen, oldest first; None: cannot be told."""
        if current is not None and current.id == self._newest:
            return []
        found: list[_Opened] = []
        newer: int | None = None
        # Listed when that one is open: one that is rotated in between is opened twice, none never.
        for part in reversed(list(rotated(self._file))):
            one = _opened(part)
            if one is None:
                continue
            if one.id == self._newest:
                os.close(one.descriptor)
                break
            if current is not None and one.id == current.id:
                os.close(one.descriptor)
                newer = len(found)
            else:
                found.append(one)
        if newer is None and current is not None and not current.is_at(self._file):
            if current.is_linked:
                _close(found)
                return None
            # It was removed already: older than all that is there.
            newer = len(found)
        # What is newer is for the next look.
        _close(found[: newer or 0])
        return found[newer or 0 :][::-1]

    def read(self) -> bytes:
        """The next piece, b"" where there is none now."""
        while self._open:
            if piece := os.read(self._open[0], PIECE):
                return piece
            if len(self._open) == 1:
                break
            os.close(self._open.popleft())
        return b""

    def go_to_tail(self, count: int) -> None:
        """Go to where the last ``count`` lines begin."""
        for position in range(len(self._open) - 1, -1, -1):
            descriptor = self._open[position]
            start, count, is_all = _tail_of(descriptor, count)
            os.lseek(descriptor, start, os.SEEK_SET)
            if is_all:
                for _ in range(position):
                    os.close(self._open.popleft())
                return

    def close(self) -> None:
        """Read no more."""
        while self._open:
            os.close(self._open.popleft())


def _tail_of(descriptor: int, count: int) -> tuple[int, int, bool]:
    """Where the last lines of a file begin, how many of ``count`` are missing, whether that is all.

    It is all where the line before them is seen, too: the first may have begun in the file before.
    """
    at = start = os.fstat(descriptor).st_size
    rest = b""
    while at > 0:
        size = min(PIECE, at)
        at -= size
        rest = os.pread(descriptor, size, at) + rest
        # What follows the first end of a line is whole; what is before may reach further back.
        first = rest.find(b"\n") + 1 if at else 0
        stop = len(rest)
        while stop > first:
            begin = max(rest.rfind(b"\n", first, stop - 1) + 1, first)
            if _ends(rest[begin:stop]):
                if count == 0:
                    return start, 0, True
                count -= 1
            start = at + begin
            stop = begin
        rest = rest[:first]
    return start, count, False


def _ends(line: bytes) -> bool:
    """Whether a line of the file is the last of a line that was written."""
    return line.split(b" ", 3)[2:3] == [b"F"]


class _Lines:
    """Makes of the file's lines what the container wrote."""

    def __init__(self, options: LogOptions) -> None:
        self._timestamps = options.timestamps
        self._since = None if options.since is None else datetime.fromtimestamp(options.since, UTC)
        self._rest = b""
        self._inside = False

    def take(self, piece: bytes) -> bytes:
        """What a piece holds, and what was kept of the one before."""
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest[:_LONGEST]
        return b"".join(map(self._line, lines))

    def _line(self, line: bytes) -> bytes:
        fields = line.split(b" ", 3)
        if len(fields) != 4 or fields[2] not in (b"F", b"P"):
            return b""  # NULs of a file that was emptied, and other rubbish
        time, _, tag, text = fields
        if self._since is not None:
            if _is_before(time, self._since):
                return b""
            self._since = None
        stamp = time + b" " if self._timestamps and not self._inside else b""
        self._inside = tag == b"P"
        return stamp + text + (b"" if self._inside else b"\n")


def _is_before(time: bytes, since: datetime) -> bool:
    try:
        return datetime.fromisoformat(time.decode("ascii")) < since
    except ValueError:
        return False
