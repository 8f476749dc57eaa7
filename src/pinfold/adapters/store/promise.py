"""``FILE.generation``: how many batches the record beside it is known to hold.

SQLite stops to read a write-ahead log at the first frame whose checksum is another, and says
nothing: what was committed after it is gone as if it had never been.  The number is written after
each commit, so it never promises more than was on the disk; it is not flushed itself, for a machine
that loses its power may well promise less.
"""

from __future__ import annotations

import contextlib
import os
from binascii import crc32
from pathlib import Path
from typing import Final

_LENGTH: Final = len(b"generation 00000000000000000000 00000000\n")


class Promise:
    """The file, held open for writing until :meth:`close`.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, record: Path) -> None:
        self._path = path_of(record)
        if not self._path.is_file() or self._path.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                self._path.replace(self._path.with_name(f"{self._path.name}.damaged"))
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._file: int | None = os.open(self._path, flags, 0o600)

    def write(self, generation: int) -> None:
        """Promise a generation, which is on the disk; raises OSError."""
        if self._file is not None:
            text = b"generation %020d" % generation
            os.pwrite(self._file, b"%s %08x\n" % (text, crc32(text)), 0)

    def close(self) -> None:
        """Write no more; again is no error."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def path_of(record: Path) -> Path:
    """The file of a record."""
    return Path(f"{record}.generation")


def promised(record: Path) -> int:
    """What was promised last; 0 where nobody knows (no file, or a damaged one)."""
    try:
        descriptor = os.open(path_of(record), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        data = os.read(descriptor, _LENGTH + 1)
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    text, _, mark = data.rstrip(b"\n").rpartition(b" ")
    word, _, number = text.partition(b" ")
    if word != b"generation" or not number.isdigit() or mark != b"%08x" % crc32(text):
        return 0
    return int(number)
