"""A small file under a lock: who runs on which CPUs where no agent looks after them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.boot_file import BootFile, BootRecord
from pinfold.linux.folders import Purpose, check_own, make_folder
from pinfold.linux.locks import HeldError, Lock, lock
from pinfold.linux.processes import began, boot_id
from pinfold.ports.errors import PortError

_PATIENCE: Final = 60.0
"""Seconds for other commands, each of which has the list for a moment."""


class RunRecordError(PortError):
    """The list cannot be read or written."""


class Entry(Struct, frozen=True):
    """One command: its process, its exclusive CPUs (None: shared), its pod as JSON.

    ``started`` is the process's start time in clock ticks, by which a pid that is used again is
    told from the one that was meant.
    """

    pid: int
    started: int
    cpus: str | None
    manifest: str

    @property
    def exclusive(self) -> CPUSet | None:
        """The CPUs as a set."""
        return None if self.cpus is None else CPUSet.parse(self.cpus)


class _Entries(BootRecord, frozen=True, kw_only=True):
    """The file: commands by the uids of their pods."""

    entries: dict[str, Entry]


class RunRecord:
    """The list in ``path``, with its lock beside it; a folder for the user alone is made for it.

    ``remedy`` is what to do where it cannot be used.
    """

    def __init__(self, path: Path, *, remedy: str = "") -> None:
        self._path = path
        self._remedy = remedy
        self._file = BootFile(
            path,
            _Entries,
            "list of commands",
            "remove the file when no pinfold run goes on",
            elsewhere=remedy,
            error=RunRecordError,
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[dict[str, Entry]]:
        """The living entries by uid; what is left in the dictionary at the end is written.

        Nothing is written when the block raises.  Where nobody is left, there is no file, and no
        lock: the last command leaves nothing behind.

        Raises:
            RunRecordError: another user could replace the folder, or the list cannot be read or
                written: nobody knows who has which CPUs.
        """
        held = self._lock()
        try:
            entries = self._living()
            yield entries
            if entries:
                # It speaks of processes, which do not survive the machine either.
                self._file.save(_Entries(boot=boot_id(), entries=entries), sync=False)
            else:
                self._file.remove()
        finally:
            held.leave(self._path)

    def _living(self) -> dict[str, Entry]:
        record = self._file.load()
        entries = {} if record is None else record.entries
        try:
            return {uid: one for uid, one in entries.items() if began(one.pid) == one.started}
        except PortError as error:
            raise RunRecordError(error.problem, error.remedy) from None

    def _lock(self) -> Lock:
        purpose = Purpose("the list", self._remedy)
        try:
            make_folder(self._path.parent, purpose)
            check_own(self._path.parent, purpose)
            path = Path(f"{self._path}.lock")
            return lock(path, lambda: _opened(path), patience=_PATIENCE)
        except HeldError as held:
            raise RunRecordError(
                f"{self._path}: another command{held.who} has it since {_PATIENCE:g} s",
                "see what that does",
            ) from None
        except PortError as error:
            raise RunRecordError(error.problem, error.remedy) from None
        except OSError as error:
            raise RunRecordError(f"{self._path}: {error.strerror}", self._remedy) from None


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)
