"""How the files of a container's folder are written and read, so that damage is found.

Two forms: lines of a word and a value that end with ``sum`` and ``end``, and one JSON object whose
last member is ``sum``; both sums are the CRC-32 of everything before them, in hexadecimal.  Files
of older versions have no sum.  Whatever lies where a file should be, reading it ends at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from binascii import crc32
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pinfold.linux.descriptors import NO_ROOM
from pinfold.ports.errors import RuntimeFailedError

MAX_LINES: Final = 64 * 1024
_JSON_SUM: Final = re.compile(rb',"sum":"([0-9a-f]{8})"\}$')


class CorruptRecordError(ValueError):
    """A file of a container's that cannot be read or makes no sense; the message names it."""


def lines(values: Mapping[str, str]) -> bytes:
    """The lines of a file; values may not hold line breaks."""
    body = "".join(f"{word} {value}\n" for word, value in values.items()).encode()
    return b"%ssum %08x\nend\n" % (body, crc32(body))


def read_lines(path: Path) -> dict[str, str]:
    """What :func:`lines` wrote; raises CorruptRecordError."""
    data = read(path, MAX_LINES)
    if not data.endswith(b"\nend\n"):
        raise CorruptRecordError(f"{path} is truncated")
    body, mark, found = data[: -len(b"end\n")].rpartition(b"\nsum ")
    if mark and found != b"%08x\n" % crc32(body + b"\n"):
        raise CorruptRecordError(f"{path} is damaged: its checksum is another")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise CorruptRecordError(f"{path} makes no sense") from None
    return {word: value for word, _, value in (line.partition(" ") for line in text.split("\n"))}


def summed(document: bytes) -> bytes:
    """A JSON object with its sum as the last member."""
    return b'%s,"sum":"%08x"}' % (document[:-1], crc32(document))


def read_summed(path: Path, limit: int) -> tuple[bytes, bool]:
    """What :func:`summed` wrote; and whether it has a sum; raises CorruptRecordError."""
    data = read(path, limit)
    found = _JSON_SUM.search(data)
    if found is None:
        return data, False
    document = data[: found.start()] + b"}"
    if found[1] != b"%08x" % crc32(document):
        raise CorruptRecordError(f"{path} is damaged: its checksum is another")
    return document, True


def read(path: Path, limit: int) -> bytes:
    """A regular file; anything else would make its reader wait, or is not ours.

    Raises:
        RuntimeFailedError: no more files can be open; nothing is known of this one.
        CorruptRecordError: it cannot be read, is no regular file, or longer than ``limit``.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CorruptRecordError(f"{path} is no regular file")
            data = b""
            while len(data) <= limit and (part := os.read(descriptor, limit + 1 - len(data))):
                data += part
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise RuntimeFailedError(
                f"cannot read {path}: {error.strerror}", "raise LimitNOFILE (ulimit -n)"
            ) from None
        raise CorruptRecordError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise CorruptRecordError(f"{path} is larger than {limit} bytes")
    return data


def is_there(path: Path) -> bool:
    """Whether there is anything of that name, whatever it is."""
    with contextlib.suppress(OSError):
        path.lstat()
        return True
    return False
