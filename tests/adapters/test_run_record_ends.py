"""The list of commands and its lock: the last one leaves nothing, whoever is killed when."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pinfold.adapters.run_record import Entry, RunRecord
from pinfold.adapters.shield.record import lock as shield_lock
from pinfold.linux.locks import HeldError, lock
from pinfold.linux.processes import began
from tests.roots import ROOT
from tests.scenes.waiting import PATIENCE

LIFE = """
import os, sys
from pathlib import Path
from pinfold.adapters.run_record import Entry, RunRecord
from pinfold.linux.processes import began
folder, uid, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
record, witness = RunRecord(folder / "alone.json"), folder.parent / "witness"
def alone():
    os.close(os.open(witness, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(witness)
print("ready", flush=True)
for _ in range(rounds):
    with record.locked() as entries:
        alone()
        assert uid not in entries
        entries[uid] = Entry(os.getpid(), began(os.getpid()), "1", "{}")
    with record.locked() as entries:
        alone()
        assert uid in entries, "it was lost"
        del entries[uid]
"""


def life(folder: Path, uid: str, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LIFE, str(folder), uid, str(rounds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def entry() -> Entry:
    return Entry(os.getpid(), began(os.getpid()) or 0, "1", "{}")


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_command_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record = RunRecord(folder / "alone.json")
    with record.locked() as entries:
        entries["a"] = entry()
    assert left(folder) == ["alone.json", "alone.json.lock"]
    with record.locked() as entries:
        entries["b"] = entry()
    with record.locked() as entries:
        del entries["a"]
    assert left(folder) == ["alone.json", "alone.json.lock"]
    with record.locked() as entries:
        del entries["b"]
    assert left(folder) == []
    with pytest.raises(ZeroDivisionError), record.locked():
        raise ZeroDivisionError
    assert left(folder) == []


def test_what_a_killed_writer_left_goes_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record = RunRecord(folder / "alone.json")
    with record.locked() as entries:
        entries["gone"] = Entry(os.getpid(), 1, "1", "{}")
    (folder / ".alone.json.new").write_text("half")
    with record.locked() as entries:
        assert entries == {}
    assert left(folder) == []


def test_commands_beside_one_another_lose_no_entry(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lives = [life(folder, f"uid-{number}", 40) for number in range(4)]
    told = [one.communicate(timeout=60 * PATIENCE)[1] for one in lives]
    assert [one.returncode for one in lives] == [0] * 4, told
    assert left(folder) == []


def test_commands_that_are_killed_at_any_moment_hold_up_nobody(tmp_path: Path) -> None:
    folder, chance = tmp_path / "run", random.Random(7)  # noqa: S311 - moments
    witness = folder.parent / "witness"
    for number in range(15):
        one = life(folder, f"uid-{number}", 100_000)
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 0.05))
        one.send_signal(signal.SIGKILL)
        one.communicate()
        assert one.returncode == -signal.SIGKILL
        witness.unlink(missing_ok=True)  # of the one that was killed
        begin = time.monotonic()
        with RunRecord(folder / "alone.json").locked() as entries:
            assert entries == {}
        assert time.monotonic() - begin < 5 * PATIENCE
        assert left(folder) == []


def opens(path: Path) -> Callable[[], int]:
    return lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def test_who_waits_for_a_lock_that_is_removed_has_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = lock(path, opens(path))
    waiting: list[bool] = []

    def wait() -> None:
        held = lock(path, opens(path), patience=30 * PATIENCE)
        waiting.append(held.in_place)
        with pytest.raises(HeldError):
            lock(path, opens(path))
        held.leave(tmp_path / "record")

    other = threading.Thread(target=wait)
    other.start()
    time.sleep(0.05)
    assert waiting == []
    first.leave(tmp_path / "record")
    other.join()
    assert waiting == [True]
    assert left(tmp_path) == []


def test_a_shield_that_is_down_leaves_nothing(tmp_path: Path) -> None:
    record = tmp_path / "run" / "shield.json"

    async def change(*, up: bool) -> list[str]:
        async with shield_lock(record):
            if up:
                record.touch()
            else:
                record.unlink(missing_ok=True)
        return left(record.parent)

    assert asyncio.run(change(up=False)) == []
    assert asyncio.run(change(up=True)) == ["shield.json", "shield.json.lock"]
    assert asyncio.run(change(up=False)) == []


def test_a_lock_stays_with_its_record(tmp_path: Path) -> None:
    path, record = tmp_path / "lock", tmp_path / "record"
    record.touch()
    lock(path, opens(path)).leave(record)
    assert left(tmp_path) == ["lock", "record"]
    held = lock(path, opens(path))
    record.unlink()
    path.unlink()
    path.touch()  # somebody else's by now
    held.leave(record)
    assert left(tmp_path) == ["lock"]
