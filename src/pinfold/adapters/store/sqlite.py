"""The store: one SQLite file, owned by one agent, written in one thread.

WAL with ``synchronous=FULL``: a commit that returned is on the disk.  A second agent is kept out
by a lock on a file beside it, which the kernel lets go when its owner dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from pinfold.adapters.store.connection import check_library, connect, examine, fill, uri
from pinfold.adapters.store.place import (
    Ownership,
    check_private,
    create,
    explained,
    is_there,
    log_of,
)
from pinfold.adapters.store.promise import Promise, path_of, promised
from pinfold.adapters.store.room import Room, release_room
from pinfold.adapters.store.rows import (
    read_generation,
    read_history,
    read_record,
    trim_history,
    write_batch,
)
from pinfold.adapters.store.schema import MIGRATIONS, migrate
from pinfold.ports.errors import StoreError
from pinfold.ports.records import Batch, HistoryEntry, Record

DEFAULT_HISTORY: Final = 10_000

_T = TypeVar("_T")


class SQLiteStore:
    """The :class:`pinfold.ports.store.Store` in a file; made by :meth:`open`, :meth:`read_only`.

    Every method raises ``StoreError``, and nothing else, where the file, the disk or a value
    refuses; afterwards the record is what it was, and when the cause is gone the same store works
    again.
    """

    def __init__(  # noqa: PLR0913 - the files, one each
        self,
        path: Path,
        database: sqlite3.Connection,
        ownership: Ownership | None,
        history_limit: int,
        *,
        room: Room | None = None,
        promise: Promise | None = None,
    ) -> None:
        self._path = path
        self._promise = promise
        self._promised = promised(path)
        self.generation = read_generation(database)
        """See :class:`pinfold.ports.store.Store`."""
        self._database = database
        self._ownership = ownership
        self._history_limit = history_limit
        self._room = room
        self._failed = False
        self._problem = "" if room is None else room.keep()
        self._closed = False
        # One thread: commits are in order, and an fsync does not hold up the event loop.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")

    @classmethod
    def open(cls, path: Path, *, history_limit: int = DEFAULT_HISTORY) -> SQLiteStore:
        """Open a record for writing; make it, and its folder, where there is none.

        Args:
            path: the database; it is made with mode 0600, its folder with 0700.
            history_limit: how many entries of the history are kept.

        Raises:
            StoreError: it is corrupt, empty, newer than this program, somebody else's, in use, or
                cannot be written; the file is as it was.
        """
        with explained(path), contextlib.ExitStack() as undo:
            check_library()
            ownership = Ownership(path)
            undo.callback(ownership.release)
            if not is_there(path):
                ownership.begin()
                undo.callback(ownership.undo)
                # Whoever has moved the record away has moved away what it promised.  First, or a
                # kill in between would leave a record that has lost something.
                path_of(path).unlink(missing_ok=True)
                create(path, fill)
            check_private(path)
            release_room(path)
            # First without the right to write: the end of a writing connection would carry the
            # log over into a file that is perhaps damaged.
            examine(path, f"{uri(path)}?mode=ro").close()
            database = connect(f"{uri(path)}?mode=rw")
            undo.callback(database.close)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            migrate(database)
            trim_history(database, history_limit)
            promise = Promise(path)
            undo.callback(promise.close)
            ownership.remember()
            room = Room(path)
            store = cls(path, database, ownership, history_limit, room=room, promise=promise)
            undo.pop_all()
        return store

    @classmethod
    def read_only(cls, path: Path) -> SQLiteStore:
        """Open a record for reading, also beside an agent that writes it.

        Raises:
            StoreError: there is none, it cannot be read, or it has an older form.
        """
        with explained(path):
            check_library()
            if not is_there(path):
                raise StoreError(f"{path}: there is no record", "has an agent ever run here?")
            try:
                database = examine(path, f"{uri(path)}?mode=ro", only_newest=True)
            except sqlite3.OperationalError:
                # SQLite wants to make its index beside the file.  Where it may not, and there is
                # nothing to be indexed, nobody can be writing either.
                log = log_of(path)
                if log.exists() and log.stat().st_size:
                    raise
                database = examine(path, f"{uri(path)}?mode=ro&immutable=1", only_newest=True)
            return cls(path, database, None, DEFAULT_HISTORY)

    @property
    def problem(self) -> str:
        """See :attr:`pinfold.ports.store.Store.problem`."""
        return self._problem

    async def check(self) -> None:
        """See :meth:`pinfold.ports.store.Store.check`."""
        with contextlib.suppress(StoreError):  # it is the problem
            await self._in_thread(self._look)

    async def load(self) -> Record:
        """See :class:`pinfold.ports.store.Store`."""
        record = await self._in_thread(lambda: read_record(self._database, str(self._path)))
        return replace(record, promised=self._promised)

    async def commit(self, batch: Batch) -> None:
        """See :class:`pinfold.ports.store.Store`.

        A caller that is cancelled leaves a commit behind that is carried out all the same.
        """
        await self._in_thread(lambda: self._noting(lambda: self._write(batch)))

    async def history(
        self,
        *,
        pod: str | None = None,
        namespace: str | None = None,
        kinds: Collection[str] = (),
        limit: int = 100,
    ) -> Sequence[HistoryEntry]:
        """See :class:`pinfold.ports.store.Store`."""
        return await self._in_thread(
            lambda: read_history(self._database, pod, namespace, kinds, limit)
        )

    @property
    def is_new(self) -> bool:
        """Whether :meth:`open` has found no record, and made this one."""
        return self._ownership is not None and self._ownership.began

    async def close(self, *, undo: bool = False) -> None:
        """See :class:`pinfold.ports.store.Store`; again is no error.

        Args:
            undo: leave nothing of a record that is new, nor of its folder.
        """
        if self._closed:
            return

        def end() -> None:
            try:
                self._database.close()
                if self._room is not None:
                    # SQLite has cut the file to its size.
                    self._room.keep()
                    self._room.close()
                if undo and self._ownership is not None:
                    self._ownership.undo()
            finally:
                if self._promise is not None:
                    self._promise.close()
                if self._ownership is not None:
                    self._ownership.release()

        self._closed = True
        try:
            await self._submit(end)
        finally:
            self._worker.shutdown(wait=True)

    def _look(self) -> None:
        if self._room is None or self._ownership is None:
            return
        if not self._failed:
            # What is removed may not be found out by writing for a long time.
            with contextlib.suppress(StoreError):
                self._ownership.check()
                self._problem = self._room.keep()
                return
        self._try_out()

    def _noting(self, work: Callable[[], None]) -> None:
        """Write, and remember whether anything can be written."""
        try:
            try:
                work()
            except sqlite3.OperationalError:
                # The log may be full of what can go to the database.
                self._empty_log()
                work()
        except BaseException:
            # A batch may be refused for what is in it.
            with contextlib.suppress(StoreError):
                self._try_out()
            raise
        self._succeeded()

    def _try_out(self) -> None:
        """Whether it can be written, only writing tells."""
        try:
            with explained(self._path):
                if self._ownership is not None:
                    self._ownership.check()
                self._write_nothing()
        except StoreError as error:
            self._failed, self._problem = True, str(error)
            raise
        self._succeeded()

    def _succeeded(self) -> None:
        self._failed, self._problem = False, "" if self._room is None else self._room.keep()
        if self._problem:
            self._empty_log()

    def _empty_log(self) -> None:
        """What is written next takes the place that the log has."""
        with contextlib.suppress(sqlite3.Error):
            self._database.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def _write_nothing(self) -> None:
        self._database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _write(self, batch: Batch) -> None:
        if self._ownership is not None:
            self._ownership.check()
        database = self._database
        generation = max(self.generation, self._promised, batch.above) + 1
        database.execute("BEGIN IMMEDIATE")
        try:
            write_batch(database, str(self._path), batch, generation, self._history_limit)
        except BaseException:
            self._roll_back()
            raise
        try:
            database.execute("COMMIT")
        except BaseException:
            self._roll_back()
            # The batch may be whole in the log, and only its fsync have failed: whoever opens the
            # file after a crash would find it.  A transaction of no effect takes its place there.
            with contextlib.suppress(sqlite3.Error):
                self._write_nothing()
            raise
        self.generation = self._promised = generation
        if self._promise is not None:
            # It stands in the record; a disk that is full must not make it look as if it did not.
            with contextlib.suppress(OSError):
                self._promise.write(generation)

    def _roll_back(self) -> None:
        # After some errors SQLite has done it already.
        with contextlib.suppress(sqlite3.Error):
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        if self._closed:
            raise StoreError(f"{self._path}: closed")
        return await self._submit(work)

    async def _submit(self, work: Callable[[], _T]) -> _T:
        def run() -> _T:
            with explained(self._path):
                return work()

        future = asyncio.get_running_loop().run_in_executor(self._worker, run)
        # What was begun is carried out: whoever waits for it may be cancelled, not it.
        return await asyncio.shield(future)
