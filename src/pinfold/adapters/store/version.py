"""The kubelet as which a record was decided, read before there is a configuration."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from pinfold.adapters.store.connection import connect, uri

DATABASE: Final = "pinfold.db"
"""The record in the state directory."""

BEFORE: Final = "1.34"
"""Agents decided so whose record does not have the version yet."""


def recorded_kubelet_version(state_dir: Path) -> str:
    """The version that a record has; "" where there is none, and where it cannot be read.

    Whoever opens the record afterwards says why that was; nothing is changed here.
    """
    database = state_dir / DATABASE
    if not database.is_file():
        return ""
    try:
        with closing(connect(f"{uri(database)}?mode=ro")) as record:
            names = [column[1] for column in record.execute("PRAGMA table_info(node)")]
            is_there = "kubelet_version" in names
            wanted = "SELECT kubelet_version FROM node" if is_there else "SELECT NULL FROM node"
            row = record.execute(wanted).fetchone()
    except sqlite3.Error:
        return ""
    if row is None:
        return ""
    return BEFORE if row[0] is None else str(row[0])
