"""A file system of its own for what containers can make large: none fills the disk of the record.

It is a tmpfs with a limit, mounted while there is something in it, by whoever may mount, where the
runtime sees it as well: below a mount that is shared with the machine's other mount namespaces.
It outlives the agent like the containers that have mounted folders of it, and no boot.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from pinfold.linux.mounting import UNTRUSTED, mount, mounts_below, unmount
from pinfold.linux.mounts import mounts

_KIND: Final = "tmpfs"
_SIZE: Final = 64 << 20
"""Bytes: each container has four pages in it."""


def mount_at(folder: Path) -> None:
    """Mount it on a folder that is there and empty; nothing where that cannot be.

    Containers that run have mounted what is in a folder, and would be told nothing any more.
    """
    with suppress(OSError):
        place = folder.resolve()
        if next(place.iterdir(), None) is not None:
            return
        above = [found for found in mounts() if place.is_relative_to(found.path)]
        on = max(reversed(above), key=lambda found: len(found.path.parts))
        # Something of its own is there, from this agent or one before, or the operator's.
        if on.path != place and on.is_shared:
            mount(_KIND, place, f"size={_SIZE},mode=0755", UNTRUSTED)


def unmount_from(folder: Path) -> None:
    """Take it away when nothing is left in it."""
    with suppress(OSError):
        place = folder.resolve()
        if next(place.iterdir(), None) is not None:
            return
        if any(one.path == place and one.kind == _KIND for one in mounts_below(place)):
            unmount(place)
