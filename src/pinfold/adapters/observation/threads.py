"""How long the threads of a container wait for a CPU, where the kernel counts it for each of them.

The list of a cgroup's threads is the dearest file that is read: the kernel makes it anew each time,
and it can only be opened for that.  Their number (``pids.current``) is one count.  As long as it is
the same, and each thread that was listed is there, they are the same threads; only if as many were
moved into the cgroup as out of it they are not, so the list is read again every now and then.
Source: the kernel's ``cgroup-v1/pids.rst``, ``cgroup-v2.rst``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pinfold.adapters.observation.thread_waits import ThreadWaits
from pinfold.linux.kept_file import KeptFile, KeptFolder
from pinfold.linux.kernel_files import descendants, read_ids

MEMBERS: Final = {1: "tasks", 2: "cgroup.threads"}
"""The file that lists the threads of a cgroup, by the version of cgroups."""

LISTED_AFTER: Final = 16
"""Looks after which the threads are listed again, whatever their number says."""


class MemberWaits:
    """The waits of the threads that are in a cgroup, or below it, as one number that only grows.

    Args:
        folder: the cgroup.
        listing: its file that lists threads.
        number: ``pids.current`` of the container; None where there is none, and they are listed at
            each look.
        waits: what follows them.
    """

    def __init__(
        self, folder: Path, listing: str, number: KeptFile | None, waits: ThreadWaits
    ) -> None:
        self._folder = str(folder)
        self._kept = KeptFolder(folder)
        self._listing = listing
        self._number = number
        self._waits = waits
        self._known: int | None = None
        self._looks = 0

    @property
    def unseen(self) -> int:
        """Threads that are not followed."""
        return self._waits.unseen

    def look(self) -> int:
        """Nanoseconds; see :class:`ThreadWaits`.  Raises OSError once the cgroup is gone."""
        # Counted before they are listed: who comes in between makes the next number another one.
        count = self._count()
        self._looks += 1
        if count is not None and count == self._known and self._looks < LISTED_AFTER:
            again = self._waits.look_again()
            if again is not None:
                return again
        self._looks = 0
        waited = self._waits.look(self._tids())
        # Who has ended and was not waited for is counted, and not listed.
        self._known = count if count == self._waits.followed else None
        return waited

    def _count(self) -> int | None:
        if self._number is None:
            return None
        try:
            return int(self._number.read())
        except FileNotFoundError:
            self._number = None
            return None

    def _tids(self) -> Iterable[int]:
        # Opened each time: the kernel of cgroup v1 keeps a list for as long as it is asked for it.
        if self._kept.has_folders:
            below = descendants(self._folder)
            return [tid for one in below for tid in read_ids(f"{one}/{self._listing}")]
        return [int(word) for word in self._kept.read(self._listing).split() if word != b"0"]

    def close(self) -> None:
        """Let go of all files."""
        self._kept.close()
        self._waits.close()
        if self._number is not None:
            self._number.close()
