"""The durable record: SQLite."""

from pinfold.adapters.store.sqlite import SQLiteStore

__all__ = ["SQLiteStore"]
