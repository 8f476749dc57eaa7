"""The SQLite store: the contract, order, cancellation, owners and readers, speed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from pinfold.adapters.store import SQLiteStore
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fakes import MemoryStore
from pinfold.ports.errors import StoreError
from pinfold.ports.records import Batch, HistoryEntry
from tests.scenes.store_contract import NODE, check_contract, check_refusals, load, pod, with_store


def test_sqlite_meets_the_contract(tmp_path: Path) -> None:
    with_store(tmp_path / "new" / "folder" / "db", check_contract)


def test_memory_meets_the_contract() -> None:
    asyncio.run(check_contract(MemoryStore()))


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    with_store(tmp_path / "db", check_refusals)


def test_a_record_survives_being_opened_anew(tmp_path: Path) -> None:
    batch = Batch(NODE, (pod("a"), pod("b", message="é")), history=(_entry(3.0),))
    with_store(tmp_path / "db", lambda store: store.commit(batch))

    async def look(store: SQLiteStore) -> None:
        record = await store.load()
        assert record.node == NODE
        assert tuple(record.pods.values()) == batch.put
        await store.commit(Batch(history=(_entry(2.0),)))
        assert [(e.at, e.number) for e in await store.history()] == [(2.0, 2), (3.0, 1)]

    with_store(tmp_path / "db", look)


@pytest.mark.parametrize("name", ["a b%20?mode=memory#x&y", "höhle 名", "caf\udce9"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "db"
    with_store(path, lambda store: store.commit(Batch(put=(pod("a"),))))
    assert path.stat().st_size
    assert list(load(path).pods) == ["uid-a"]


def test_the_history_is_bounded_and_ordered_by_number(tmp_path: Path) -> None:
    """The clock jumps to and fro; numbers are not used twice, however few entries there are."""

    async def work(store: SQLiteStore) -> list[float]:
        for at in (5.0, 9.0, 1.0, 7.0):
            await store.commit(Batch(history=(_entry(at),)))
        await store.commit(Batch(NODE))
        return [entry.at for entry in await store.history()]

    async def numbers(store: SQLiteStore) -> list[int]:
        return [entry.number for entry in await store.history()]

    path = tmp_path / "db"
    assert with_store(path, work, history_limit=3) == [7.0, 1.0, 9.0]
    assert with_store(path, numbers, history_limit=2) == [4, 3], "a smaller limit holds at once"
    assert with_store(path, numbers, history_limit=0) == []
    assert with_store(path, work, history_limit=3) == [7.0, 1.0, 9.0]
    assert with_store(path, numbers) == [8, 7, 6]
    many = Batch(history=tuple(_entry(float(n)) for n in range(50)))
    with_store(path, lambda store: store.commit(many), history_limit=4)
    assert with_store(path, numbers) == [58, 57, 56, 55]


def test_the_loop_goes_on_while_the_record_is_written(tmp_path: Path) -> None:
    """Somebody else holds the database: the commit waits, and nothing else does."""

    async def work(store: SQLiteStore) -> int:
        other = sqlite3.connect(tmp_path / "db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        commits = [asyncio.create_task(store.commit(Batch(put=(pod(n),)))) for n in "abc"]
        turns = 0
        while turns < 20:
            await asyncio.sleep(0.001)
            turns += 1
            assert not any(task.done() for task in commits)
        other.execute("ROLLBACK")
        other.close()
        await asyncio.gather(*commits)
        assert list((await store.load()).pods) == ["uid-a", "uid-b", "uid-c"]
        return turns

    assert with_store(tmp_path / "db", work) == 20


def test_whoever_blocks_the_record_for_long_is_an_error(tmp_path: Path) -> None:
    async def work(store: SQLiteStore) -> None:
        other = sqlite3.connect(tmp_path / "db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="some other program has it open"):
            await store.commit(Batch(put=(pod("a"),)))
        other.close()
        await store.commit(Batch(put=(pod("b"),)))
        assert list((await store.load()).pods) == ["uid-b"]

    with_store(tmp_path / "db", work)


def test_a_caller_that_is_cancelled_leaves_a_whole_commit(tmp_path: Path) -> None:
    async def work(store: SQLiteStore) -> None:
        for number in range(20):
            task = asyncio.create_task(store.commit(Batch(put=(pod(f"p{number}"),))))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        # Those that were begun come before this one, in order.
        await store.commit(Batch(NODE))
        names = [record.name for record in (await store.load()).pods.values()]
        assert names == sorted(names, key=lambda name: int(name[1:]))
        assert len(names) >= 15

    with_store(tmp_path / "db", work)


def test_close_waits_for_what_was_begun(tmp_path: Path) -> None:
    async def work(store: SQLiteStore) -> None:
        tasks = [asyncio.create_task(store.commit(Batch(put=(pod(n),)))) for n in "abcde"]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*tasks)
        for again in (store.load(), store.commit(Batch()), store.history()):
            with pytest.raises(StoreError, match=f"{tmp_path}/db: closed"):
                await again
        await store.close()

    with_store(tmp_path / "db", work)
    assert len(load(tmp_path / "db").pods) == 5


def test_only_one_agent_has_it_open(tmp_path: Path) -> None:
    path = tmp_path / "db"

    async def work(_store: SQLiteStore) -> None:
        with pytest.raises(StoreError, match=rf"another agent has it open .process {os.getpid()}"):
            SQLiteStore.open(path)
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN, path, stderr=asyncio.subprocess.PIPE
        )
        _, said = await other.communicate()
        assert other.returncode != 0
        assert b"another agent has it open" in said

    with_store(path, work)
    with_store(path, work)


OPEN = """
import sys
from pathlib import Path
from pinfold.adapters.store import SQLiteStore
SQLiteStore.open(Path(sys.argv[1]))
"""


def test_readers_see_whole_commits_beside_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "db"

    async def work(store: SQLiteStore) -> None:
        reader = SQLiteStore.read_only(path)
        assert (await reader.load()).node is None
        for number in range(30):
            names = [f"{number}-{n}" for n in range(3)]
            batch = Batch(
                put=tuple(pod(name) for name in names),
                drop=tuple(f"uid-{number - 1}-{n}" for n in range(3)),
                history=(_entry(1.0),),
            )
            committing = asyncio.create_task(store.commit(batch))
            seen = [record.name for record in (await reader.load()).pods.values()]
            assert len({name.split("-")[0] for name in seen}) <= 1, "half a commit"
            assert len(seen) in (0, 3)
            await committing
            assert [p.name for p in (await reader.load()).pods.values()] == names
        assert len(await reader.history()) == 30
        with pytest.raises(StoreError, match=r"(?i)readonly.*see the rights"):
            await reader.commit(Batch(NODE))
        await reader.close()
        await store.commit(Batch(NODE))

    with_store(path, work)

    async def alone() -> None:
        reader = SQLiteStore.read_only(path)
        assert (await reader.load()).node == NODE
        await reader.close()

    asyncio.run(alone())


def test_one_pod_among_a_thousand_is_quickly_written(tmp_path: Path) -> None:
    """CPU time of this process: how long a disk or a busy machine takes is not to be tested."""
    cpus = CPUSet(range(0, 512, 2))
    manifest = '{"kind": "Pod", "filler": "' + "x" * 2000 + '"}'
    pods = tuple(pod(f"p{n}", manifest=manifest, assignments={"c": cpus}) for n in range(1000))

    async def work(store: SQLiteStore) -> float:
        await store.commit(Batch(NODE, pods))
        before = time.process_time()
        for number in range(50):
            await store.commit(
                Batch(NODE, (pods[number * 20],), history=(_entry(1.0), _entry(2.0)))
            )
        return (time.process_time() - before) / 50

    assert with_store(tmp_path / "db", work) < 0.005
    assert list(load(tmp_path / "db").pods.values()) == list(pods)


def _entry(at: float) -> HistoryEntry:
    return HistoryEntry(at, "kind", "uid", "ns/name", '{"reason": "ü"}')
