"""A record on a disk that is full: what has been begun comes to its end, nothing new begins."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.store import SQLiteStore
from pinfold.ports.errors import StoreError
from pinfold.ports.records import Batch, HistoryEntry, PodPhase, PodRecord
from tests.scenes.small_disk import mounted

PODS = 40


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "6m"):
        yield tmp_path / "disk"


def fill(disk: Path) -> Path:
    """Leave no room, as any other program may at any moment."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def a_pod(number: int) -> PodRecord:
    name = f"pod-{number}"
    manifest = json.dumps({"x": "y" * 2000})
    return PodRecord(f"uid-{number}", "default", name, manifest, PodPhase.RUNNING)


def entry(pod: PodRecord, kind: str) -> HistoryEntry:
    return HistoryEntry(0.0, kind, pod.uid, pod.name, "{}")


async def delete(store: SQLiteStore, pod: PodRecord) -> None:
    """What a manager writes of it."""
    await store.commit(Batch(put=(replace(pod, phase=PodPhase.TERMINATING),)))
    await store.commit(Batch(drop=(pod.uid,), history=(entry(pod, "released"),)))


def test_pods_are_deleted_on_a_full_disk(disk: Path) -> None:
    async def run() -> None:
        store = SQLiteStore.open(disk / "pinfold.db")
        pods = [a_pod(number) for number in range(PODS)]
        for pod in pods:
            await store.commit(Batch(put=(pod,), history=(entry(pod, "admitted"),)))
        assert store.problem == ""
        ballast = fill(disk)
        await store.check()
        assert "which are kept for deleting pods" in store.problem
        for pod in pods:
            await delete(store, pod)
        assert (await store.load()).pods == {}
        assert store.problem
        ballast.unlink()
        await store.check()
        assert store.problem == ""
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_an_agent_starts_on_a_full_disk(disk: Path, ending: str) -> None:
    """What was kept for it is there for whatever SQLite has to make anew."""
    path, pod = disk / "pinfold.db", a_pod(1)

    async def before() -> None:
        store = SQLiteStore.open(path)
        await store.commit(Batch(put=(pod,)))
        await store.close()

    def beside() -> None:
        script = (
            "import asyncio, os, sys; from pathlib import Path\n"
            "from pinfold.adapters.store import SQLiteStore\n"
            "from pinfold.ports.records import Batch\n"
            "async def run():\n"
            "    await SQLiteStore.open(Path(sys.argv[1])).commit(Batch())\n"
            "    os._exit(9)\n"
            "asyncio.run(run())"
        )
        done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
        assert done.returncode == 9

    async def after() -> None:
        store = SQLiteStore.open(path)
        assert store.problem
        await delete(store, pod)
        assert (await store.load()).pods == {}
        await store.close()

    asyncio.run(before())
    if ending == "killed":
        beside()
    fill(disk)
    asyncio.run(after())


def test_a_batch_that_is_refused_is_no_trouble_of_the_disk(disk: Path) -> None:
    async def run() -> None:
        store = SQLiteStore.open(disk / "pinfold.db")
        with pytest.raises(StoreError, match="name"):
            await store.commit(Batch(put=(a_pod(1), replace(a_pod(2), name="pod-1"))))
        assert store.problem == ""
        await store.close()

    asyncio.run(run())


def test_a_record_that_was_removed_is_a_problem_until_it_is_back(disk: Path) -> None:
    async def run() -> None:
        path = disk / "pinfold.db"
        store = SQLiteStore.open(path)
        path.rename(disk / "elsewhere")
        await store.check()
        assert "removed while the agent has it open (put it back, or " in store.problem
        with pytest.raises(StoreError, match="removed"):
            await store.commit(Batch(put=(a_pod(1),)))
        assert "removed while the agent has it open (put it back, or " in store.problem
        (disk / "elsewhere").rename(path)
        await store.check()
        assert store.problem == ""
        await store.close()

    asyncio.run(run())
