"""The durable record: SQLite."""

from pinfold.adapters.store.sqlite import SQLiteStore
from pinfold.adapters.store.version import DATABASE, recorded_kubelet_version

__all__ = ["DATABASE", "SQLiteStore", "recorded_kubelet_version"]
