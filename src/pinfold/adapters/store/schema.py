"""The tables of the record, how older ones become them, and whether a file has them.

``application_id`` tells that a database is the agent's, ``user_version`` which form it has.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from pinfold.ports.errors import StoreError

APPLICATION_ID: Final = 0x70696E66  # "pinf"

REMEDY: Final = (
    "move it and the files beside it (-wal, -shm) away to start afresh, with --on-mismatch=repair, "
    "which adopts pods that run; `pinfold state show cpu_manager_state` says who had which CPUs"
)
"""What to do about a record that cannot be read."""

_ELSEWHERE: Final = "name another --state-dir"

_FIRST: Final = """
CREATE TABLE node (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    policy_name TEXT NOT NULL CHECK (policy_name <> ''),
    default_cpus TEXT NOT NULL,
    reserved_cpus TEXT NOT NULL,
    machine_cpus TEXT NOT NULL CHECK (machine_cpus <> '')
) STRICT;
CREATE TABLE pods (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE CHECK (uid <> ''),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    manifest TEXT NOT NULL CHECK (json_valid(manifest)),
    phase TEXT NOT NULL
        CHECK (phase IN ('Admitted', 'Running', 'Terminating', 'Succeeded', 'Failed')),
    source TEXT NOT NULL,
    reason TEXT,
    message TEXT,
    admitted_at REAL NOT NULL
) STRICT;
CREATE UNIQUE INDEX active_names ON pods (namespace, name)
    WHERE phase IN ('Admitted', 'Running', 'Terminating');
CREATE TABLE assignments (
    pod INTEGER NOT NULL REFERENCES pods (number) ON DELETE CASCADE,
    container TEXT NOT NULL,
    cpus TEXT NOT NULL CHECK (cpus <> ''),
    PRIMARY KEY (pod, container)
) STRICT, WITHOUT ROWID;
CREATE TABLE containers (
    pod INTEGER NOT NULL REFERENCES pods (number) ON DELETE CASCADE,
    container TEXT NOT NULL,
    restarts INTEGER CHECK (restarts >= 0),
    exit_code INTEGER,
    PRIMARY KEY (pod, container)
) STRICT, WITHOUT ROWID;
CREATE TABLE history (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    kind TEXT NOT NULL CHECK (kind <> ''),
    pod_uid TEXT,
    pod TEXT,
    document TEXT NOT NULL CHECK (json_valid(document))
) STRICT;
CREATE INDEX history_of_pod ON history (pod);
CREATE INDEX history_of_uid ON history (pod_uid);
"""

_MEMORY_AND_DEVICES: Final = """
ALTER TABLE node ADD COLUMN memory_policy TEXT NOT NULL DEFAULT 'None' CHECK (memory_policy <> '');
CREATE TABLE memory (
    pod INTEGER NOT NULL REFERENCES pods (number) ON DELETE CASCADE,
    container TEXT NOT NULL,
    position INTEGER NOT NULL,
    type TEXT NOT NULL CHECK (type <> ''),
    numa_nodes TEXT NOT NULL CHECK (json_valid(numa_nodes)),
    size INTEGER NOT NULL CHECK (size >= 0),
    PRIMARY KEY (pod, container, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE devices (
    pod INTEGER NOT NULL REFERENCES pods (number) ON DELETE CASCADE,
    container TEXT NOT NULL,
    resource TEXT NOT NULL CHECK (resource <> ''),
    ids TEXT NOT NULL CHECK (json_valid(ids)),
    response BLOB NOT NULL,
    PRIMARY KEY (pod, container, resource)
) STRICT, WITHOUT ROWID
"""

_RUNTIME: Final = "ALTER TABLE node ADD COLUMN runtime TEXT NOT NULL DEFAULT ''"

_COMMITS: Final = """
CREATE TABLE commits (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    generation INTEGER NOT NULL CHECK (generation >= 0)
) STRICT;
INSERT INTO commits VALUES (1, 0);
ALTER TABLE node ADD COLUMN cgroups TEXT NOT NULL DEFAULT ''
"""

_REJECTED: Final = """
CREATE TABLE new_pods (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE CHECK (uid <> ''),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    manifest TEXT NOT NULL CHECK (json_valid(manifest)),
    phase TEXT NOT NULL CHECK (
        phase IN ('Admitted', 'Running', 'Terminating', 'Succeeded', 'Failed', 'Rejected')
    ),
    source TEXT NOT NULL,
    reason TEXT,
    message TEXT,
    admitted_at REAL NOT NULL
) STRICT;
INSERT INTO new_pods SELECT number, uid, namespace, name, manifest,
    CASE WHEN phase = 'Failed' AND reason IS NOT NULL
        AND reason NOT IN ('ContainerCannotRun', 'UnhealthyDevice', 'NodeMismatch')
        AND NOT EXISTS (
            SELECT 1 FROM containers WHERE containers.pod = pods.number
            AND (exit_code IS NOT NULL OR restarts > 0)
        ) THEN 'Rejected' ELSE phase END,
    source, reason, message, admitted_at FROM pods;
DELETE FROM sqlite_sequence WHERE name = 'new_pods';
INSERT INTO sqlite_sequence SELECT 'new_pods', seq FROM sqlite_sequence WHERE name = 'pods';
DROP TABLE pods;
ALTER TABLE new_pods RENAME TO pods;
CREATE UNIQUE INDEX active_names ON pods (namespace, name)
    WHERE phase IN ('Admitted', 'Running', 'Terminating')
"""
"""Before it a pod that was rejected had failed; whether one has run tells them apart."""

_MOVES: Final = """
CREATE TABLE move (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    plan TEXT NOT NULL CHECK (json_valid(plan)),
    progress TEXT NOT NULL CHECK (json_valid(progress))
) STRICT;
ALTER TABLE assignments ADD COLUMN baseline TEXT
"""
"""An agent of the form before would take what moving owners claim for what they run on."""

_IDLE_SIBLINGS: Final = "ALTER TABLE assignments ADD COLUMN idle TEXT"
"""NULL for containers that are not SMT-isolated; an agent of the form before would run the others
on all threads of their cores."""

_LOAD_DRIVEN: Final = """
CREATE TABLE load_driven (
    pod INTEGER NOT NULL REFERENCES pods (number) ON DELETE CASCADE,
    container TEXT NOT NULL CHECK (container <> ''),
    PRIMARY KEY (pod, container)
) STRICT, WITHOUT ROWID
"""
"""An agent of the form before would give away CPUs that these are charged."""

_SINCE_WHEN: Final = """
ALTER TABLE load_driven ADD COLUMN used REAL CHECK (used >= 0);
ALTER TABLE load_driven ADD COLUMN at REAL NOT NULL DEFAULT 0;
ALTER TABLE load_driven ADD COLUMN uptime REAL NOT NULL DEFAULT 0;
ALTER TABLE load_driven ADD COLUMN boot TEXT NOT NULL DEFAULT ''
"""
"""``used`` is NULL for containers that nobody knows it of, such as those of the form before."""

_OBJECTS: Final = """
CREATE TABLE objects (
    kind TEXT NOT NULL CHECK (kind <> ''),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL CHECK (name <> ''),
    manifest TEXT NOT NULL CHECK (json_valid(manifest)),
    source TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) STRICT, WITHOUT ROWID
"""
"""An agent of the form before would admit what a quota refuses."""

_BUBBLES: Final = """
ALTER TABLE pods ADD COLUMN bubble TEXT CHECK (bubble <> '');
CREATE TABLE bubble_memory (
    pod INTEGER NOT NULL REFERENCES pods (number) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    type TEXT NOT NULL CHECK (type <> ''),
    numa_nodes TEXT NOT NULL CHECK (json_valid(numa_nodes)),
    size INTEGER NOT NULL CHECK (size >= 0),
    PRIMARY KEY (pod, position)
) STRICT, WITHOUT ROWID;
ALTER TABLE node ADD COLUMN kubelet_version TEXT NOT NULL DEFAULT '1.34'
"""
"""NULL for pods without a bubble; an agent of the form before would give away what is in one and no
container's, and charge memory of its containers besides.  Such an agent decided as the kubelet of
1.34 does."""

MIGRATIONS: Final = (
    _FIRST,
    _MEMORY_AND_DEVICES,
    _RUNTIME,
    _COMMITS,
    _REJECTED,
    _MOVES,
    _IDLE_SIBLINGS,
    _LOAD_DRIVEN,
    _SINCE_WHEN,
    _OBJECTS,
    _BUBBLES,
)
"""What leads from each form to the next; the first makes an empty database.

A script that was released is never edited, not even its spaces: a file is known by the texts.
"""


def migrate(database: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring a database to the newest form, in one transaction.

    Raises:
        sqlite3.Error: it could not be written; it has the form that it had.
    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == len(migrations):
        return
    # While foreign keys are enforced, a script that builds a table anew would empty those that
    # refer to it; and inside of a transaction the switch does nothing.
    database.execute("PRAGMA foreign_keys = OFF")
    try:
        database.executescript(
            f"BEGIN IMMEDIATE; {'; '.join(migrations[version:])}; "
            f"PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {len(migrations)}; COMMIT"
        )
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    database.execute("PRAGMA foreign_keys = ON")


def check_form(
    database: sqlite3.Connection, file: str, migrations: Sequence[str] = MIGRATIONS
) -> int:
    """The version of the tables, which are the agent's.

    Raises:
        StoreError: they are somebody else's, newer than this program, or not as they were made.
        sqlite3.Error: the file cannot be read.
    """
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise StoreError(f"{file}: a database, but not the agent's", _ELSEWHERE)
    if version > len(migrations):
        raise StoreError(
            f"{file}: written by a newer pinfold (form {version}, this one knows up to "
            f"{len(migrations)})",
            "run that one, or " + REMEDY,
        )
    if version < 1:
        raise StoreError(f"{file}: its form has the number {version}, which there is not", REMEDY)
    # A row can be trusted no further than the types of its table, which have to be ours.
    with_all = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(with_all, migrations[:version])
        strange = _definitions(database) ^ _definitions(with_all)
    finally:
        with_all.close()
    if strange:
        names = ", ".join(sorted({repr(name) for name, _ in strange}))
        raise StoreError(f"{file}: not as form {version} was made: {names}", REMEDY)
    return int(version)


def check_pages(database: sqlite3.Connection, file: str) -> None:
    """Read everything, and compare it with the types and the keys.

    A connection that may only read passes over the CHECKs (SQLite does not even parse them there),
    so whoever reads rows has to look at their values.

    Raises:
        StoreError: something is corrupt.
        sqlite3.Error: the file cannot be read.
    """
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreError(f"{file}: corrupt: {verdict}", REMEDY)
    for table, row, parent, _ in database.execute("PRAGMA foreign_key_check"):
        which = "a row" if row is None else f"row {row}"
        raise StoreError(f"{file}: table {table}, {which}: not in table {parent}", REMEDY)


def _definitions(database: sqlite3.Connection) -> set[tuple[object, object]]:
    return set(database.execute("SELECT name, sql FROM sqlite_schema"))
