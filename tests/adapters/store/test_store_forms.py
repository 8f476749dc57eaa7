"""Records of older forms: they are read, and brought up to date as a whole or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.store import SQLiteStore
from pinfold.adapters.store.schema import MIGRATIONS, check_form, migrate
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.records import (
    Batch,
    ByLoad,
    HistoryEntry,
    NodeRecord,
    PodPhase,
    PodRecord,
    Record,
)
from tests.scenes.store_contract import form_1, load, with_store

FORM_1_RECORD = Record(
    NodeRecord("static", CPUSet([0, 1]), CPUSet([0]), CPUSet(range(4)), kubelet_version="1.34"),
    {
        "u": PodRecord(
            "u",
            "ns",
            "web",
            '{"kind": "Pod"}',
            PodPhase.RUNNING,
            "run",
            message="m",
            admitted_at=12.5,
            assignments={"c": CPUSet([2, 3])},
            restarts={"c": 2},
            exit_codes={"init": 0},
        ),
        "v": PodRecord(
            "v", "ns", "old", "{}", PodPhase.REJECTED, reason="OutOfcpu", admitted_at=1.0
        ),
    },
)


def test_a_file_of_the_first_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "db"
    form_1(path)

    async def work(store: SQLiteStore) -> None:
        assert await store.load() == FORM_1_RECORD
        (entry,) = await store.history()
        assert entry == HistoryEntry(12.5, "admitted", "u", "ns/web", '{"a": 1}', 41)
        await store.commit(Batch(drop=("u",), history=(entry,)))
        assert [e.number for e in await store.history()] == [42, 41]

    with_store(path, work)
    assert list(load(path).pods) == ["v"]


def test_migrations_lead_from_every_form_to_the_newest(tmp_path: Path) -> None:
    """Also where a table is built anew, which would drop the rows that refer to it."""
    rebuild = (
        "CREATE TABLE n (number INTEGER PRIMARY KEY, uid TEXT) STRICT;"
        "INSERT INTO n SELECT number, uid FROM pods;"
        "DROP TABLE pods; ALTER TABLE n RENAME TO pods"
    )
    later = (*MIGRATIONS, "ALTER TABLE node ADD COLUMN colour TEXT", rebuild)
    for start in range(1, len(later)):
        path = tmp_path / f"db{start}"
        form_1(path)
        database = sqlite3.connect(path, isolation_level=None)
        migrate(database, later[:start])
        assert check_form(database, "file", later) == start
        migrate(database, later)
        assert check_form(database, "file", later) == len(later)
        assert database.execute("SELECT colour FROM node").fetchall() == [(None,)]
        assert len(database.execute("SELECT * FROM assignments").fetchall()) == 1
        assert database.execute("PRAGMA foreign_keys").fetchone() == (1,)
        database.close()


def test_of_a_load_driven_container_of_form_8_only_the_name_is_known(tmp_path: Path) -> None:
    path = tmp_path / "db"
    form_1(path)
    database = sqlite3.connect(path, isolation_level=None)
    migrate(database, MIGRATIONS[:8])
    database.execute("INSERT INTO load_driven SELECT number, 'c' FROM pods WHERE uid = 'v'")
    database.close()
    pods = FORM_1_RECORD.pods
    then = {**pods, "v": replace(pods["v"], load_driven={"c": ByLoad()})}
    assert load(path) == replace(FORM_1_RECORD, pods=then)

    async def work(store: SQLiteStore) -> None:
        known = replace(then["v"], load_driven={"c": ByLoad(1.5, 2.5, 3.5, "boot")})
        await store.commit(Batch(put=(known,)))
        assert (await store.load()).pods["v"] == known

    with_store(path, work)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "db"
    form_1(path)
    before = path.read_bytes()
    database = sqlite3.connect(path, isolation_level=None)
    later = (*MIGRATIONS, "ALTER TABLE node ADD COLUMN x TEXT", "DROP TABLE pods; nonsense")
    with pytest.raises(sqlite3.Error, match="nonsense"):
        migrate(database, later)
    assert not database.in_transaction
    database.close()
    assert path.read_bytes() == before
    assert load(path) == FORM_1_RECORD
