"""The agent's database: whatever the bytes, it is read, or refused with an error that names it."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from fuzz.engine import Target
from pinfold.adapters.store import SQLiteStore
from pinfold.adapters.store.schema import APPLICATION_ID, MIGRATIONS
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import StoreError
from pinfold.ports.records import Batch, HistoryEntry, NodeRecord, PodPhase, PodRecord

_PAGE_BYTES: Final = 512
"""The smallest that SQLite has: mutations meet more of the structure."""

_ROWS: Final = """
INSERT INTO node VALUES (1, 'static', '0-1', '0', '0-3', 'Static', 'cri', '/pinfold', '1.36');
INSERT INTO pods VALUES (1, 'u', 'ns', 'a', '{"kind": "Pod"}', 'Running', 'run', NULL, 'm',
    2.5, '2-5');
INSERT INTO assignments VALUES (1, 'c', '2-3', '2', '3');
INSERT INTO memory VALUES (1, 'c', 0, 'memory', '[0, 1]', 4096);
INSERT INTO bubble_memory VALUES (1, 0, 'memory', '[0, 1]', 8192);
INSERT INTO devices VALUES (1, 'c', 'example.com/gpu', '["g0"]', x'0a00');
INSERT INTO containers VALUES (1, 'c', 2, NULL);
INSERT INTO history VALUES (1, 12.5, 'admitted', 'u', 'ns/web', '{"a": 1}');
"""
_WORDS: Final = tuple(
    b"""Running Admitted Failed 0-3 3-0 0-x {} [] { CREATE TABLE INDEX TRIGGER CHECK STRICT pods
    node history assignments memory bubble_memory devices containers sqlite_sequence [0] [-1]
    [64]""".split()
)


def run_store(data: bytes) -> None:
    """Read the record, write to it, and read it again."""
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - names are random
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "db"
        path.write_bytes(data)
        path.chmod(0o600)
        try:
            asyncio.run(_use(path))
        except StoreError as error:
            if str(path) not in error.problem:
                raise ValueError(f"an error that does not name the file: {error}") from error


async def _use(path: Path) -> None:
    reader = SQLiteStore.read_only(path)
    try:
        before = await reader.load()
        await reader.history()
    finally:
        await reader.close()
    store = SQLiteStore.open(path, history_limit=3)
    try:
        if await store.load() != before:
            raise ValueError("the reader sees another record than the writer")
        pod = PodRecord("fuzz", "fuzz", "fuzz", "{}", PodPhase.FAILED)
        node = NodeRecord("none", CPUSet(), CPUSet(), CPUSet([0]))
        entry = HistoryEntry(1.0, "fuzz", None, None, "{}")
        await store.commit(Batch(node, (pod,), history=(entry,)))
        if (await store.load()).pods.get("fuzz") != pod:
            raise ValueError("what was committed is not there")
    finally:
        await store.close()


def _databases() -> list[bytes]:
    made = []
    for rows in ("", _ROWS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "db"
            database = sqlite3.connect(path, isolation_level=None)
            database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            database.executescript(";".join((*MIGRATIONS, rows)))
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            database.close()
            made.append(path.read_bytes())
    return made


STORE_TARGET: Final = Target("store", run_store, _databases, _WORDS)
