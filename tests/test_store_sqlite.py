"""The SQLite store: the contract, a model, faults of disk and file, death at any moment."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.adapters.store import SQLiteStore
from pinfold.adapters.store.schema import APPLICATION_ID, MIGRATIONS
from pinfold.node.ports import StoreError
from pinfold.node.records import Batch, HistoryEntry, PodRecord, Record
from pinfold.planning.fakes import MemoryStore
from tests.store_contract import BATCHES, NODE, check_contract, pod

_T = TypeVar("_T")


def with_store(path: Path, work: Callable[[SQLiteStore], Awaitable[_T]], **options: int) -> _T:
    """Open, work, close."""

    async def whole() -> _T:
        store = SQLiteStore.open(path, **options)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(whole())


def load(path: Path) -> Record:
    return with_store(path, lambda store: store.load())


def test_sqlite_meets_the_contract(tmp_path: Path) -> None:
    with_store(tmp_path / "new" / "folder" / "db", check_contract)


def test_memory_meets_the_contract() -> None:
    asyncio.run(check_contract(MemoryStore()))


def test_file_and_folder_are_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "db"
    with_store(path, lambda store: store.commit(Batch(NODE)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(BATCHES, st.booleans()), max_size=8))
def test_it_holds_what_a_dictionary_would_hold(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Batch, bool]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "db"

    async def whole() -> None:
        store, model = SQLiteStore.open(path), MemoryStore()
        for batch, reopen in steps:
            await store.commit(batch)
            await model.commit(batch)
            if reopen:
                await store.close()
                store = SQLiteStore.open(path)
        assert dict((await store.load()).pods) == dict((await model.load()).pods)
        assert (await store.load()).node == (await model.load()).node
        assert tuple(await store.history()) == tuple(await model.history())
        await store.close()

    asyncio.run(whole())


def test_the_history_is_bounded_and_ordered_by_number(tmp_path: Path) -> None:
    async def work(store: SQLiteStore) -> list[float]:
        for at in (5.0, 9.0, 1.0, 7.0):
            await store.commit(Batch(history=(HistoryEntry(at, "k", None, None, "{}"),)))
        return [entry.at for entry in await store.history()]

    assert with_store(tmp_path / "db", work, history_limit=3) == [7.0, 1.0, 9.0]


def test_a_batch_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    async def work(store: SQLiteStore) -> None:
        await store.commit(Batch(NODE, (pod("a"),)))
        for bad in (
            pod("b", manifest="not json"),
            replace(pod("b"), name="a"),  # an active pod has that name
            replace(pod("b"), uid=""),
        ):
            with pytest.raises(StoreError, match=r"constraint|JSON"):
                await store.commit(Batch(put=(pod("c"), bad)))
        assert list((await store.load()).pods) == ["uid-a"]

    with_store(tmp_path / "db", work)


def test_only_one_agent_has_it_open(tmp_path: Path) -> None:
    async def work(_store: SQLiteStore) -> None:
        with pytest.raises(StoreError, match="another agent has it open"):
            SQLiteStore.open(tmp_path / "db")
        reader = SQLiteStore.read_only(tmp_path / "db")
        assert (await reader.load()).node is None
        with pytest.raises(StoreError, match=r"(?i)readonly"):
            await reader.commit(Batch(NODE))
        await reader.close()

    with_store(tmp_path / "db", work)
    load(tmp_path / "db")


def test_an_empty_file_is_a_new_record(tmp_path: Path) -> None:
    (tmp_path / "db").touch()
    assert load(tmp_path / "db").node is None


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda _data: b"hello", "not a database"),
        (lambda data: data[: len(data) // 2], "malformed|corrupt|disk image"),
        (lambda data: data[:200] + os.urandom(4000) + data[4200:], "malformed|corrupt|disk image"),
    ],
)
def test_a_damaged_file_is_refused_and_left_alone(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    path = tmp_path / "db"
    with_store(
        path, lambda store: store.commit(Batch(NODE, tuple(pod(f"p{n}") for n in range(50))))
    )
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "move the file away" in str(caught.value)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE node SET default_cpus = '0-x'", "table node"),
        ("UPDATE assignments SET cpus = '3-1'", "table assignments, pod 1, container a"),
        (f"PRAGMA user_version = {len(MIGRATIONS) + 1}", "written by a newer pinfold"),
        ("PRAGMA application_id = 7", "not the agent's"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, statement: str, words: str) -> None:
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(Batch(NODE, (pod("a"),))))
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()
    with pytest.raises(StoreError, match=words):
        load(path)


def test_the_tables_keep_nonsense_out(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(Batch(NODE, (pod("a"),))))
    database = sqlite3.connect(path)
    for statement in (
        "UPDATE pods SET phase = 'Odd'",
        "UPDATE assignments SET cpus = ''",
        "UPDATE pods SET manifest = '{'",
        "UPDATE pods SET admitted_at = 'yesterday'",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            database.execute(statement)
    database.close()
    assert APPLICATION_ID < 2**31


def test_a_full_disk_changes_nothing_and_passes(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk; it is lifted again."""
    script = """
import asyncio, resource, signal, sys
from pathlib import Path
from pinfold.adapters.store import SQLiteStore
from pinfold.node.ports import StoreError
from pinfold.node.records import Batch
from tests.store_contract import NODE, pod

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = SQLiteStore.open(Path(sys.argv[1]))
    await store.commit(Batch(NODE, (pod("a"),)))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    written = 0
    try:
        for n in range(1000):
            await store.commit(Batch(put=(pod(f"p{n}", message="x" * 5000),)))
            written += 1
    except StoreError as error:
        print(error)
    assert len((await store.load()).pods) == written + 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.commit(Batch(put=(pod("after"),)))
    assert len((await store.load()).pods) == written + 2
    await store.close()
    print(written)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "db")],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    problem, written = done.stdout.splitlines()
    assert str(tmp_path / "db") in problem
    assert len(load(tmp_path / "db").pods) == int(written) + 2


def test_a_record_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match="file"):
            SQLiteStore.open(tmp_path / "file" / "db")
        return
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        SQLiteStore.open(tmp_path / "db")


def test_every_acknowledged_commit_survives_a_kill(tmp_path: Path) -> None:
    """Children commit numbered batches and say so; each is killed at some moment."""
    path = tmp_path / "db"
    chance = random.Random(7)  # noqa: S311 - moments, not secrets
    for life in range(40):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            asyncio.run(_commit_for_ever(path, life, writer))
            os._exit(0)
        os.close(writer)
        said = os.read(reader, 1)
        for _ in range(chance.randrange(12)):
            said += os.read(reader, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(reader, 4096):
            said += more
        os.close(reader)
        pods = load(path).pods
        ours = sorted(
            int(p.name.split("-")[1]) for p in pods.values() if p.name[:4] == f"l{life:03}"
        )
        assert ours == list(range(len(ours))), "a batch in the middle is missing"
        assert len(said) <= len(ours) <= len(said) + 1
        for record in pods.values():
            assert record.assignments == pod("x").assignments, "half a batch"


async def _commit_for_ever(path: Path, life: int, writer: int) -> None:
    store = SQLiteStore.open(path)
    for number in range(1_000_000):
        record: PodRecord = pod(f"l{life:03}-{number}")
        await store.commit(Batch(NODE, (record,)))
        os.write(writer, b".")
