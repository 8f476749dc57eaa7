"""Connections to the file of a record: made, and looked over before anything is believed."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pinfold.adapters.store.rows import check_history
from pinfold.adapters.store.schema import MIGRATIONS, check_form, check_pages, migrate
from pinfold.ports.errors import StoreError

_BUSY_SECONDS: Final = 2.0
_OLDEST_SQLITE: Final = (3, 37, 0)
"""The first with STRICT tables."""


def check_library() -> None:
    """Raise StoreError where SQLite is too old."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        oldest = ".".join(map(str, _OLDEST_SQLITE))
        raise StoreError(
            f"this Python comes with SQLite {sqlite3.sqlite_version}; {oldest} is the oldest that "
            "will do",
            "use another Python",
        )


def uri(path: Path) -> str:
    """How SQLite names a file."""
    return "file:" + quote(bytes(path.absolute()))


def connect(uri: str) -> sqlite3.Connection:
    """A connection.

    Raises:
        sqlite3.Error: there is none to be had.
    """
    database = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in ("foreign_keys = ON", "cell_size_check = ON"):
            database.execute(f"PRAGMA {pragma}")
    except BaseException:
        database.close()
        raise
    return database


def fill(path: Path) -> None:
    """Make the tables of a new record.

    Raises:
        sqlite3.Error: they cannot be written.
    """
    database = connect(f"{uri(path)}?mode=rw")
    try:
        database.execute("PRAGMA synchronous = FULL")
        migrate(database)
        # Were it done under its own name, a kill in the middle would leave a journal behind, which
        # a connection without the right to write cannot roll back.
        database.execute("PRAGMA journal_mode = WAL")
    finally:
        database.close()


def examine(path: Path, uri: str, *, only_newest: bool = False) -> sqlite3.Connection:
    """A connection to a record that is whole.

    Raises:
        StoreError: it is damaged, or newer than this program.
        sqlite3.Error: it cannot be read.
    """
    file = str(path)
    database = connect(uri)
    try:
        version = check_form(database, file)
        if only_newest:
            _check_newest(version, file)
        check_pages(database, file)
        if version == len(MIGRATIONS):
            # The other tables are small, and looked at whenever they are loaded.
            check_history(database, file)
    except BaseException:
        database.close()
        raise
    return database


def _check_newest(version: int, file: str) -> None:
    if version < len(MIGRATIONS):
        raise StoreError(
            f"{file}: has form {version}, and {len(MIGRATIONS)} is the newest",
            "start the agent once, which brings it there",
        )
