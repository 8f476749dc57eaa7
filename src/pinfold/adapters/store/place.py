"""The files of a record: whose they are, how the first comes to be, whether they are still there.

Beside ``FILE`` are SQLite's ``FILE-wal`` (what was committed last) and ``FILE-shm`` (an index of
that, of no worth without it), ``FILE.lock`` (who holds the record), ``FILE.generation`` (how much
it is known to hold; :mod:`pinfold.adapters.store.promise`), and for the moment of the first start
``FILE.new``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pinfold.adapters.store.schema import REMEDY
from pinfold.linux.durable import sync_folder
from pinfold.linux.folders import Purpose, check_own, make_folder, remove_made
from pinfold.linux.locks import SECOND_AGENT, HeldError, Lock, lock
from pinfold.ports.errors import PortError, StoreError

_PURPOSE: Final = Purpose("the record", "name another --state-dir")
_RIGHTS: Final = "see the rights of the file and its folder, and that the disk is writable"
_DISK: Final = "see the disk, and what the kernel says of it (dmesg)"
_SPACE: Final = "free some space"
_REMEDIES_OF_SYSTEM: Final = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.EIO: _DISK,
}
_REMEDIES_OF_SQLITE: Final = (
    ("SQLITE_FULL", _SPACE),
    ("SQLITE_READONLY", _RIGHTS),
    ("SQLITE_CANTOPEN", _RIGHTS),
    ("SQLITE_PERM", _RIGHTS),
    ("SQLITE_CORRUPT", REMEDY),
    ("SQLITE_NOTADB", REMEDY),
    ("SQLITE_BUSY", "some other program has it open: end that"),
    ("SQLITE_IOERR", _DISK),
)


class Ownership:
    """The right to write a record, until :meth:`release` or the end of the process.

    Raises:
        StoreError: another process has it, or another user could replace what is written.
        OSError: the folder or the lock cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[Path, tuple[int, int]] = {}
        self._lock_path = Path(f"{path}.lock")
        self._made: list[Path] = []
        self._before: frozenset[str] | None = None
        self._lock: Lock | None = None
        try:
            self._make_folder()
            self._lock = lock(self._lock_path, self._open)
        except HeldError as held:
            remove_made(self._made)
            raise StoreError(
                f"{path}: another agent has it open{_who(path, held)}",
                f"stop that one, or {SECOND_AGENT}",
            ) from None
        except PortError as error:
            raise StoreError(error.problem, error.remedy) from None
        with contextlib.suppress(OSError):  # it is for messages only, and the disk may be full
            os.ftruncate(self._lock.descriptor, 0)
            os.pwrite(self._lock.descriptor, b"%d\n" % os.getpid(), 0)

    def _make_folder(self) -> None:
        made = make_folder(self._path.parent, _PURPOSE)
        self._made += made
        for folder in made:
            sync_folder(folder.parent)
        check_own(self._path.parent, _PURPOSE)

    def _open(self) -> int:
        if not self._path.parent.exists():
            self._make_folder()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._lock_path, flags, 0o600)

    @property
    def began(self) -> bool:
        """Whether there was no record, and :meth:`begin` was called."""
        return self._before is not None

    def begin(self) -> None:
        """Note what is in the folder, for :meth:`undo`, before there is a record."""
        names = {path.name for path in self._path.parent.iterdir()}
        self._before = frozenset(names - {self._lock_path.name})

    def undo(self) -> None:
        """Remove the record, if this process has made it, and all that came into its folder since.

        Raises:
            OSError: something cannot be removed.
        """
        if self._before is None or self._lock is None or not self._lock.in_place:
            return
        folder = self._path.parent
        for path in folder.iterdir():
            if path.name in self._before or path == self._lock_path:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self._lock_path.unlink()
        remove_made(self._made)

    def remember(self) -> None:
        """Note which files these are, once all of them are there; raises OSError."""
        for path in (self._path, log_of(self._path), self._lock_path):
            self._known[path] = _identity(path)

    def check(self) -> None:
        """Make sure that what is written now will be found at the next start.

        SQLite would go on to write to a file that has lost its name.

        Raises:
            StoreError: one of the files was removed or replaced.
        """
        for path, identity in self._known.items():
            try:
                now = _identity(path)
            except FileNotFoundError:
                now = None
            if now != identity:
                raise StoreError(
                    f"{path}: {'removed' if now is None else 'replaced'} while the agent has it "
                    "open",
                    "put it back, or restart the agent",
                )

    def release(self) -> None:
        """Let others have it; again is no error."""
        if self._lock is not None:
            self._lock.release()


def log_of(path: Path) -> Path:
    """SQLite's write-ahead log of a database."""
    return Path(f"{path}-wal")


def is_there(path: Path) -> bool:
    """Whether there is a record; what is there is looked at without opening it.

    Closing a descriptor of our own would drop the locks that SQLite has on the file in the same
    process (fcntl(2), "traditional record locks").

    Raises:
        StoreError: it cannot be a record.  An empty file is none: the first start gives the file
            its name when it is complete, and SQLite would throw the log beside an empty one away.
        OSError: it cannot be looked at.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        log = log_of(path)
        if log.exists() and log.stat().st_size:
            raise StoreError(
                f"{path}: there is none, but {log}, which belongs to it",
                "put the file back where it was, or move the other away as well",
            ) from None
        return False
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path}: not a regular file", "name another --state-dir")
    if status.st_size == 0:
        raise StoreError(f"{path}: empty, which a record never is", REMEDY)
    return True


def check_private(path: Path) -> None:
    """Refuse a record that others may have written; keep them from reading it.

    Raises:
        StoreError: its owner is not the user of this process, or others may write.
        OSError: the mode cannot be changed.
    """
    status, user = path.stat(), os.geteuid()
    if status.st_uid != user:
        raise StoreError(
            f"{path}: belongs to user {status.st_uid}, but the agent runs as user {user}",
            f"run it as that user, or chown {user} the file",
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(f"{path}: others than its owner may write it", f"chmod 600 {path}")
    if stat.S_IMODE(status.st_mode) != 0o600:
        path.chmod(0o600)


def create(path: Path, fill: Callable[[Path], None]) -> None:
    """Make the first file of a record: complete and on the disk, or not at all.

    Raises:
        OSError: there is no room or no right.
        sqlite3.Error: the same.
    """
    new = Path(f"{path}.new")
    leftovers = (new, *(Path(f"{new}-{kind}") for kind in ("journal", "wal", "shm")))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    try:
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        fill(new)
        new.replace(path)
    except BaseException:
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system say into one error with a remedy.

    Raises:
        StoreError: in place of ``sqlite3.Error`` and ``OSError``.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}", _remedy(error)) from None
    except UnicodeDecodeError:  # how some versions of Python name a text that is none
        raise StoreError(f"{path}: corrupt: a text that is no UTF-8", REMEDY) from None
    except OSError as error:
        raise StoreError(
            f"{error.filename or path}: {error.strerror or error}",
            _REMEDIES_OF_SYSTEM.get(error.errno or 0, "see the folder of the record"),
        ) from None


def _remedy(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    for prefix, remedy in _REMEDIES_OF_SQLITE:
        if name.startswith(prefix):
            return remedy
    return REMEDY if "decode" in str(error) else ""


def _who(path: Path, held: HeldError) -> str:
    """The process that has it: as the kernel tells, else as it has written itself."""
    if held.who:
        return held.who
    try:
        text = Path(f"{path}.lock").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return f" (process {text})" if text.isdecimal() else ""


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
