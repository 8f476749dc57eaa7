"""Shields on this machine's kernel, whichever cgroup version it has; needs root and two CPUs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.shield import ShieldError, foreign_threads, raise_shield, read_shield
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.shield_scene import (
    Scene,
    alive,
    allowed,
    scene_in,
    session,
)
from tests.scenes.waiting import wait_until

THREADS = (
    "import threading, time\n"
    "for _ in range(5): threading.Thread(target=time.sleep, args=(1000,)).start()\n"
    "print(1, flush=True)\ntime.sleep(1000)"
)
FORKER = "while :; do for n in 1 2 3; do (sleep 0.01; :) & done; wait; done"
CRASHER = """
import asyncio, os, signal, sys
from pathlib import Path
from pinfold.adapters.shield import Method, Place, raise_shield
from pinfold.core.values.cpuset import CPUSet
root, method, name, record, cpus, left = sys.argv[1:]
left = int(left)
def hook(event, arguments):
    global left
    if event in ("open", "os.mkdir", "os.rename") and isinstance(arguments[0], (str, Path)):
        if str(arguments[0]).startswith((root, os.path.dirname(record))):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
asyncio.run(raise_shield(CPUSet.parse(cpus), keep=(), record=Path(record), name=name,
                         place=Place(Method(method), Path(root))))
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with scene_in(tmp_path) as made:
        yield made


def test_everything_goes_and_comes_back(scene: Scene) -> None:
    others = scene.cpus - scene.last
    low = CPUSet([min(scene.cpus)])
    free = scene.start("sleep", "1000")
    threaded = scene.start(sys.executable, "-c", THREADS, ready=True)
    pinned = scene.start("taskset", "-c", str(scene.last), "sleep", "1000")
    elsewhere = scene.start("taskset", "-c", str(low), "sleep", "1000")
    wait_until(lambda: allowed(pinned) == scene.last and allowed(elsewhere) == low)

    report = scene.up(scene.last)

    tids = [int(name) for name in os.listdir(f"/proc/{threaded}/task")]
    assert len(tids) == 6
    assert {allowed(tid) for tid in (free, pinned, *tids)} == {others}
    assert allowed(elsewhere) == low
    assert scene.cgroup_of(free) == scene.cgroup
    assert report.moved >= (9 if scene.version == 1 else 4)
    shield = read_shield(scene.record)
    assert shield is not None
    assert shield.complete
    assert (shield.cpus, shield.others) == (scene.last, others)
    seen = {one.tid for one in foreign_threads(shield)}
    assert seen.isdisjoint({free, pinned, elsewhere, *tids})

    scene.down()

    assert {allowed(tid) for tid in (free, *tids)} == {scene.cpus}
    assert allowed(pinned) == scene.last
    assert allowed(elsewhere) == low
    assert scene.cgroup_of(free) == scene.place.root
    assert not scene.cgroup.exists()
    assert read_shield(scene.record) is None
    assert scene.down().shield is None


def test_who_is_born_meanwhile_is_caught(scene: Scene) -> None:
    forkers = [scene.start("sh", "-c", FORKER) for _ in range(2)]
    for _ in range(3):
        scene.up(scene.last)
        for pid in (pid for forker in forkers for pid in session(forker)):
            with contextlib.suppress(ProcessLookupError):
                assert allowed(pid).isdisjoint(scene.last) or not alive(pid)
        scene.down()
        assert all(allowed(forker) == scene.cpus for forker in forkers)


def test_an_affinity_set_under_the_shield_stays(scene: Scene) -> None:
    if len(scene.cpus) < 3:
        pytest.skip("needs three CPUs")
    others = scene.cpus - scene.last
    pid = scene.start("taskset", "-c", str(scene.last), "sleep", "1000")
    wait_until(lambda: allowed(pid) == scene.last)
    scene.up(scene.last)
    own = CPUSet([min(others)])
    os.sched_setaffinity(pid, own)
    scene.down()
    assert allowed(pid) == own


def test_raised_again_it_is_another(scene: Scene) -> None:
    low = CPUSet([min(scene.cpus)])
    pid = scene.start("sleep", "1000")
    pinned = scene.start("taskset", "-c", str(scene.last), "sleep", "1000")
    wait_until(lambda: allowed(pinned) == scene.last)
    scene.up(scene.last)
    scene.up(scene.last)
    assert allowed(pid) == scene.cpus - scene.last
    scene.up(low)
    assert allowed(pid) == scene.cpus - low
    assert allowed(pinned) == scene.last
    scene.down()
    assert allowed(pid) == scene.cpus
    assert allowed(pinned) == scene.last
    assert not scene.cgroup.exists()


@pytest.mark.parametrize("finish", ["lower", "raise"])
def test_a_crash_is_mended(scene: Scene, finish: str) -> None:
    """Killed before its n-th step, for steps from the first to the last."""
    pid = scene.start("sleep", "1000")
    pinned = scene.start("taskset", "-c", str(scene.last), "sleep", "1000")
    wait_until(lambda: allowed(pinned) == scene.last)
    deaths = 0
    for step in (2, 4, 7, 11, 16, 22, 100_000) if finish == "lower" else (9, 18):
        where = (str(scene.place.root), scene.place.method.value, scene.name, str(scene.record))
        child = subprocess.run(
            [sys.executable, "-c", CRASHER, *where, str(scene.last), str(step)], check=False
        )
        assert child.returncode in (0, -9)
        deaths += child.returncode == -9
        if finish == "raise":
            scene.up(scene.last)
            shield = read_shield(scene.record)
            assert shield is not None
            assert shield.complete
            assert allowed(pid) == scene.cpus - scene.last
        scene.down()
        assert allowed(pid) == scene.cpus
        assert allowed(pinned) == scene.last
        assert scene.cgroup_of(pid) == scene.place.root
        assert not scene.cgroup.exists()
        assert read_shield(scene.record) is None
    assert deaths >= 2


def test_without_a_record_our_cgroup_is_emptied(scene: Scene) -> None:
    pid = scene.start("sleep", "1000")
    scene.up(scene.last)
    scene.record.unlink()
    (scene.cgroup / "inner").mkdir()
    report = scene.down()
    assert "no record" in report.notes[-1]
    assert allowed(pid) == scene.cpus
    assert not scene.cgroup.exists()


def test_two_at_once_take_turns(scene: Scene) -> None:
    low = CPUSet([min(scene.cpus)])
    pid = scene.start("sleep", "1000")

    async def both() -> None:
        await asyncio.gather(
            *(
                raise_shield(cpus, keep=(), record=scene.record, name=scene.name, place=scene.place)
                for cpus in (low, scene.last, low, scene.last)
            )
        )

    asyncio.run(both())
    shield = read_shield(scene.record)
    assert shield is not None
    assert shield.cpus in (low, scene.last)
    assert allowed(pid) == shield.others
    scene.down()
    assert allowed(pid) == scene.cpus


def test_a_refusing_kernel_leaves_nothing_changed(scene: Scene) -> None:
    if scene.version != 1:
        pytest.skip("needs a cpuset hierarchy of cgroup v1")
    # A child that uses all CPUs: the kernel does not take any from its parent.
    mems = (scene.place.root / "cpuset.mems").read_text()
    for folder in (scene.cgroup, scene.cgroup / "inner"):
        folder.mkdir()
        (folder / "cpuset.mems").write_text(mems)
        (folder / "cpuset.cpus").write_text(str(scene.cpus))
    pid = scene.start("sleep", "1000")
    with pytest.raises(ShieldError, match=f"{scene.name}.*still use") as caught:
        scene.up(scene.last)
    assert "half done" not in str(caught.value)
    assert allowed(pid) == scene.cpus
    assert not scene.cgroup.exists()
    assert read_shield(scene.record) is None


def test_a_record_that_cannot_be_written_stops_it_before_anything(scene: Scene) -> None:
    scene.record.parent.joinpath("file").touch()
    record = scene.record.parent / "file" / "shield.json"
    with pytest.raises(ShieldError, match="file"):
        asyncio.run(
            raise_shield(scene.last, keep=(), record=record, name=scene.name, place=scene.place)
        )
    assert not scene.cgroup.exists()
