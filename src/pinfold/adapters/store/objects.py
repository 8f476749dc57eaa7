"""Objects beside the pods, between rows and records."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from pinfold.ports.records import ObjectKey, ObjectRecord


def read_objects(database: sqlite3.Connection) -> dict[ObjectKey, ObjectRecord]:
    """All of them, by kind, namespace and name; raises sqlite3.Error."""
    rows = database.execute(
        "SELECT kind, namespace, name, manifest, source FROM objects ORDER BY 1, 2, 3"
    )
    found = (ObjectRecord(ObjectKey(*key), text, source) for *key, text, source in rows)
    return {one.key: one for one in found}


def write_objects(
    database: sqlite3.Connection, objects: Mapping[ObjectKey, ObjectRecord | None]
) -> None:
    """Write those that are there, and forget the others; raises sqlite3.Error."""
    for key, one in objects.items():
        if one is None:
            database.execute("DELETE FROM objects WHERE (kind, namespace, name) = (?, ?, ?)", key)
        else:
            database.execute(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)",
                (*key, one.manifest, one.source),
            )
