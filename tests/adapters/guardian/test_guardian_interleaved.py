"""The lease: agent and guardian are stopped or killed between any two of their steps."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.guardian.program import ENDED, LEASE_FILE, NUMBER
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.kernel_files import descendants, read_ids
from pinfold.ports.guardian import Undoing
from tests.roots import ROOT
from tests.scenes.cgroup_kernel import Kernel, a_kernel
from tests.scenes.process_world import process_state, processes_of
from tests.scenes.waiting import PATIENCE, wait_until

POINTS = os.environ.get("PINFOLD_CRASH_POINTS", "6")
"""How many pairs of steps to try of each kind, chosen by chance; ``all`` tries every one."""

LEASE = 0.8 * max(1.0, PATIENCE / 4)
TRIES = 5
GUARDIANS = 12
"""More reads and writes of the guardian than there are at once."""

kernel = pytest.fixture(a_kernel)


class Scene:
    """One lender, its guardian, and what the kernel says."""

    def __init__(self, kernel: Kernel, folder: Path, at: int, stop: int) -> None:
        self.undoing: Undoing = kernel.cgroups.undoing()
        self.folder, self.at, self.stop = folder, at, stop
        self.name = kernel.name
        arguments = [str(folder), kernel.name, str(LEASE), str(at), str(stop)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenes.stepped_lender", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )

    def cpus(self, side: str) -> CPUSet:
        return CPUSet.parse(Path(side, "cpuset.cpus").read_text())

    @property
    def is_undone(self) -> bool:
        """Whether the kernel lends and caps nothing."""
        pool, idle = self.cpus(self.undoing.pool), self.cpus(self.undoing.idle)
        caps = self.undoing.uncapped.items()
        return idle <= pool and all(
            Path(file).read_text().split()[0] == none for file, none in caps
        )

    @property
    def guardians(self) -> list[int]:
        return processes_of(str(self.folder / "guardian.log"))

    def answer(self) -> Any:
        """What it believes at the end; None where it stopped before."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.at, self.stop)
        return json.loads(line)

    @property
    def is_over(self) -> bool:
        """Whether the guardian, if there is one, has ended the lease."""
        for pid in self.guardians:
            with Path(f"/proc/{pid}/fd/{LEASE_FILE}").open("rb", 0) as lease:
                lease.seek(ENDED)
                return any(lease.read(NUMBER))
        return True

    @property
    def guardian_waits(self) -> bool:
        return any(process_state(pid) == "T" for pid in self.guardians)

    def until_stopped(self) -> None:
        """Wait until the agent is where it stops."""
        wait_until(lambda: process_state(self.process.pid) == "T")

    def until_undone(self) -> bool:
        """Wait until the guardian has done all it can, or is at its step; whether there is one."""
        wait_until(lambda: self.is_over)
        wait_until(lambda: self.is_undone or self.guardian_waits)
        return bool(self.guardians)

    def until_alone(self) -> None:
        """Wait until no guardian is there."""
        wait_until(lambda: not self.guardians)

    def all_done(self) -> None:
        """The agent has ended: whoever is stopped goes on, and nothing is lent after that."""
        self.process.kill()
        self.process.wait()
        for pid in self.guardians:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not self.guardians)
        assert self.is_undone, (self.at, self.stop)


@contextmanager
def scene(kernel: Kernel, folder: Path, at: int, stop: int) -> Iterator[Scene]:
    one = Scene(kernel, folder, at, stop)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate()
        for pid in one.guardians:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not one.guardians)
        for inner in descendants(one.undoing.idle):
            for pid in read_ids(f"{inner}/cgroup.procs"):
                os.kill(pid, signal.SIGKILL)


def steps_of(kernel: Kernel, folder: Path) -> int:
    """How many writes an agent makes whom nobody stops, not even a machine that is busy."""
    for _ in range(TRIES):
        with scene(kernel, folder, 0, 0) as one:
            end = one.answer()
            if end["held"] and not end["lost"]:
                one.all_done()
                return int(end["steps"])
    raise AssertionError("no lease holds here")


def some(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if POINTS == "all":
        return pairs
    return random.Random(13).sample(pairs, min(int(POINTS), len(pairs)))  # noqa: S311 - moments, not secrets


def test_the_agent_is_killed_before_any_write(kernel: Kernel, tmp_path: Path) -> None:
    steps = steps_of(kernel, tmp_path)
    assert steps > 10
    for at, _ in some([(at, 0) for at in range(1, steps + 1)]):
        with scene(kernel, tmp_path, at, 0) as one:
            one.until_stopped()
            one.process.kill()
            one.process.wait()
            one.until_alone()
            assert one.is_undone, at


def test_the_agent_is_stopped_before_any_write_and_the_guardian_between_any_steps(
    kernel: Kernel, tmp_path: Path
) -> None:
    steps = steps_of(kernel, tmp_path)
    met = 0
    for at, stop in some([(at, stop) for at in range(1, steps + 1) for stop in range(GUARDIANS)]):
        with scene(kernel, tmp_path, at, stop) as one:
            one.until_stopped()
            had = one.until_undone()
            met += one.guardian_waits
            os.kill(one.process.pid, signal.SIGCONT)
            end = one.answer()
            assert not had or end["lost"], (at, stop)
            if not end["held"]:
                assert one.is_undone, (at, stop)
            one.all_done()
    assert met or POINTS != "all"
