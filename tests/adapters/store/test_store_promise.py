"""Damage in the write-ahead log, of which SQLite says nothing, is found by the number beside it."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pinfold.adapters.store import SQLiteStore
from pinfold.adapters.store.promise import path_of, promised
from pinfold.ports.errors import StoreError
from pinfold.ports.records import Batch, Record
from tests.roots import ROOT
from tests.scenes.store_contract import NODE, load

ROUNDS = int(os.environ.get("PINFOLD_DAMAGE_ROUNDS", "25"))
COMMITS = 6

WRITER = """
import asyncio, os, signal, sys
from pathlib import Path
from pinfold.adapters.store import SQLiteStore
from pinfold.ports.records import Batch, HistoryEntry
from tests.scenes.store_contract import NODE
async def main():
    store = SQLiteStore.open(Path(sys.argv[1]))
    for number in range(int(sys.argv[2])):
        entry = HistoryEntry(float(number), "admitted", None, None, "{}")
        await store.commit(Batch(NODE, history=(entry,)))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record whose owner was killed, so that its log is there."""
    folder = tmp_path_factory.mktemp("killed")
    program = [sys.executable, "-c", WRITER, str(folder / "db"), str(COMMITS)]
    subprocess.run(program, cwd=ROOT, check=False)
    assert (folder / "db-wal").stat().st_size > 0
    return folder


def copied(killed: Path, to: Path) -> Path:
    for file in killed.iterdir():
        shutil.copy(file, to / file.name)
    return to / "db"


def test_what_was_committed_is_promised(killed: Path, tmp_path: Path) -> None:
    record = load(copied(killed, tmp_path))
    assert (record.generation, record.promised) == (COMMITS, COMMITS)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_bit_that_is_flipped_in_the_log_is_found(killed: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - bits, not secrets
    path = copied(killed, tmp_path)
    log = Path(f"{path}-wal")
    data = bytearray(log.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    log.write_bytes(data)
    try:
        record = load(path)
    except StoreError:
        return  # it was refused, too
    assert record.promised == COMMITS
    # Where nothing is said to be missing, nothing is.
    assert record.generation == len(history(path))
    if record.generation == COMMITS:
        assert record.node == NODE


def history(path: Path) -> list[float]:
    async def whole() -> list[float]:
        store = SQLiteStore.open(path)
        try:
            return [entry.at for entry in await store.history()]
        finally:
            await store.close()

    return asyncio.run(whole())


def commit(path: Path, above: int = 0) -> tuple[int, Record]:
    async def whole() -> tuple[int, Record]:
        store = SQLiteStore.open(path)
        try:
            await store.commit(Batch(NODE, above=above))
            return store.generation, await store.load()
        finally:
            await store.close()

    return asyncio.run(whole())


@pytest.mark.parametrize("loss", ["removed", "cut"])
def test_a_log_that_is_gone_is_found(killed: Path, tmp_path: Path, loss: str) -> None:
    path = copied(killed, tmp_path)
    log = Path(f"{path}-wal")
    if loss == "removed":
        log.unlink()
    else:
        os.truncate(log, log.stat().st_size - 100)
    record = load(path)
    assert record.promised == COMMITS
    assert record.generation < COMMITS


def test_an_old_copy_is_found(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path)
    old = tmp_path / "old"
    load(path)
    shutil.copy(path, old)
    commit(path)
    shutil.copy(old, path)
    record = load(path)
    assert (record.generation, record.promised) == (COMMITS, COMMITS + 1)


def test_the_next_commit_is_above_all_that_was_promised(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path)
    Path(f"{path}-wal").unlink()
    generation, record = commit(path)
    assert (generation, record.generation, record.promised) == (COMMITS + 1,) * 3
    generation, record = commit(path, above=100)
    assert (generation, record.generation, record.promised) == (101,) * 3


@pytest.mark.parametrize("what", ["removed", "flipped", "empty", "folder", "link", "fifo"])
def test_a_damaged_promise_promises_nothing_and_stops_nothing(
    killed: Path, tmp_path: Path, what: str
) -> None:
    path = copied(killed, tmp_path)
    promise = path_of(path)
    data = promise.read_bytes()
    promise.unlink()
    if what == "flipped":
        promise.write_bytes(data.replace(b"6", b"7", 1))
    elif what == "empty":
        promise.write_bytes(b"")
    elif what == "folder":
        promise.mkdir()
    elif what == "link":
        promise.symlink_to(tmp_path / "nowhere")
    elif what == "fifo":
        os.mkfifo(promise)
    record = load(path)
    assert (record.generation, record.promised) == (COMMITS, 0)
    commit(path)
    assert promised(path) == COMMITS + 1


def test_a_record_that_was_moved_away_took_its_promise_along(killed: Path, tmp_path: Path) -> None:
    path = copied(killed, tmp_path)
    for name in ("db", "db-wal", "db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    record = load(path)
    assert (record.generation, record.promised) == (0, 0)


FIRST_MOMENT = """
import os, signal, sys
from pathlib import Path
from pinfold.adapters.store import SQLiteStore, sqlite
create = sqlite.create
def create_and_die(*args):
    create(*args)
    os.kill(os.getpid(), signal.SIGKILL)
sqlite.create = create_and_die
SQLiteStore.open(Path(sys.argv[1]))
"""


def test_a_new_record_never_stands_beside_the_promise_of_another(
    killed: Path, tmp_path: Path
) -> None:
    path = copied(killed, tmp_path)
    for name in ("db", "db-wal", "db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    program = [sys.executable, "-c", FIRST_MOMENT, str(path)]
    subprocess.run(program, cwd=ROOT, check=False)
    assert path.exists()
    record = load(path)
    assert (record.generation, record.promised) == (0, 0)
