"""Hearing of the number that a container writes into its file; nothing in there is trusted."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pinfold.linux.inotify import Event, Inotify

PAUSE: Final = 0.01
"""Seconds between two looks at what was written: a flood of writes gets a tenth of the agent."""

_MOST: Final = 24
"""Bytes that are looked at: a number of 19 digits, and the end of a line."""

_LARGE: Final = 1 << 16
"""Bytes; a page of some kernels."""

_BLOCK: Final = 512
"""Bytes of one of ``st_blocks``."""


class Acknowledgements:
    """Watches folders with one inotify of the kernel, as long as somebody waits for one."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._waiting: defaultdict[Path, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def watched(self, folder: Path) -> Iterator[asyncio.Event]:
        """An event that is set whenever something may have changed in a folder, and at first.

        Raises:
            NoRoomError: the kernel has no room to watch it.
        """
        if self._inotify is None:
            self._inotify = Inotify()
            self._listen()
        changed = asyncio.Event()
        changed.set()
        self._waiting[folder].add(changed)
        try:
            self._inotify.watch(folder)
            yield changed
        finally:
            self._leave(folder, changed)

    def _leave(self, folder: Path, changed: asyncio.Event) -> None:
        self._waiting[folder].discard(changed)
        if not self._waiting[folder]:
            del self._waiting[folder]
            if self._inotify is not None:
                self._inotify.forget(folder)
        if not self._waiting and self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.descriptor)
            self._inotify.close()
            self._inotify = None

    def _listen(self) -> None:
        if self._inotify is None:
            return
        try:
            asyncio.get_running_loop().add_reader(self._inotify.descriptor, self._look)
        except OSError:
            # The kernel has no room to tell of it: it is looked at unasked until it has.
            self._look()

    def _look(self) -> None:
        if self._inotify is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._inotify.descriptor)
        began = loop.time()
        self._pass_on(self._inotify.events())
        loop.call_later(max(PAUSE, 9 * (loop.time() - began)), self._listen)

    def _pass_on(self, events: Iterable[Event]) -> None:
        for event in events:
            # No folder: the kernel has lost some.
            for folder in list(self._waiting) if event.folder is None else [event.folder]:
                for changed in self._waiting.get(folder, ()):
                    changed.set()


def number_in(path: Path) -> int | None:
    """The number in a file that somebody else writes; None for anything else, whatever it is.

    A link is not followed, a device or a FIFO not opened, and of a large file little is read.
    """
    with suppress(OSError), _opened(path, os.O_RDONLY) as descriptor:
        data = os.read(descriptor, _MOST)
        text = data.strip()
        if text.isdigit() and len(data) < _MOST:
            return int(text)
    return None


def cut(path: Path) -> bool:
    """Empty a file of somebody else that takes more room than a number; whether it did."""
    with suppress(OSError):
        status = path.lstat()
        # There may be room behind its end.
        if max(status.st_size, status.st_blocks * _BLOCK) > _LARGE:
            with _opened(path, os.O_WRONLY) as descriptor:
                os.ftruncate(descriptor, 0)
            return True
    return False


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A file's descriptor; raises OSError, also where it is not a regular one."""
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        # What was looked at is what is opened.
        flags |= os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(f"/proc/self/fd/{place}", flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    finally:
        os.close(place)
