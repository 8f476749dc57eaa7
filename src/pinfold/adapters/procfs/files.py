"""Reading the kernel's files below a root: ``/``, or a captured tree."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import PortError

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Largest file that is read; ``mountinfo`` of a node with thousands of mounts has about 1 MB."""

_T = TypeVar("_T")


class SnapshotError(PortError):
    """A file of the kernel that cannot be understood, or a tree that is none of a kernel."""


class KernelFiles:
    """The files below ``root``; paths begin with a slash, as on the machine itself.

    A file that is not there, or vanishes while it is read, is None.  What was refused is counted
    in ``refused``, because what is not seen must not pass for what is not there.
    """

    def __init__(self, root: Path | str = "/") -> None:
        self._prefix = os.fspath(root).rstrip("/")
        self.refused: list[str] = []

    @property
    def is_live(self) -> bool:
        """Whether these are the running kernel's own files."""
        return not self._prefix

    def text(self, path: str) -> str | None:
        """The content of a file; bytes that are no UTF-8 are replaced.

        Raises:
            SnapshotError: more than ``MAX_FILE_BYTES``.
        """
        try:
            # Not blocking: a pipe in a tree that somebody sends must not hang the audit.
            descriptor = os.open(
                f"{self._prefix}{path}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except (OSError, ValueError) as error:
            self._note(path, error)
            return None
        parts: list[bytes] = []
        size = 0
        try:
            while part := os.read(descriptor, 65536):
                parts.append(part)
                size += len(part)
                if size > MAX_FILE_BYTES:
                    raise SnapshotError(f"{path}: more than {MAX_FILE_BYTES} bytes")
        except OSError as error:
            self._note(path, error)
            return None
        finally:
            os.close(descriptor)
        return b"".join(parts).decode("utf-8", "replace")

    def names(self, path: str) -> list[str]:
        """The names in a directory, in no order; none where it cannot be listed."""
        try:
            return os.listdir(f"{self._prefix}{path}")  # noqa: PTH208 - thousands of calls
        except (OSError, ValueError) as error:
            self._note(path, error)
            return []

    def folders(self, path: str) -> list[str]:
        """The names of the directories in a directory; links are not followed."""
        try:
            with os.scandir(f"{self._prefix}{path}") as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (OSError, ValueError) as error:
            self._note(path, error)
            return []

    def link(self, path: str) -> str | None:
        """Where a symbolic link leads; None where it is none."""
        try:
            return os.readlink(f"{self._prefix}{path}")  # noqa: PTH115 - a str is wanted
        except (OSError, ValueError) as error:
            self._note(path, error)
            return None

    def is_folder(self, path: str) -> bool:
        """Whether there is a directory."""
        return os.path.isdir(f"{self._prefix}{path}")  # noqa: PTH112 - paths are texts here

    def mode(self, path: str) -> int | None:
        """The permission bits of a file."""
        try:
            return os.stat(f"{self._prefix}{path}").st_mode & 0o7777  # noqa: PTH116 - as above
        except (OSError, ValueError):
            return None

    def parsed(self, path: str, parse: Callable[[str], _T]) -> _T | None:
        """What ``parse`` makes of a file.

        Raises:
            SnapshotError: a ``ValueError`` of ``parse``, with the file's path.
        """
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise SnapshotError(
                f"{self._prefix}{path}: {error}", "report what is in the file"
            ) from None

    def cpus(self, path: str) -> CPUSet | None:
        """A file in the list format."""
        return self.parsed(path, parse_list)

    def mask(self, path: str) -> CPUSet | None:
        """A file in the mask format."""
        return self.parsed(path, CPUSet.parse_hex)

    def _note(self, path: str, error: OSError | ValueError) -> None:
        if isinstance(error, PermissionError):
            self.refused.append(path)


def parse_list(text: str) -> CPUSet:
    """The kernel's list format, and ``(null)``, sysfs's for no set at all; raises CPUSetError."""
    return CPUSet() if text.strip() == "(null)" else CPUSet.parse(text)
