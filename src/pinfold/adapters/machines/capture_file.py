"""Writing a capture: the same bytes for the same machine, and never half a file."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import secrets
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final, cast

from pinfold.adapters.machines.capture import Entry
from pinfold.core.machine.machine import MachineError
from pinfold.linux.durable import create

SUFFIXES: Final = (".tar.xz", ".tar.gz", ".tar.bz2", ".tar")


def capture_suffix(path: Path) -> str:
    """The suffix of a capture's name, which decides how it is packed; raises MachineError."""
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return suffix
    raise MachineError(f"{path}: a capture is named *{', *'.join(SUFFIXES)}")


def pack(entries: Iterable[Entry], name: str, suffix: str) -> bytes:
    """The archive: one directory ``name``, members in the order given, no times or owners."""
    buffer = io.BytesIO()
    with _packed(buffer, suffix) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        archive.addfile(_member(name, tarfile.DIRTYPE))
        made: set[str] = set()
        for entry in entries:
            for parent in _parents(entry.path):
                if parent not in made:
                    made.add(parent)
                    archive.addfile(_member(f"{name}/{parent}", tarfile.DIRTYPE))
            _add(archive, entry, name, made)
    return buffer.getvalue()


class FileTakenError(MachineError):
    """There is such a file, which is kept."""


def refuse_existing(path: Path) -> None:
    """Tell early what :func:`write_new` would find; raises FileTakenError."""
    if os.path.lexists(path):
        raise _exists(path)


def write_new(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file completely or not at all; an existing one only with ``force``.

    Raises:
        FileTakenError: the file exists.
        MachineError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            create(temporary, data, mode=None)
            if force:
                temporary.replace(path)
            else:
                # A second name fails where the name is taken, whoever took it meanwhile.
                path.hardlink_to(temporary)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise MachineError(f"{path}: cannot be written: {error.strerror or error}") from None


def _exists(path: Path) -> FileTakenError:
    return FileTakenError(f"{path}: exists; choose another name, or --force to replace it")


def _packed(buffer: IO[bytes], suffix: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if suffix == ".tar.xz":
        import lzma  # noqa: PLC0415 - 0.0 ms: not every Python has it

        return lzma.LZMAFile(buffer, "wb", preset=6)
    if suffix == ".tar.gz":
        # The header has a name and a time, which would make every archive another.
        zipped = gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0)
        return cast("contextlib.AbstractContextManager[IO[bytes]]", zipped)
    if suffix == ".tar.bz2":
        import bz2  # noqa: PLC0415 - 0.0 ms: not every Python has it

        return bz2.BZ2File(buffer, "wb")
    return contextlib.nullcontext(buffer)


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _member(name: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return member


def _add(archive: tarfile.TarFile, entry: Entry, name: str, made: set[str]) -> None:
    path = f"{name}/{entry.path}"
    if entry.text is not None:
        data = entry.text.encode()
        member = _member(path, tarfile.REGTYPE)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    elif entry.link is not None:
        member = _member(path, tarfile.SYMTYPE)
        member.linkname = entry.link
        archive.addfile(member)
    elif entry.path not in made:
        made.add(entry.path)
        archive.addfile(_member(path, tarfile.DIRTYPE))
