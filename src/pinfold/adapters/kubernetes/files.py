"""Files of manifests: which ones, their text, and the documents in them."""

from __future__ import annotations

import codecs
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pinfold.adapters.kubernetes.templates import (
    unrendered_path,
    unrendered_text,
    unrendered_value,
)
from pinfold.core.values.errors import PinfoldError
from pinfold.formats.json_or_yaml import Document, DocumentError, read_documents

_GZIP: Final = b"\x1f\x8b"
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Marks at the beginning of a text; that of UTF-32 begins as that of UTF-16."""

MAX_BYTES: Final = 256 * 1024 * 1024
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


class ManifestError(PinfoldError, ValueError):
    """A manifest that cannot be used; the message names file, place and remedy.

    ``where`` begins the message, and ``remedy`` ends it, where the problem does not say them.
    """

    def __init__(self, problem: str, where: str = "", remedy: str = "") -> None:
        begun = f"{where}: {problem}" if where else problem
        super().__init__(printable(f"{begun}; {remedy}" if remedy else begun))
        self.problem = problem
        self.where = where
        self.remedy = remedy


def object_refused(where: str, problem: str) -> ManifestError:
    """The error about an object with a value that is refused, which the problem quotes.

    A value that a template would have filled in has the remedy for templates.
    """
    return ManifestError(problem, where, unrendered_value(problem))


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
        if not name:
            raise ManifestError("'': an empty name is no file; the current folder is .")
        path = Path(name)
        if name != "-" and (made := unrendered_path(path)):
            raise ManifestError(f"{name}: {made}")
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
        below = next((one for one in sorted(path.iterdir()) if one.is_dir()), None)
        hint = (
            "" if below is None else f"; folders in it are not looked into: name them, as {below}"
        )
        raise ManifestError(f"{path}: no *.yaml, *.yml or *.json file in this folder{hint}")
    return found


def _nothing_in(paths: Sequence[str]) -> ManifestError:
    """What to raise where nothing is in any of the files: whoever gave them meant something."""
    if not paths:
        return ManifestError("no manifest is named; name a file or a folder")
    if "-" in paths:
        return ManifestError(
            "-: nothing came on standard input; does the command before the pipe print manifests?"
        )
    return ManifestError(f"{', '.join(paths)}: nothing in it; name a file with manifests")


def manifest_documents(
    paths: Sequence[str], empty: Callable[[str], object] = lambda _: None
) -> Iterator[tuple[str, Document]]:
    """Yield the documents of some paths, each with its place for messages.

    Args:
        paths: files, folders, and ``-`` for standard input.
        empty: told the files in which nothing is, where something is in others.

    Raises:
        ManifestError: see :func:`manifest_files`; a file cannot be read, or nothing is in any.
    """
    is_any = False
    for path in manifest_files(paths):
        number = 0
        for number, document in enumerate(_documents(path, _read(path)), start=1):
            yield f"{path}: document {number} (line {document.line})", document
        if number:
            is_any = True
        else:
            empty(path)
    if not is_any:
        raise _nothing_in(paths)


def _documents(path: str, text: str) -> Iterator[Document]:
    try:
        yield from read_documents(text)
    except DocumentError as error:
        made = unrendered_text(text, error.line)
        raise ManifestError(
            f"{path}: line {error.line}: {made}" if made else f"{path}: {error}"
        ) from None


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
    yield from _documents(str(path), _text(str(path), raw))


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
    # As PowerShell writes what it is told to (`kubectl get pods -o yaml > pods.yaml`).
    mark = next((code for bom, code in _MARKS if raw.startswith(bom)), "utf-8-sig")
    try:
        return raw.decode(mark)
    except UnicodeDecodeError as error:
        if raw.startswith(_GZIP):
            raise ManifestError(f"{path}: compressed; unpack it first (gunzip)") from None
        line = raw.count(b"\n", 0, error.start) + 1
        code = "UTF-8" if mark == "utf-8-sig" else mark.upper()
        raise ManifestError(
            f"{path}: line {line}: not {code} text (byte {error.start}); is it a manifest? "
            "Save it as UTF-8"
        ) from None
