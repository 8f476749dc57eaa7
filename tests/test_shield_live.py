"""Shields on this machine's kernel, whichever cgroup version it has; needs root and two CPUs.

On cgroup v1 a cpuset of the test's own stands for the root, so that others are left in peace.  On
v2, where processes can be only in the true root, it is that one, and one test at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from pinfold.adapters.shield import (
    Method,
    Place,
    ShieldError,
    ShieldReport,
    find_place,
    lower_shield,
    raise_shield,
    read_shield,
    strangers,
)
from pinfold.core.cpuset import CPUSet

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
from pinfold.core.cpuset import CPUSet
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


@dataclass
class Scene:
    """A root cgroup, and processes in it."""

    place: Place
    name: str
    record: Path
    stack: ExitStack
    cpus: CPUSet

    @property
    def last(self) -> CPUSet:
        return CPUSet([max(self.cpus)])

    @property
    def cgroup(self) -> Path:
        return self.place.root / self.name

    @property
    def version(self) -> int:
        return 1 if self.place.method is Method.CGROUP1 else 2

    def up(self, cpus: CPUSet, *, irqs: bool = False, keep: tuple[str, ...] = ()) -> ShieldReport:
        return asyncio.run(
            raise_shield(
                cpus, irqs=irqs, keep=keep, record=self.record, name=self.name, place=self.place
            )
        )

    def down(self) -> ShieldReport:
        return asyncio.run(lower_shield(record=self.record, name=self.name, place=self.place))

    def start(self, *command: str, ready: bool = False, folder: Path | None = None) -> int:
        """Start a process in the root cgroup (or another); it is ended with the test."""
        target = (folder or self.place.root) / "cgroup.procs"
        child = self.stack.enter_context(
            subprocess.Popen(
                ["sh", "-c", f'echo $$ > "{target}"; echo; exec "$@"', "sh", *command],
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        )
        self.stack.callback(kill_session, child.pid)
        assert child.stdout is not None
        child.stdout.readline()
        if ready:
            child.stdout.readline()
        return child.pid

    def group(self, name: str, cpus: CPUSet | None = None) -> Path:
        """A cgroup beside the shield's."""
        folder = self.place.root / f"{self.name}-{name}"
        folder.mkdir()
        self.stack.callback(remove_soon, folder)
        if self.version == 1:
            mems = (self.place.root / "cpuset.mems").read_text()
            (folder / "cpuset.mems").write_text(mems)
        if cpus is not None:
            if not (folder / "cpuset.cpus").exists():
                (self.place.root / "cgroup.subtree_control").write_text("+cpuset")
            (folder / "cpuset.cpus").write_text(str(cpus))
        return folder

    def cgroup_of(self, pid: int) -> Path:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "cpuset" or (self.version == 2 and not controllers):
                mount = find_place().root
                return mount / path.lstrip("/")
        raise AssertionError(pid)


def kill_session(leader: int) -> None:
    """End a process and what it has started."""
    for _ in range(100):
        left = [pid for pid in session(leader) if alive(pid)]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        if not left:
            return
        time.sleep(0.01)


def session(leader: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.getsid(int(entry)) == leader:
                found.append(int(entry))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def allowed(pid: int) -> CPUSet:
    return CPUSet(os.sched_getaffinity(pid))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def machine() -> Iterator[Place]:
    """The machine's own hierarchy; one test at a time, whichever process it runs in."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    try:
        place = find_place()
    except ShieldError as error:
        pytest.skip(str(error))
    if place.method is Method.SYSTEMD:
        pytest.skip("systemd runs here, and its slices are not a test's to change")
    with (Path(tempfile.gettempdir()) / "pinfold-shield-tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield place


@pytest.fixture
def scene(machine: Place, tmp_path: Path) -> Iterator[Scene]:
    cpus = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text())
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    place, name = machine, f"pinfold-test-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        if place.method is Method.CGROUP1:
            root = place.root / name
            root.mkdir()
            stack.callback(remove_soon, root)
            for file in ("cpuset.cpus", "cpuset.mems"):
                (root / file).write_text((place.root / file).read_text())
            place = Place(Method.CGROUP1, root)
        made = Scene(place, name, tmp_path / "shield.json", stack, cpus)
        try:
            yield made
        finally:
            made.down()


def remove_soon(folder: Path) -> None:
    """The dead leave their cgroup a moment after they have been waited for."""

    def gone() -> bool:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return not folder.exists()

    until(gone)


def test_everything_goes_and_comes_back(scene: Scene) -> None:
    others = scene.cpus - scene.last
    low = CPUSet([min(scene.cpus)])
    free = scene.start("sleep", "1000")
    threaded = scene.start(sys.executable, "-c", THREADS, ready=True)
    pinned = scene.start("taskset", "-c", str(scene.last), "sleep", "1000")
    elsewhere = scene.start("taskset", "-c", str(low), "sleep", "1000")
    until(lambda: allowed(pinned) == scene.last and allowed(elsewhere) == low)

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
    seen = {one.tid for one in strangers(shield)}
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
    until(lambda: allowed(pid) == scene.last)
    scene.up(scene.last)
    own = CPUSet([min(others)])
    os.sched_setaffinity(pid, own)
    scene.down()
    assert allowed(pid) == own


def test_raised_again_it_is_another(scene: Scene) -> None:
    low = CPUSet([min(scene.cpus)])
    pid = scene.start("sleep", "1000")
    pinned = scene.start("taskset", "-c", str(scene.last), "sleep", "1000")
    until(lambda: allowed(pinned) == scene.last)
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
    until(lambda: allowed(pinned) == scene.last)
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


def test_a_partition_is_not_broken(scene: Scene) -> None:
    """It owns its CPUs, so that the others get what is left; nothing left is refused."""
    if scene.version != 2 or len(scene.cpus) < 3:
        pytest.skip("needs cgroup v2 and three CPUs")
    low = CPUSet([min(scene.cpus)])
    owner = scene.group("owner", low)
    state = owner / "cpuset.cpus.partition"
    state.write_text("root")
    assert state.read_text() == "root\n"
    pid = scene.start("sleep", "1000")
    scene.up(scene.last)
    assert allowed(pid) == scene.cpus - scene.last - low
    assert state.read_text() == "root\n"
    scene.down()
    with pytest.raises(ShieldError, match="partitions own"):
        scene.up(scene.cpus - low)
    assert allowed(pid) == scene.cpus - low
    assert read_shield(scene.record) is None


def test_a_record_that_cannot_be_written_stops_it_before_anything(scene: Scene) -> None:
    scene.record.parent.joinpath("file").touch()
    record = scene.record.parent / "file" / "shield.json"
    with pytest.raises(ShieldError, match="file"):
        asyncio.run(
            raise_shield(scene.last, keep=(), record=record, name=scene.name, place=scene.place)
        )
    assert not scene.cgroup.exists()


def test_other_cgroups_of_version_1_are_named_and_left(scene: Scene) -> None:
    if scene.version != 1:
        pytest.skip("needs a cpuset hierarchy of cgroup v1")
    other, kept = scene.group("other", scene.cpus), scene.group("kept", scene.cpus)
    for folder in (other, kept):
        scene.start("sleep", "1000", folder=folder)
    empty = scene.group("empty", scene.cpus)
    report = scene.up(scene.last, keep=(f"/{kept.name}",))
    assert [left for left in report.left if "cpuset" in left] == [
        f"cpuset {other}: 1 task(s) that may run on CPUs {scene.last}"
    ]
    for folder in (other, kept, empty):
        assert CPUSet.parse((folder / "cpuset.cpus").read_text()) == scene.cpus


def test_other_cgroups_of_version_2_are_cut_and_restored(scene: Scene) -> None:
    if scene.version != 2:
        pytest.skip("needs cgroup v2")
    others = scene.cpus - scene.last
    plain, kept = scene.group("plain"), scene.group("kept")
    own = scene.group("own", scene.cpus)
    inside = scene.group("inside", scene.last)
    foreign = scene.group("foreign")
    folders = (plain, kept, own, inside, foreign)
    pids = {folder: scene.start("sleep", "1000", folder=folder) for folder in folders}
    os.sched_setaffinity(pids[own], scene.last)

    report = scene.up(scene.last, keep=(f"/{kept.name}",))

    assert [allowed(pids[folder]) for folder in folders] == [
        others,
        scene.cpus,
        others,
        scene.last,
        others,
    ]
    assert any(str(inside) in left for left in report.left)
    assert not any(str(plain) in left or str(kept) in left for left in report.left)
    low = CPUSet([min(scene.cpus)])
    (foreign / "cpuset.cpus").write_text(str(low))

    notes = scene.down().notes

    values = {folder: (folder / "cpuset.cpus").read_text().strip() for folder in folders}
    assert values == {
        plain: str(scene.cpus),  # the kernel takes no empty list while a task is there
        kept: "",
        own: str(scene.cpus),
        inside: str(scene.last),
        foreign: str(low),
    }
    assert [allowed(pids[folder]) for folder in folders] == [
        scene.cpus,
        scene.cpus,
        scene.last,
        scene.last,
        low,
    ]
    assert any(str(foreign) in note for note in notes)


def test_the_controller_is_switched_off_again(scene: Scene) -> None:
    if scene.version != 2:
        pytest.skip("needs cgroup v2")
    file = scene.place.root / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        file.write_text("-cpuset")
    if "cpuset" in file.read_text().split():
        pytest.skip("somebody else uses the cpuset controller")
    pid = scene.start("sleep", "1000", folder=scene.group("plain"))
    scene.up(scene.last)
    assert allowed(pid) == scene.cpus - scene.last
    assert "cpuset" in file.read_text().split()
    assert not scene.down().notes
    assert "cpuset" not in file.read_text().split()
    assert allowed(pid) == scene.cpus


def interrupts() -> dict[str, str]:
    files = (*Path("/proc/irq").glob("[0-9]*/smp_affinity_list"), *DEFAULT)
    return {str(file): file.read_text().strip() for file in files}


DEFAULT = (Path("/proc/irq/default_smp_affinity"),)


def test_interrupts_go_and_come_back(scene: Scene) -> None:
    before = interrupts()
    report = scene.up(scene.last, irqs=True)
    during = interrupts()
    fixed = {f"/proc/irq/{number}/smp_affinity_list" for number in report.irqs_fixed}
    moved = {
        file
        for file, text in before.items()
        if not file.endswith("default_smp_affinity") and CPUSet.parse(text) & scene.last
    } - fixed
    assert all(CPUSet.parse(during[file]).isdisjoint(scene.last) for file in moved)
    assert report.irqs_moved == len(moved)
    assert all(during[file] == before[file] for file in fixed)
    assert CPUSet.parse_hex(DEFAULT[0].read_text()).isdisjoint(scene.last)
    scene.up(scene.last)
    assert interrupts() == before
    scene.up(scene.last, irqs=True)
    assert interrupts() == during
    scene.down()
    assert interrupts() == before


def test_the_whole_machine(machine: Place, tmp_path: Path) -> None:
    """The real root cgroup, with the kernel's threads, for a moment."""
    cpus = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text())
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    last = CPUSet([max(cpus)])
    record, name = tmp_path / "shield.json", f"pinfold-test-{secrets.token_hex(4)}"
    daemon = 2  # kthreadd, which no cgroup takes
    before = allowed(daemon)

    async def scenario() -> ShieldReport:
        try:
            report = await raise_shield(last, record=record, name=name, place=machine)
            shield = read_shield(record)
            assert shield is not None
            # Kernel threads born just now come with the affinity that the kernel gives them.
            assert len(strangers(shield)) <= 3 or report.left
            assert allowed(daemon).isdisjoint(last)
            assert allowed(os.getpid()).isdisjoint(last)
            return report
        finally:
            await lower_shield(record=record, name=name, place=machine)

    report = asyncio.run(scenario())
    assert report.bound > 0
    assert report.moved >= 3
    assert allowed(daemon) == before
    assert not (machine.root / name).exists()
