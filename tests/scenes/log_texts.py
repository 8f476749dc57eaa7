"""The logs of containers in tests: what was written, without times and marks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pinfold.logs.layout import parts


def text_of(file: Path) -> str:
    """What a container has written, as it wrote it."""
    return bytes_of(file).decode(errors="surrogateescape")


def bytes_of(file: Path) -> bytes:
    """The same, whatever it is; rotated files come first."""
    text = b""
    for part in parts(file.resolve()):
        with suppress(FileNotFoundError):  # it was rotated a moment ago
            text += part.read_bytes()
    fields = [line.split(b" ", 3) for line in text.split(b"\n")[:-1]]
    return b"".join(words + (b"\n" if tag == b"F" else b"") for _, _, tag, words in fields)
