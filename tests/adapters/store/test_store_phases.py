"""Pods of a record that an older program wrote, which called rejected ones failed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pinfold.adapters.store import SQLiteStore
from pinfold.ports.records import Batch, PodPhase, PodRecord
from tests.scenes.store_contract import form_1, load, with_store


@pytest.mark.parametrize(
    ("phase", "reason", "ran", "now"),
    [
        ("Failed", "OutOfcpu", False, PodPhase.REJECTED),
        ("Failed", "UnexpectedAdmissionError", True, PodPhase.FAILED),
        ("Failed", "NodeMismatch", False, PodPhase.FAILED),
        ("Failed", None, False, PodPhase.FAILED),
        ("Succeeded", None, True, PodPhase.SUCCEEDED),
        ("Running", None, False, PodPhase.RUNNING),
    ],
)
def test_a_pod_that_an_older_record_calls_failed_may_have_been_rejected(
    tmp_path: Path, phase: str, reason: str | None, ran: bool, now: PodPhase
) -> None:
    path = tmp_path / "db"
    form_1(path)
    database = sqlite3.connect(path, isolation_level=None)
    row = (9, "w", "ns", "w", "{}", phase, "api", reason, None, 2.0)
    database.execute("INSERT INTO pods VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    database.execute("INSERT INTO containers VALUES (9, 'c', 0, ?)", (3 if ran else None,))
    database.close()

    async def work(store: SQLiteStore) -> None:
        assert (await store.load()).pods["w"].phase is now
        pod = PodRecord("x", "ns", "x", "{}", PodPhase.REJECTED)
        await store.commit(Batch(put=(pod,), drop=("w",)))

    with_store(path, work)
    assert load(path).pods["x"].phase is PodPhase.REJECTED
    database = sqlite3.connect(path)
    assert database.execute("SELECT number FROM pods WHERE uid = 'x'").fetchone() == (10,)
    assert len(database.execute("SELECT * FROM assignments").fetchall()) == 1
    database.close()
