"""The SQLite store is killed at random moments; what was acknowledged is there, and no half of it.

A driver of one thread forks the victims: a process of several threads should not fork.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.store import SQLiteStore
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import StoreError
from pinfold.ports.records import Batch, HistoryEntry, PodRecord, Record
from tests.roots import ROOT
from tests.scenes.store_contract import NODE, pod

LIVES = 50
HISTORY_LIMIT = 7


def batch(number: int) -> Batch:
    """The batches of every life, by number: they write, change and drop."""
    new = pod(
        f"p{number % 9}",
        uid=f"uid-{number % 9}",
        message=str(number) * (number % 400),
        assignments={f"c{n}": CPUSet([number % 512, n]) for n in range(number % 5)},
        restarts={"c": number},
    )
    entry = HistoryEntry(-float(number), "k", new.uid, "n/p", f'{{"n": {number}}}')
    return Batch(
        node=replace(NODE, default=CPUSet([number])),
        put=(new, pod("kept", message=str(number))),
        drop=(f"uid-{(number + 4) % 9}",),
        history=(entry,) * (number % 3 + 1),
    )


@dataclass
class Model:
    """What the record has to be after a number of batches."""

    done: int = 0
    pods: dict[str, PodRecord] = field(default_factory=dict)
    entries: list[HistoryEntry] = field(default_factory=list)
    count: int = 0

    def advance(self) -> None:
        change = batch(self.done)
        self.pods = {uid: p for uid, p in self.pods.items() if uid not in change.drop}
        self.pods.update({p.uid: p for p in change.put})
        for entry in change.history:
            self.count += 1
            self.entries.append(replace(entry, number=self.count))
        self.entries = self.entries[-HISTORY_LIMIT:]
        self.done += 1

    def expect(self, record: Record, history: list[HistoryEntry]) -> None:
        node = None if self.done == 0 else batch(self.done - 1).node
        assert record == Record(node, self.pods), f"not the record after {self.done} batches"
        assert list(record.pods) == list(self.pods)
        assert history == self.entries[::-1]


def committed(record: Record) -> int:
    return 0 if record.node is None else max(record.node.default) + 1


async def read(path: Path) -> tuple[Record, list[HistoryEntry]]:
    store = SQLiteStore.open(path, history_limit=HISTORY_LIMIT)
    try:
        return await store.load(), list(await store.history())
    finally:
        await store.close()


async def commit_for_ever(path: Path, number: int, said: int) -> None:
    store = SQLiteStore.open(path, history_limit=HISTORY_LIMIT)
    while True:
        await store.commit(batch(number))
        os.write(said, b".")
        number += 1


def live_and_die(path: Path, start: int, chance: random.Random) -> int:
    """Let a child commit, kill it at some moment, and count what it acknowledged."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(commit_for_ever(path, start, writer))
        finally:
            os._exit(1)
    os.close(writer)
    said = 0
    for _ in range(chance.choice((0, 0, 1, 2, 5, 20))):
        said += len(os.read(reader, 1))
    time.sleep(chance.random() ** 3 * 0.03)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child failed before it was killed"
    while more := os.read(reader, 4096):
        said += len(more)
    os.close(reader)
    return said


def drive(folder: Path, seed: int) -> None:
    """Many lives on one record; now and then the first life on a new one."""
    chance = random.Random(seed)  # noqa: S311 - moments, not secrets
    model, path, dropped = Model(), folder / "0" / "db", 0
    for life in range(LIVES):
        if chance.random() < 0.15:
            model, path = Model(), folder / str(life) / "db"
        said = live_and_die(path, model.done, chance)
        acknowledged = model.done + said
        record, history = asyncio.run(read(path))
        found = committed(record)
        assert acknowledged <= found <= acknowledged + 1, (acknowledged, found)
        while model.done < found:
            model.advance()
        model.expect(record, history)
        dropped += said
    sys.stdout.write(f"{LIVES} lives, {dropped} batches\n")


@pytest.mark.parametrize("seed", range(6))
def test_every_acknowledged_batch_survives_a_kill(tmp_path: Path, seed: int) -> None:
    # What a process has written outlives it on any file system; this one is the quickest.
    memory = Path("/dev/shm")  # noqa: S108 - the name is of this process
    folder = tmp_path
    if os.access(memory, os.W_OK):
        folder = memory / f"pinfold-store-{os.getpid()}-{seed}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.adapters.store.test_store_crash", str(folder), str(seed)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    finally:
        if folder != tmp_path:
            shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[2]) > LIVES, "hardly anything was written"


def test_a_kill_leaves_no_lock(tmp_path: Path) -> None:
    """Nor does a child of the agent that runs on keep it."""
    path = tmp_path / "db"
    script = (
        "import sys, subprocess, os, signal; from pathlib import Path;"
        "from pinfold.adapters.store import SQLiteStore;"
        "store = SQLiteStore.open(Path(sys.argv[1]));"
        "child = subprocess.Popen(['sleep', '60'], stdout=2);"
        "print(child.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True, check=False
    )
    child = int(done.stdout)
    try:
        assert done.returncode == -signal.SIGKILL
        record, _ = asyncio.run(read(path))
        assert record == Record()
    except StoreError as error:
        pytest.fail(str(error))
    finally:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    drive(Path(sys.argv[1]), int(sys.argv[2]))
