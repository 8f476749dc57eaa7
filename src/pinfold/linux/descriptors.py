"""The files that this process may have open: as many as it may, and some kept for what must go on.

Ending a pod, reading a cpuset, writing the record and answering a request all take a file for a
moment.  So nothing that stays open (a container that is watched, a connection) is let in when only
those few are left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import Final

from pinfold.ports.errors import NoRoomError

FILE_LIMIT: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The soft limit on open files that this process came with, and that containers get."""

RESERVE: Final = 24
"""Files that no container may take."""

LAST: Final = 12
"""Those of them that no connection may take."""

NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the kernel says when it is short of files or memory: it says nothing of what was asked."""

_FOLDER: Final = "/proc/self/fd"


def gone_or_raise(path: object, error: OSError) -> None:
    """Take a failure for the end of what was read; NoRoomError if it says nothing of that."""
    if error.errno in NO_ROOM:
        raise no_room(path, error) from None


def no_room(path: object, error: OSError) -> NoRoomError:
    """What was not read, and the remedy."""
    remedy = "raise LimitNOFILE (ulimit -n), or free memory"
    return NoRoomError(f"{path}: {error.strerror or error}", remedy)


def raise_file_limit() -> None:
    """Let this process have as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Above the kernel's fs.nr_open even the hard limit is refused; then what we have must do.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def file_limit() -> int:
    """How many files this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def open_files() -> int:
    """How many files this process has open, as far as it can see."""
    try:
        return len(os.listdir(_FOLDER)) - 1  # noqa: PTH208 - names are enough; one is the listing's
    except OSError:
        return file_limit()  # not even the folder can be opened


def lack_of_files(wanted: int) -> str:
    """Why ``wanted`` more files cannot stay open; "" when they can."""
    limit, used = file_limit(), open_files()
    if used + wanted + RESERVE <= limit:
        return ""
    return (
        f"of the {limit} files that the agent may have open, {used} are, {wanted} more would stay, "
        f"and {RESERVE} are kept for what must go on"
    )


def is_of_the_last(descriptor: int) -> bool:
    """Whether a connection that was just accepted has one of the last files.

    The kernel gives the lowest number that is free, so all below are in use.
    """
    return descriptor >= file_limit() - LAST
