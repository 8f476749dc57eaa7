"""The store: one SQLite file, owned by one agent, written in one thread.

WAL with ``synchronous=FULL``: a commit that returned is on the disk.  A second agent is kept out
by a lock on a file beside it, which the kernel lets go when its owner dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from pinfold.adapters.store.rows import REMEDY, read_history, read_record, write_batch
from pinfold.adapters.store.schema import APPLICATION_ID, MIGRATIONS
from pinfold.node.ports import StoreError
from pinfold.node.records import Batch, HistoryEntry, Record

DEFAULT_HISTORY: Final = 10_000
_BUSY_SECONDS: Final = 2.0
_HEADER: Final = b"SQLite format 3\0"
_T = TypeVar("_T")


class SQLiteStore:
    """The :class:`pinfold.node.ports.Store` in a file; make it with :meth:`open`."""

    def __init__(
        self, path: Path, database: sqlite3.Connection, lock: int | None, history_limit: int
    ) -> None:
        self._path = path
        self._database = database
        self._lock = lock
        self._history_limit = history_limit
        # One thread: commits are in order, and an fsync does not hold up the event loop.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")

    @classmethod
    def open(cls, path: Path, *, history_limit: int = DEFAULT_HISTORY) -> SQLiteStore:
        """Open a record, or make an empty one (also of an empty file, which a crash may leave).

        Raises:
            StoreError: it is corrupt, newer than this program, in use, or cannot be written; the
                file is as it was.
        """
        with _explained(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_header(path)
            lock = _own(path)
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                database = _connect(f"file:{_quoted(path)}?mode=rw")
                try:
                    _prepare(database, path)
                except BaseException:
                    database.close()
                    raise
            except BaseException:
                os.close(lock)
                raise
        return cls(path, database, lock, history_limit)

    @classmethod
    def read_only(cls, path: Path) -> SQLiteStore:
        """Open a record for reading, also beside an agent that writes it.

        Raises:
            StoreError: there is none, or it cannot be read.
        """
        with _explained(path):
            if not path.exists():
                raise StoreError(f"{path}: there is no record", "has an agent ever run here?")
            _check_header(path)
            database = _connect(f"file:{_quoted(path)}?mode=ro")
            _check_form(database, path)
        return cls(path, database, None, DEFAULT_HISTORY)

    async def load(self) -> Record:
        """See :class:`pinfold.node.ports.Store`."""
        return await self._in_thread(lambda: read_record(self._database, str(self._path)))

    async def commit(self, batch: Batch) -> None:
        """See :class:`pinfold.node.ports.Store`."""

        def write() -> None:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                write_batch(self._database, batch, self._history_limit)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

        await self._in_thread(write)

    async def history(self, *, pod: str | None = None, limit: int = 100) -> Sequence[HistoryEntry]:
        """See :class:`pinfold.node.ports.Store`."""
        return await self._in_thread(lambda: read_history(self._database, pod, limit))

    async def close(self) -> None:
        """See :class:`pinfold.node.ports.Store`."""
        with contextlib.suppress(RuntimeError):  # closed before
            await self._in_thread(self._database.close)
        self._writer.shutdown(wait=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        def explained() -> _T:
            with _explained(self._path):
                return work()

        future = asyncio.get_running_loop().run_in_executor(self._writer, explained)
        # A commit that was begun is carried out: whoever waits for it may be cancelled, not it.
        return await asyncio.shield(future)


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _connect(uri: str) -> sqlite3.Connection:
    database = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    database.execute("PRAGMA foreign_keys = ON")
    return database


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    version = _check_form(database, path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        database.executescript(
            f"BEGIN IMMEDIATE; {script}; PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {number}; COMMIT"
        )


def _check_form(database: sqlite3.Connection, path: Path) -> int:
    """The version of the tables; 0 for an empty database."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or application):
        raise StoreError(f"{path}: a database, but not the agent's", "name another --state-dir")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: written by a newer pinfold (form {version}, this one knows "
            f"{len(MIGRATIONS)})",
            "run that one, or move the file away",
        )
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreError(f"{path}: corrupt: {verdict}", REMEDY)
    return int(version)


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(len(_HEADER))
    except FileNotFoundError:
        return
    if head and head != _HEADER:
        raise StoreError(f"{path}: not a database (it begins with {head[:8]!r})", REMEDY)


def _own(path: Path) -> int:
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StoreError(
            f"{path}: another agent has it open", "stop that one, or name another --state-dir"
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system say into one error with a remedy."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {error}", _remedy(error)) from None
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}", "see its folder's rights") from None


def _remedy(error: sqlite3.DatabaseError) -> str:
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith("SQLITE_FULL"):
        return "free some space"
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return "see the rights of the file and its folder, and that the disk is writable"
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return REMEDY
    if code.startswith("SQLITE_BUSY"):
        return "some other program has it open"
    return "see the disk"
