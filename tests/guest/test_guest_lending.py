"""Whole cores are lent, and never one of which a thread is busy, or another's; kernel sampled.

A borrower goes round all CPUs that it may run on, so whatever is lent is used.  Whoever else is
seen on an owner's CPU is a finding.  How long anything takes is not looked at: emulated CPUs are
slow.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.scenes.agent_process import skip_unless_an_agent_can_run
from tests.scenes.bell import bell, ring
from tests.scenes.churn import pod, sampled
from tests.scenes.pod_worlds import Manifest, ProcessWorld, World, started
from tests.scenes.two_nodes import cpus_of, node_ids
from tests.scenes.waiting import wait_until

from pinfold.adapters.machines.discovery import read_live
from pinfold.core.values.cpuset import CPUSet

CORES = read_live().cores
NEEDS = "needs four cores with several threads (make guest has them)"

ENOUGH = 1500
"""Looks at the cpusets: so long that all threads are looked at dozens of times, too."""

CALM = "while :; do sleep 1000; done"
WHEN_TOLD = """
first=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/self/status)
while :; do
  read told <{bell}
  taskset -c $first sh -c 'while [ -e {flag} ]; do :; done'
done"""
"""Rests until it is rung, and is busy on the first of its CPUs as long as a file is there."""

ROUND = f"""exec {sys.executable} -c '
import os, time
while True:
    os.sched_setaffinity(0, range(os.cpu_count()))
    for cpu in os.sched_getaffinity(0):
        try:
            os.sched_setaffinity(0, (cpu,))
        except OSError:
            continue
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
'"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    skip_unless_an_agent_can_run()
    if sum(len(core) > 1 for core in CORES) < 4:
        pytest.skip(NEEDS)
    one = ProcessWorld(tmp_path)
    one.agent.config |= {"topologyManagerPolicy": "single-numa-node"}
    one.agent.config["pinfold"] |= {
        # An emulated CPU is slow: what is next to nothing elsewhere is some use here.
        "lending": {
            "use": True,
            "idleFor": "1s",
            "pause": "1s",
            "lendBelow": "30%",
            "siblingsBelow": "30%",
            "returnAbove": "60%",
            "maxPressure": "100%",
            "lookRate": "20Hz",
        },
    }
    with started(one) as running:
        yield running


class Lent:
    """What the kernel says is lent, again and again."""

    def __init__(self, world: World) -> None:
        self._root = world.root
        self.pool = self._cpus("shared")
        self.seen: Counter[CPUSet] = Counter()

    def _cpus(self, side: str) -> CPUSet:
        try:
            return CPUSet.parse((self._root / side / "cpuset.cpus").read_text())
        except FileNotFoundError:
            return CPUSet()

    def now(self) -> CPUSet:
        # The pool stays as it is.
        return self._cpus("idle") - self.pool

    @contextmanager
    def watched(self) -> Iterator[Counter[CPUSet]]:
        """How often each was lent, counted meanwhile."""
        seen: Counter[CPUSet] = Counter()
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.002):
                seen[self.now()] += 1

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield seen
        finally:
            over.set()
            watcher.join()


def core(cpu: int) -> CPUSet:
    """The core of a CPU, whole, as the kernel has it."""
    (found,) = (one for one in CORES if cpu in one)
    return found


def lender(name: str, script: str, cpus: int) -> Manifest:
    mine: dict[str, Any] = dict(pod(name, script, cpus))
    mine["metadata"] = {**mine["metadata"], "annotations": {"lend-cpus.pinfold.dev/pod": "true"}}
    return mine


def run(world: World, manifest: Manifest) -> CPUSet:
    return world.run(world.dress(manifest))["main"].allowed


def judged(found: dict[str, Any], seen: Counter[CPUSet]) -> None:
    """Nobody but borrowers, of whom there were some, on what is lent."""
    said = {key: value for key, value in found.items() if key not in ("owners", "findings")}
    print(said, {str(cpus): times for cpus, times in seen.items()})  # noqa: T201 - for whoever runs it
    assert (found["strangers"], found["misplaced"]) == (0, 0), found["findings"]
    # It is there for a small part of the time, as it goes round, and it is rarely looked here.
    assert found["borrowers"] > 0
    assert found["borrowed"] > 0


def test_no_sibling_of_a_busy_cpu_is_lent(world: World, tmp_path: Path) -> None:
    """Of two owners, on a NUMA node each, one becomes busy on one of its CPUs."""
    flag, rung = tmp_path / "busy", bell(tmp_path)
    own = run(world, lender("owner", WHEN_TOLD.format(flag=flag, bell=rung), 4))
    far = run(world, lender("far", CALM, 4))
    assert node_of(own) != node_of(far)
    busy = core(min(own))
    rest = own - busy
    assert (len(own), len(busy)) == (4, 2)
    assert busy < own
    run(world, pod("round", ROUND))
    lent = Lent(world)
    with sampled(world) as found:
        wait_until(lambda: lent.now() == own | far, 60)
        flag.touch()
        ring(rung)
        # All of its CPUs are taken back, and then the core lent that is idle.
        wait_until(lambda: not lent.now() & busy, 60)
        with lent.watched() as seen:
            wait_until(lambda: seen[rest | far] > ENOUGH, 60)
        assert flag.exists()
        flag.unlink()
        wait_until(lambda: lent.now() == own | far, 60)
    assert all(cpus.isdisjoint(busy) for cpus in seen), seen
    judged(found, seen)


def node_of(cpus: CPUSet) -> int:
    """The NUMA node that some CPUs are of."""
    (found,) = (node for node in node_ids() if cpus <= cpus_of(node))
    return found


def test_no_sibling_of_another_owners_cpu_is_lent(world: World) -> None:
    # The sibling of what is reserved would be the first to be taken by one who needs an odd number.
    run(world, pod("filler", CALM, 1))
    own = run(world, lender("owner", CALM, 3))
    others = run(world, lender("other", "while :; do :; done", 1))
    whole = CPUSet.union_of(one for one in CORES if one <= own)
    assert len(whole) == 2
    # They have a core together.
    assert core(min(others)) <= own | others
    run(world, pod("round", ROUND))
    lent = Lent(world)
    with sampled(world) as found, lent.watched() as seen:
        wait_until(lambda: seen[whole] > ENOUGH, 60)
    assert set(seen) <= {CPUSet(), whole}, seen
    judged(found, seen)
