"""The files of traces, packed or not: found, unpacked, and read line by line."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Final

from pinfold.ports.arrivals import TraceError

MAX_BYTES: Final = 2**30
"""Of one file, unpacked; a trace of ten million pods has less."""
MAX_LINE: Final = 2**20
_SHOWN: Final = 60
_GZIP: Final = b"\x1f\x8b"
_XZ: Final = b"\xfd7zXZ\x00"


def damaged(path: Path, line: int, what: str) -> TraceError:
    """What is wrong with a line; text of it has to be :func:`shown`."""
    return TraceError(f"{_name(path)}: line {line}: {what}")


def shown(text: str) -> str:
    """Text of a trace for a message: quoted, short, and nothing that moves a cursor."""
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def trace_file(folder: str, *names: str) -> Path:
    """The first of these files that is in the folder of a trace, packed with xz or gzip or not.

    Raises:
        TraceError: none of them is.
    """
    for name in names:
        for suffix in ("", ".xz", ".gz"):
            path = Path(folder, f"{name}{suffix}")
            try:
                if path.is_file():
                    return path
            except (OSError, ValueError):
                continue
    missing = Path(folder, names[0])
    raise TraceError(
        f"{_name(missing)}: no such file, packed or not; --traces FOLDER says where traces are"
    )


def numbered_lines(path: Path, most: int = MAX_BYTES) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text with their numbers, without what ends them.

    Its first bytes say whether it is packed with gzip or xz; it is text of UTF-8.

    Raises:
        TraceError: no such file, damaged or truncated, no text, or more than ``most`` bytes.
    """
    number, left = 0, most
    try:
        with path.open("rb") as packed, _unpacked(packed) as file:
            while raw := file.readline(MAX_LINE + 1):
                number += 1
                left -= len(raw)
                if len(raw) > MAX_LINE or left < 0:
                    raise damaged(path, number, "more text than a trace has; is it the right file?")
                if b"\0" in raw:
                    raise damaged(
                        path, number, "a NUL byte, which no text has; copy the file again"
                    )
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except TraceError:
        raise
    except UnicodeDecodeError:
        raise damaged(path, number, "not UTF-8 text; is it the right file?") from None
    except EOFError:
        what = "the packed data is truncated; copy the file again"
        raise damaged(path, number + 1, what) from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, MemoryError) as error:
        what = f"the packed data is damaged ({error}); copy the file again"
        raise damaged(path, number + 1, what) from None
    except OSError as error:
        raise TraceError(f"{_name(path)}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise TraceError(f"{_name(path)}: no name that a file can have") from None


def _unpacked(file: BufferedReader) -> BufferedReader | gzip.GzipFile | lzma.LZMAFile:
    head = file.peek(len(_XZ))
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)
    return lzma.LZMAFile(file, format=lzma.FORMAT_XZ) if head.startswith(_XZ) else file


def _name(path: Path) -> str:
    name = str(path)
    return name if name.isprintable() else ascii(name)
