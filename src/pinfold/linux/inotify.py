"""The kernel's inotify: what others write in folders, of cgroups and of our own (``inotify(7)``).

The kernel's cgroup files send IN_MODIFY for what processes write into them.  What it changes itself
(effective CPUs after a hotplug) it does not tell, but for ``cgroup.events`` and
``cpuset.cpus.partition``.  A watched folder that is removed is told by its parent only.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.ports.errors import NoRoomError

_MODIFY: Final = 0x2
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_FOLDERS: Final = 0x1000000
_NAMES: Final = _MOVED_TO | _CREATE | _DELETE | _ONLY_FOLDERS
_WATCHED: Final = _MODIFY | _NAMES
_HEADER: Final = struct.Struct("iIII")
_BUFFER: Final = 65536
_REMEDY: Final = "raise fs.inotify.max_user_watches and fs.inotify.max_user_instances with sysctl"


class Event(Struct, frozen=True):
    """Something happened to ``name`` in ``folder``; no folder: events were lost."""

    folder: Path | None
    name: str
    created: bool = False
    deleted: bool = False


class Inotify:
    """Watches folders, not what is below them.

    Raises:
        NoRoomError: the kernel has no room for one more.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folders: dict[int, Path] = {}
        self._numbers: dict[Path, int] = {}
        self.descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise NoRoomError(f"inotify: {os.strerror(ctypes.get_errno())}", _REMEDY)

    def watch(self, folder: Path, *, contents: bool = True) -> bool:
        """Watch a folder; False when it is not there; raises NoRoomError.

        Without ``contents`` only what comes there and goes, not what is written to it.
        """
        mask = _WATCHED if contents else _NAMES
        number = self._libc.inotify_add_watch(self.descriptor, os.fsencode(folder), mask)
        if number >= 0:
            self._folders[number] = folder
            self._numbers[folder] = number
            return True
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return False
        raise NoRoomError(f"{folder}: inotify: {error.strerror}", _REMEDY)

    def forget(self, folder: Path) -> None:
        """Watch a folder that was removed, and those below it, no longer."""
        for known in [one for one in self._numbers if one == folder or folder in one.parents]:
            number = self._numbers.pop(known)
            self._folders.pop(number, None)
            self._libc.inotify_rm_watch(self.descriptor, number)

    def events(self) -> list[Event]:
        """What has happened since; nothing waits here."""
        try:
            data = os.read(self.descriptor, _BUFFER)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            number, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            folder = self._folders.get(number)
            if mask & _OVERFLOW:
                found.append(Event(None, ""))
            elif folder is not None and not mask & _IGNORED:
                found.append(Event(folder, name, bool(mask & _CREATE), bool(mask & _DELETE)))
        return found

    def close(self) -> None:
        """Watch nothing any more."""
        os.close(self.descriptor)
