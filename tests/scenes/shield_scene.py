"""A root cgroup for a shield, on this machine's kernel, and processes in it.

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
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
)
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.waiting import wait_until


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


@contextmanager
def own_machine() -> Iterator[Place]:
    """The machine's own hierarchy; one test at a time, whichever process it runs in."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if len(online()) < 2:
        pytest.skip("needs two CPUs")
    try:
        place = find_place()
    except ShieldError as error:
        pytest.skip(str(error))
    if place.method is Method.SYSTEMD:
        pytest.skip("systemd runs here, and its slices are not a test's to change")
    with (Path(tempfile.gettempdir()) / "pinfold-shield-tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield place


@contextmanager
def scene_in(folder: Path) -> Iterator[Scene]:
    """A root cgroup, with the record in a folder; all is gone afterwards."""
    name = f"pinfold-test-{secrets.token_hex(4)}"
    with own_machine() as machine, ExitStack() as stack:
        place = machine
        if place.method is Method.CGROUP1:
            root = place.root / name
            root.mkdir()
            stack.callback(remove_soon, root)
            for file in ("cpuset.cpus", "cpuset.mems"):
                (root / file).write_text((place.root / file).read_text())
            place = Place(Method.CGROUP1, root)
        made = Scene(place, name, folder / "shield.json", stack, online())
        try:
            yield made
        finally:
            made.down()


def online() -> CPUSet:
    return CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text())


def remove_soon(folder: Path) -> None:
    """The dead leave their cgroup a moment after they have been waited for."""

    def gone() -> bool:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return not folder.exists()

    wait_until(gone)
