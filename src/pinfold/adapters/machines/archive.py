"""Tar archives as trees, read in memory and never unpacked.

An archive that somebody sends is not trusted: only plain files, directories and symbolic links
are taken, names that point out of the archive are refused, and the number and the size of the
members are bounded before they are kept.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final, Protocol, cast

from pinfold.adapters.machines.tree import (
    MAX_FILE_BYTES,
    LinkedTree,
    Tree,
    find_machine,
)
from pinfold.core.machine.machine import MachineError

MAX_MEMBERS: Final = 500_000
"""A capture of 4096 CPUs has about 200,000 files."""

MAX_TOTAL_BYTES: Final = 128 * 1024 * 1024
MAX_ARCHIVE_BYTES: Final = 256 * 1024 * 1024
MAX_UNPACKED_BYTES: Final = 1024 * 1024 * 1024
"""Of the whole stream: a member takes 512 bytes and more, however small its content."""

MAX_PATH_LENGTH: Final = 4096
MAX_DEPTH: Final = 32

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")


class ArchiveTree(LinkedTree):
    """The members of an archive below ``prefix``; ``files`` and ``links`` are by their path."""

    def __init__(
        self,
        name: str,
        files: dict[str, bytes],
        links: dict[str, str],
        directories: dict[str, set[str]],
        prefix: str = "",
    ) -> None:
        super().__init__(name)
        self._files = files
        self._links = links
        self._directories = directories
        self._prefix = prefix

    def below(self, name: str) -> ArchiveTree:
        """The same members, seen from the directory ``name``."""
        return ArchiveTree(name, self._files, self._links, self._directories, f"{name}/")

    def link_target(self, path: str) -> str | None:
        """See :class:`LinkedTree`."""
        return self._links.get(self._prefix + path)

    def read_plain(self, path: str) -> str | None:
        """See :class:`LinkedTree`."""
        data = self._files.get(self._prefix + path)
        return None if data is None else data.decode("utf-8", "replace")

    def names_plain(self, path: str) -> Iterable[str]:
        """See :class:`LinkedTree`."""
        return self._directories.get((self._prefix + path).rstrip("/"), ())

    def is_file_plain(self, path: str) -> bool:
        """See :class:`LinkedTree`."""
        return self._prefix + path in self._files

    def is_directory_plain(self, path: str) -> bool:
        """See :class:`LinkedTree`."""
        return (self._prefix + path).rstrip("/") in self._directories


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Bounded:
    """A reader that stops a stream which unpacks without end, and knows how the stream ended."""

    def __init__(self, stream: _Stream, source: Path) -> None:
        self._stream = stream
        self._left = MAX_UNPACKED_BYTES
        self._source = source
        self._tail = b""

    def ends_as_archives_do(self) -> bool:
        """Read the rest; whether it ends with a block of zeros, without which it was cut off."""
        while self.read(1 << 20):
            pass
        return len(self._tail) == tarfile.BLOCKSIZE and not self._tail.strip(b"\0")

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, 1 << 20) if size >= 0 else 1 << 20)
        self._left -= len(data)
        self._tail = (self._tail + data[-tarfile.BLOCKSIZE :])[-tarfile.BLOCKSIZE :]
        if self._left < 0:
            raise MachineError(
                f"{self._source}: unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB, "
                "which no capture does; is this the right file?"
            )
        return data


def read_archive(path: Path) -> Tree:
    """Read a tar archive, packed or not, into memory.

    Raises:
        MachineError: no tar archive, a truncated or oversized one, a member that points out of
            it, or no capture in it.
    """
    try:
        if path.stat().st_size > MAX_ARCHIVE_BYTES:
            raise MachineError(f"{path}: larger than {MAX_ARCHIVE_BYTES >> 20} MiB, not a capture")
        with path.open("rb") as file:
            tree = read_members(path, file)
    except OSError as error:
        raise MachineError(f"{path}: cannot be read: {error.strerror or error}") from None
    top = find_machine(tree, path)
    return tree.below(top) if top else tree


def read_members(path: Path, file: IO[bytes]) -> ArchiveTree:
    """Read the members of an archive that is open; ``path`` is for the messages.

    Raises:
        MachineError: as :func:`read_archive`.
        OSError: the file cannot be read.
    """
    import lzma  # noqa: PLC0415 - 0.0 ms: not every Python has it, and not every archive needs it

    try:
        stream = _unpacked(file)
        bounded = _Bounded(stream, path)
        with tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r|") as archive:
            tree = _Members(path).collect(archive)
        # To tarfile, an archive that was cut off between two members is a shorter archive.
        if not bounded.ends_as_archives_do():
            raise tarfile.ReadError("truncated")  # noqa: TRY301 - as tarfile says it elsewhere
    except MachineError:
        raise
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise MachineError(
            f"{path}: the archive is truncated or damaged ({_first_line(error)}); "
            "copy it again from the machine"
        ) from None
    except tarfile.ReadError as error:
        if "truncated" in str(error) or "unexpected end" in str(error):
            text = "the archive is truncated; copy it again from the machine"
        else:
            text = f"no tar archive ({_first_line(error)}); a capture is one of {_suffixes()}"
        raise MachineError(f"{path}: {text}") from None
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise MachineError(
            f"{path}: the archive is damaged ({_first_line(error)}); copy it again"
        ) from None
    return tree


def _unpacked(file: IO[bytes]) -> _Stream:
    """The stream of tar blocks, by the first bytes and not by the name."""
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        import gzip  # noqa: PLC0415 - 0.4 ms: only for such a file

        return gzip.GzipFile(fileobj=file)
    if magic == b"\xfd7zXZ\x00":
        import lzma  # noqa: PLC0415 - 0.0 ms: not every Python has it

        return lzma.LZMAFile(file)
    if magic.startswith(b"BZh"):
        import bz2  # noqa: PLC0415 - 0.0 ms: not every Python has it

        return bz2.BZ2File(file)
    return file


class _Members:
    """Collects what is taken of an archive, within bounds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, bytes] = {}
        self._links: dict[str, str] = {}
        self._directories: dict[str, set[str]] = {"": set()}
        self._left = MAX_TOTAL_BYTES

    def collect(self, archive: tarfile.TarFile) -> ArchiveTree:
        count = 0
        while (member := archive.next()) is not None:
            count += 1
            if count > MAX_MEMBERS:
                raise MachineError(f"{self._path}: more than {MAX_MEMBERS} members, not a capture")
            if not (member.isfile() or member.isdir() or member.issym()):
                continue  # devices, pipes and hard links are in no capture
            name = self._member_name(member.name)
            if name:
                self._add(archive, member, name)
            # The archive keeps every header it has seen, which would be most of the memory.
            vars(archive)["members"] = []
        if not count:
            raise MachineError(f"{self._path}: an empty archive; copy it again from the machine")
        name = self._path.name
        for suffix in sorted(_SUFFIXES, key=len, reverse=True):
            name = name.removesuffix(suffix)
        return ArchiveTree(name, self._files, self._links, self._directories)

    def _member_name(self, raw: str) -> str:
        parts = [part for part in raw.split("/") if part not in ("", ".")]
        if ".." in parts or raw.startswith("/"):
            raise MachineError(
                f"{self._path}: member {raw[:80]!r} points out of the archive; "
                "a capture has relative names only"
            )
        if len(raw) > MAX_PATH_LENGTH or len(parts) > MAX_DEPTH:
            raise MachineError(f"{self._path}: member {raw[:80]!r}... is too long or too deep")
        return "/".join(parts)

    def _add(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        if member.isdir():
            self._directories.setdefault(name, set())
        elif member.issym():
            self._links[name] = member.linkname[:MAX_PATH_LENGTH]
        else:
            # A header may claim any size: what counts is checked before anything is read.
            if member.size > MAX_FILE_BYTES or member.size > self._left:
                raise MachineError(
                    f"{self._path}: member {name!r} has {member.size} bytes; a capture has at most "
                    f"{MAX_FILE_BYTES >> 20} MiB in a file and {MAX_TOTAL_BYTES >> 20} MiB in all"
                )
            self._left -= member.size
            content = archive.extractfile(member)
            self._files[name] = content.read() if content is not None else b""
        while name:
            parent, _, last = name.rpartition("/")
            names = self._directories.setdefault(parent, set())
            if last in names:
                break
            names.add(last)
            name = parent


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _suffixes() -> str:
    return ", ".join(_SUFFIXES)
