"""Files that others change: a person, or a kubelet that swaps the folder of a mounted ConfigMap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Container, Iterable, Sequence
from pathlib import Path
from typing import Final

from pinfold.linux.inotify import Event, Inotify
from pinfold.ports.errors import PortError

SETTLED: Final = 0.1
"""Seconds without a change after which files belong together."""

_MOST_WAITS: Final = 20
"""How often that is waited for, where changes do not end."""


async def looks_at(files: Iterable[Path]) -> AsyncGenerator[bool, None]:
    """Yield when files are to be read: now (True), and whenever something has changed.

    A folder of theirs that is moved, or becomes another one, is followed by its name.

    Raises:
        NoRoomError: the kernel cannot watch one more folder.
        PortError: a folder is not there.
    """
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    inotify = Inotify()

    def has_changed() -> bool:
        news.clear()
        events = inotify.events()
        is_another = _is_another(events, folders)
        if is_another:
            for folder in folders:
                inotify.forget(folder)
                inotify.watch(folder)
        return is_another or any(one.folder in folders for one in events)

    try:
        folders = {file.parent for file in files}
        for folder in folders:
            if not inotify.watch(folder):
                raise PortError(f"{folder}: there is no such folder", "make it, or mount it")
        for above in {folder.parent for folder in folders} - folders:
            # Only the folder above tells that one was moved, or is another one; it tells of others,
            # too, and may never be at rest.
            inotify.watch(above, contents=False)
        loop.add_reader(inotify.descriptor, news.set)
        try:
            yield True
            while True:
                await news.wait()
                if not has_changed():
                    continue
                for _ in range(_MOST_WAITS):
                    await asyncio.sleep(SETTLED)
                    if not has_changed():
                        break
                yield False
        finally:
            loop.remove_reader(inotify.descriptor)
    finally:
        inotify.close()


def _is_another(events: Sequence[Event], folders: Container[Path]) -> bool:
    """Whether a folder of that name was made, moved or removed; or nobody knows."""
    return any(one.folder is None or one.folder / one.name in folders for one in events)
