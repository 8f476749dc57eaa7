"""The tables of the record, and how older ones become them.

``application_id`` tells that a database is the agent's, ``user_version`` which form it has.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x70696E66  # "pinf"

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

MIGRATIONS: Final = (_FIRST,)
"""What leads from each form to the next; the first makes an empty database."""
