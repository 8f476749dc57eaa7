"""A small file under a lock: who runs on which CPUs where no agent looks after them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pinfold.core.cpuset import CPUSet
from pinfold.node.port_errors import PortError

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class RosterError(PortError):
    """The list cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Entry:
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


class Roster:
    """The list in ``path``; a folder for the user alone is made for it.

    Args:
        path: the file; its lock is beside it.
        remedy: what to do where it cannot be used.
    """

    def __init__(self, path: Path, *, remedy: str = "") -> None:
        self._path = path
        self._remedy = remedy

    @contextlib.contextmanager
    def locked(self) -> Iterator[dict[str, Entry]]:
        """The living entries by uid; what is left in the dictionary at the end is written.

        Nothing is written when the block raises.

        Raises:
            RosterError: the folder belongs to somebody else, or cannot be written.
        """
        try:
            lock = self._lock()
        except OSError as error:
            raise RosterError(f"{self._path}: {error.strerror}", self._remedy) from None
        try:
            entries = self._read()
            yield entries
            self._write(entries)
        finally:
            os.close(lock)

    def _lock(self) -> int:
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise RosterError(f"{folder}: belongs to another user", self._remedy)
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock

    def _read(self) -> dict[str, Entry]:
        """What lives; a list of another boot, or one that is damaged, speaks of nobody."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["boot"] != _boot():
                return {}
            entries = {uid: Entry(**fields) for uid, fields in document["entries"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        return {
            uid: entry for uid, entry in entries.items() if start_of(entry.pid) == entry.started
        }

    def _write(self, entries: dict[str, Entry]) -> None:
        document = {"boot": _boot(), "entries": {uid: asdict(e) for uid, e in entries.items()}}
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(document), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            raise RosterError(f"{self._path}: {error.strerror}", self._remedy) from None


def start_of(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None when it is gone, or a zombie.

    One whose first thread has ended is no zombie as long as others run.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        has_ended = fields[0] in (b"Z", b"X") and os.listdir(f"/proc/{pid}/task") == [str(pid)]  # noqa: PTH208 - names only
    except OSError:
        return None
    return None if has_ended else int(fields[19])


def _boot() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""
