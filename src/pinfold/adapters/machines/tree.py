"""Trees of ``/sys`` and ``/proc`` files: this machine, a directory, or a tar archive.

Paths are relative to the root, without a leading slash (``sys/devices/system/cpu/online``).
Nothing outside the tree is ever read: symbolic links are resolved inside it, as after a chroot.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from pinfold.core.machine.machine import MachineError

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Largest file that is read; ``/proc/cpuinfo`` of 4096 CPUs has about 6 MB."""

CPU_DIRECTORY: Final = "sys/devices/system/cpu"

_MAX_LINKS: Final = 40
"""As the kernel's limit (path_resolution(7))."""


class Tree(Protocol):
    """A readable tree.  A missing file is no error: the rules of discovery say what it means."""

    name: str
    live: bool

    def read(self, path: str) -> str | None:
        """The text of a regular file, or None where there is none that can be read."""

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted; empty where there is no directory."""

    def is_file(self, path: str) -> bool:
        """Whether ``path`` is a regular file (or a link to one)."""

    def is_directory(self, path: str) -> bool:
        """Whether ``path`` is a directory (or a link to one)."""

    def real_path(self, path: str) -> str:
        """The path without links; "" if there is none."""


class LiveTree:
    """The running kernel's own files, below ``/``."""

    def __init__(self, name: str = "this machine") -> None:
        self.name = name
        self.live = True

    def read(self, path: str) -> str | None:
        """See :class:`Tree`.  A file that the kernel refuses to read counts as missing."""
        return _read_file(f"/{path}")

    def names(self, path: str) -> tuple[str, ...]:
        """See :class:`Tree`."""
        try:
            return tuple(sorted(os.listdir(f"/{path}")))  # noqa: PTH208 - speed: 1000s of calls
        except OSError:
            return ()

    def is_file(self, path: str) -> bool:
        """See :class:`Tree`."""
        return os.path.isfile(f"/{path}")  # noqa: PTH113 - speed, as above

    def is_directory(self, path: str) -> bool:
        """See :class:`Tree`."""
        return os.path.isdir(f"/{path}")  # noqa: PTH112 - speed, as above

    def real_path(self, path: str) -> str:
        """See :class:`Tree`."""
        return os.path.realpath(f"/{path}").lstrip("/")


class LinkedTree(ABC):
    """A tree whose symbolic links are resolved here, component by component.

    An absolute target starts at the root of the tree, and ``..`` ends there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.live = False
        self._resolved: dict[str, str | None] = {"": ""}

    @abstractmethod
    def link_target(self, path: str) -> str | None:
        """The target if ``path``, whose parent has no links, is a symbolic link."""

    @abstractmethod
    def read_plain(self, path: str) -> str | None:
        """Read a path without links in it."""

    @abstractmethod
    def names_plain(self, path: str) -> Iterable[str]:
        """List a path without links in it."""

    @abstractmethod
    def is_file_plain(self, path: str) -> bool:
        """Whether a path without links is a regular file."""

    @abstractmethod
    def is_directory_plain(self, path: str) -> bool:
        """Whether a path without links is a directory."""

    def resolve(self, path: str) -> str | None:
        """The path without links, or None for a loop of links."""
        if path in self._resolved:
            return self._resolved[path]
        parent, _, last = path.rpartition("/")
        base = self.resolve(parent)
        result = None if base is None else self._follow(base, last)
        self._resolved[path] = result
        return result

    def _follow(self, base: str, path: str) -> str | None:
        """``path`` from ``base``, which has no links."""
        done = base.split("/") if base else []
        todo = [path]
        links = 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                del done[-1:]
                continue
            done.append(name)
            target = self.link_target("/".join(done))
            if target is not None:
                links += 1
                if links > _MAX_LINKS:
                    return None
                del done[0 if target.startswith("/") else -1 :]
                todo.extend(reversed(target.split("/")))
        return "/".join(done)

    def read(self, path: str) -> str | None:
        """See :class:`Tree`."""
        plain = self.resolve(path)
        return None if plain is None else self.read_plain(plain)

    def names(self, path: str) -> tuple[str, ...]:
        """See :class:`Tree`."""
        plain = self.resolve(path)
        return () if plain is None else tuple(sorted(self.names_plain(plain)))

    def is_file(self, path: str) -> bool:
        """See :class:`Tree`."""
        plain = self.resolve(path)
        return plain is not None and self.is_file_plain(plain)

    def is_directory(self, path: str) -> bool:
        """See :class:`Tree`."""
        plain = self.resolve(path)
        return plain is not None and self.is_directory_plain(plain)

    def real_path(self, path: str) -> str:
        """See :class:`Tree`."""
        return self.resolve(path) or ""


class DirectoryTree(LinkedTree):
    """A tree in a directory of the file system."""

    def __init__(self, root: Path, name: str) -> None:
        super().__init__(name)
        self._root = os.fspath(root)
        self._links: dict[str, Mapping[str, bool]] = {}

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _entries(self, path: str) -> Mapping[str, bool]:
        """Name -> whether it is a link, of a directory without links in its path."""
        known = self._links.get(path)
        if known is None:
            try:
                with os.scandir(self._full(path)) as entries:
                    known = {entry.name: entry.is_symlink() for entry in entries}
            except OSError:
                known = {}
            self._links[path] = known
        return known

    def link_target(self, path: str) -> str | None:
        """See :class:`LinkedTree`."""
        parent, _, last = path.rpartition("/")
        if not self._entries(parent).get(last, False):
            return None
        try:
            return os.readlink(self._full(path))  # noqa: PTH115 - a str is wanted
        except OSError:
            return None

    def read_plain(self, path: str) -> str | None:
        """See :class:`LinkedTree`."""
        parent, _, last = path.rpartition("/")
        return _read_file(self._full(path)) if last in self._entries(parent) else None

    def names_plain(self, path: str) -> Iterable[str]:
        """See :class:`LinkedTree`."""
        return self._entries(path)

    def is_file_plain(self, path: str) -> bool:
        """See :class:`LinkedTree`."""
        return stat.S_ISREG(_mode(self._full(path)))

    def is_directory_plain(self, path: str) -> bool:
        """See :class:`LinkedTree`."""
        return stat.S_ISDIR(_mode(self._full(path)))


def missing_cpu_directory(source: object) -> MachineError:
    """The error for a tree that is no capture of a machine."""
    return MachineError(
        f"{source}: no {CPU_DIRECTORY} in it, so it is no capture of a machine; "
        "make one with 'pinfold capture -o node.tar.xz' on the machine itself"
    )


def find_machine(tree: Tree, source: object) -> str:
    """Where in a tree a capture is: "" for its root, else the one directory that holds ``sys``.

    Raises:
        MachineError: there is none, or more than one.
    """
    if tree.is_directory(CPU_DIRECTORY):
        return ""
    tops = [name for name in tree.names("") if tree.is_directory(f"{name}/{CPU_DIRECTORY}")]
    if not tops:
        raise missing_cpu_directory(source)
    if len(tops) > 1:
        shown = ", ".join(tops[:5]) + (", ..." if len(tops) > 5 else "")
        raise MachineError(f"{source}: holds {len(tops)} captures ({shown}); name one of them")
    return tops[0]


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError):
        return 0


def _read_file(path: str) -> str | None:
    try:
        # Not blocking: a pipe in a directory that somebody sends must not hang us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    parts: list[bytes] = []
    size = 0
    try:
        # Until nothing comes: procfs gives its files in pieces of any length.
        while part := os.read(descriptor, 65536):
            parts.append(part)
            size += len(part)
            if size > MAX_FILE_BYTES:
                raise MachineError(f"{path}: more than {MAX_FILE_BYTES} bytes, so no sysfs file")
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace")
