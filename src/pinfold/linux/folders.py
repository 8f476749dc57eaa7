"""Folders and the paths to them, which no other user may turn to a place of his own.

Whoever owns a folder, may write there, or owns a symbolic link on the way, decides what is found
behind it.  In a folder such as ``/tmp`` (mode 1777) everybody makes names, and only their owners
remove them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.ports.errors import PortError

_MOST_LINKS: Final = 40
"""As many symbolic links the kernel follows in one path (``path_resolution(7)``)."""


class Purpose(Struct, frozen=True):
    """What a folder is for: ``what`` others could replace, ``elsewhere`` how to name another."""

    what: str
    elsewhere: str


def check_path(folder: Path, purpose: Purpose) -> None:
    """See that nobody but this user and root decides what is found at a path.

    What is missing at its end is not looked at.

    Raises:
        PortError: somebody does; the problem names the folder or the link.
        OSError: it cannot be looked at.
    """
    trusted = _trusted()
    for place, status in _way(folder):
        owner, is_link = status.st_uid, stat.S_ISLNK(status.st_mode)
        if owner not in trusted:
            kind = "a link that " if is_link else ""
            raise PortError(
                f"{place}: {kind}belongs to user {owner}, who could replace {purpose.what}",
                purpose.elsewhere,
            )
        if not is_link and _others_write(status) and not status.st_mode & stat.S_ISVTX:
            raise _writable(place, purpose)


def make_folder(folder: Path, purpose: Purpose, *, mode: int = 0o700) -> list[Path]:
    """Make a folder, and those above it, where they are missing; those that were made here.

    Raises:
        PortError: somebody else decides what is found there; see :func:`check_path`.
        OSError: one cannot be made.
    """
    check_path(folder, purpose)
    made: list[Path] = []
    try:
        for new in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
            try:
                new.mkdir(mode=mode)
            except FileExistsError:
                continue  # somebody else has made it meanwhile: it is looked at below
            made.append(new)
        check_path(folder, purpose)
    except BaseException:
        remove_made(made)
        raise
    return made


def check_own(folder: Path, purpose: Purpose) -> None:
    """See that nobody but this user and root decides what is in a folder.

    In one where everybody makes names (mode 1777, as of a new tmpfs) nobody else may have made any.

    Raises:
        PortError: somebody else does.
        OSError: it cannot be looked at.
    """
    check_path(folder, purpose)
    status = folder.stat()
    if not _others_write(status):
        return
    if not status.st_mode & stat.S_ISVTX:
        raise _writable(folder, purpose)
    with os.scandir(folder) as entries:
        for entry in entries:
            owner = entry.stat(follow_symlinks=False).st_uid
            if owner not in _trusted():
                raise PortError(
                    f"{entry.path}: belongs to user {owner}, in a folder where others may write",
                    f"remove it and chmod go-w {folder}, or {purpose.elsewhere}",
                )


def _trusted() -> set[int]:
    """This user and root; in a user namespace root may be a number that stands for nobody."""
    return {0, os.geteuid(), Path("/").stat().st_uid}


def remove_made(made: list[Path]) -> None:
    """Remove what :func:`make_folder` has made, as far as nothing is in there."""
    for folder in reversed(made):
        try:
            folder.rmdir()
        except OSError:
            return


def _others_write(status: os.stat_result) -> bool:
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid not in {0, os.getegid()}
    return bool(by_group or status.st_mode & stat.S_IWOTH)


def _writable(place: Path, purpose: Purpose) -> PortError:
    return PortError(
        f"{place}: others may write there and could replace {purpose.what}",
        f"chmod go-w {place}, or {purpose.elsewhere}",
    )


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and link on the way to a path, itself included, as far as it is there."""
    here, links = Path("/"), 0
    yield here, here.stat()
    left = list(reversed(path.absolute().parts[1:]))
    while left:
        part = left.pop()
        if part == "..":
            here = here.parent
            continue
        place = here / part
        try:
            status = place.lstat()
        except FileNotFoundError:
            return
        yield place, status
        if not stat.S_ISLNK(status.st_mode):
            here = place
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = place.readlink()
        if target.is_absolute():
            here = Path("/")
        left += reversed([one for one in target.parts if one != "/"])
