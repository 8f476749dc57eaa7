"""Objects beside the pods, between rows and records."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from pinfold.adapters.store.schema import REMEDY
from pinfold.core.quota.quota import quota_from_api
from pinfold.ports.errors import StoreError
from pinfold.ports.records import ObjectKey, ObjectRecord


def read_objects(database: sqlite3.Connection, file: str) -> dict[ObjectKey, ObjectRecord]:
    """All of them, by kind, namespace and name.

    Raises:
        StoreError: a row that is no object of its name; the message names it.
        sqlite3.Error: the file cannot be read.
    """
    rows = database.execute(
        "SELECT kind, namespace, name, manifest, source FROM objects ORDER BY 1, 2, 3"
    )
    found = {}
    for *words, text, source in rows:
        key = ObjectKey(*words)
        if problem := _problem(key, text):
            row = f"{key.kind} {key.namespace}/{key.name}"
            raise StoreError(f"{file}: table objects, row {row}: {problem}", REMEDY)
        found[key] = ObjectRecord(key, text, source)
    return found


def _problem(key: ObjectKey, text: str) -> str:
    """Why a manifest is not that of an object; "" where it is."""
    try:
        manifest = json.loads(text)
        if not isinstance(manifest, dict) or manifest.get("kind") != key.kind:
            return f"the manifest is of no {key.kind}"
        if key.kind != "ResourceQuota":
            return ""
        quota = quota_from_api(manifest)
    except ValueError as error:
        return str(error)
    said = (quota.namespace, quota.name)
    return "" if said == (key.namespace, key.name) else f"the manifest is of {quota.full_name}"


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
