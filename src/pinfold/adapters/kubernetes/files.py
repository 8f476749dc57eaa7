"""Files of manifests: which ones, their text, and the documents in them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pinfold.core.values.errors import PinfoldError
from pinfold.formats.json_or_yaml import Document, DocumentError, read_documents

MAX_BYTES: Final = 256 * 1024 * 1024
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


class ManifestError(PinfoldError, ValueError):
    """A manifest that cannot be used; the message names file, place and remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """A text without what moves a cursor: names in it come from outside."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def manifest_files(paths: Sequence[str]) -> Iterator[str]:
    """Yield the files of some paths: a folder stands for its manifests in the order of names.

    Raises:
        ManifestError: nothing there, or a folder without manifests.
    """
    for name in paths:
        path = Path(name)
        if path.is_dir():
            yield from _folder(path)
        elif name == "-" or path.exists():
            # Whatever can be read: a pipe (`<(kubectl get pods -o yaml)`) is no regular file.
            yield name
        else:
            raise ManifestError(f"{name}: no such file or folder")


def _folder(path: Path) -> list[str]:
    try:
        files = [file for file in path.iterdir() if file.suffix in _SUFFIXES]
        found = sorted(str(file) for file in files if file.is_file())
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror or error}") from None
    if not found:
        raise ManifestError(f"{path}: no *.yaml, *.yml or *.json file in this folder")
    return found


def file_documents(path: str) -> Iterator[Document]:
    """Yield the documents of a file, or of standard input (``-``); raises ManifestError."""
    try:
        yield from read_documents(_read(path))
    except DocumentError as error:
        raise ManifestError(f"{path}: {error}") from None


def small_file_documents(path: Path, limit: int) -> Iterator[Document]:
    """Yield the documents of a regular file that has ``limit`` bytes at most.

    Raises:
        ManifestError: another kind of file, a larger one, or one that cannot be read.
    """
    try:
        # What was a regular file a moment ago may be a FIFO now, which nobody writes to.
        with open(path, "rb", opener=_without_waiting) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            raw = file.read(limit + 1) if is_regular else b""
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror or error}") from None
    if not is_regular:
        raise ManifestError(f"{path}: no regular file")
    if len(raw) > limit:
        raise ManifestError(
            f"{path}: larger than {limit // 1024} KiB; put each pod into a file of its own"
        )
    try:
        yield from read_documents(_text(str(path), raw))
    except DocumentError as error:
        raise ManifestError(f"{path}: {error}") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _read(path: str) -> str:
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise ManifestError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; split the file")
    return _text(path, raw)


def _text(path: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{path}: not UTF-8 text (byte {error.start}); is it a manifest?"
        ) from None
