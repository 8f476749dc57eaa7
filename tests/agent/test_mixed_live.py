"""A real agent, a real kernel, and a mixed container: one thread spins and three do not."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.waiting import eventually, wait_until

LANE = """
import json, os, sys, threading, time

own = []
for part in os.environ["PINFOLD_EXCLUSIVE_CPUS"].split(","):
    first, _, last = part.partition("-")
    own += range(int(first), int(last or first) + 1)
os.sched_setaffinity(0, set(range(8192)) - set(own))
tids = {}

def spin():
    os.sched_setaffinity(0, {own[0]})
    tids["spins"] = threading.get_native_id()
    while True:
        pass

def rest(name):
    tids[name] = threading.get_native_id()
    time.sleep(1000)

threading.Thread(target=spin, daemon=True).start()
for name in ("logs", "measures"):
    threading.Thread(target=rest, args=(name,), daemon=True).start()
while len(tids) < 3:
    time.sleep(0.01)
told = {name: os.environ[f"PINFOLD_{name}_CPUS"] for name in ("EXCLUSIVE", "SHARED")}
with open(sys.argv[1] + ".new", "w") as file:
    json.dump({**told, "tids": tids}, file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(1000)
"""

OWNER = """
import json, os, sys, time

mine, seen = os.sched_getaffinity(0), []
for pid in sys.argv[2:]:
    for tid in os.listdir(f"/proc/{pid}/task"):
        seen.append(sorted(os.sched_getaffinity(int(tid)) & mine))
with open(sys.argv[1] + ".new", "w") as file:
    json.dump({"mine": sorted(mine), "strangers": [cpus for cpus in seen if cpus],
               "threads": len(seen)}, file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(1000)
"""
"""Its first instructions look whether a thread of the others may run where it does."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    found = AgentProcess(tmp_path)
    try:
        yield found
    finally:
        found.clean_up()


class Lane:
    """The mixed pod, as it runs."""

    def __init__(self, node: AgentProcess, cpus: str = "1") -> None:
        file = node.folder / "lane.json"
        pod = manifest("lane", ("main", (sys.executable, "-c", LANE, str(file)), cpus))
        pod["metadata"]["annotations"] = {"mixed-cpus.pinfold.dev/container.main": "true"}
        node.apply(pod)
        wait_until(file.exists)
        self.told: dict[str, Any] = json.loads(file.read_text())
        self.own = CPUSet.parse(self.told["EXCLUSIVE"])
        self.pid = node.pids("lane")["main"]
        self.node = node

    @property
    def pool(self) -> CPUSet:
        return CPUSet.parse(self.node.client.get("/v1/status")["pool"])

    def may_use(self, cpus: CPUSet) -> bool:
        return cpus <= self.pool

    def where(self) -> dict[str, CPUSet]:
        return {name: allowed(tid) for name, tid in self.told["tids"].items()}

    def cpuset(self) -> CPUSet:
        """What its cgroup has, as a process without any choice of its own would."""
        text = Path(f"/proc/{self.pid}/cgroup").read_text()
        for line in text.splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
                return CPUSet.parse(
                    Path(f"/sys/fs/cgroup{path}/cpuset.cpus.effective").read_text().strip()
                )
            if "cpuset" in controllers.split(","):
                file = Path(f"/sys/fs/cgroup/cpuset{path}/cpuset.effective_cpus")
                return CPUSet.parse(file.read_text().strip())
        raise AssertionError(text)

    def check(self) -> None:
        """It is on its own CPUs and the pool, and each thread where it has asked to be."""
        eventually(self.cpuset, self.own | self.pool)
        self.check_threads()

    def check_threads(self) -> None:
        chosen = {"spins": CPUSet([min(self.own)]), "logs": self.pool, "measures": self.pool}
        for name, cpus in self.where().items():
            forgotten = () if keeps_choices() else (self.own | self.pool,)
            assert cpus in (chosen[name], *forgotten), name


def keeps_choices() -> bool:
    """Whether this kernel keeps what threads have asked for when it writes a cpuset."""
    major, minor = platform.release().split(".")[:2]
    return (int(major), int(minor.partition("-")[0])) >= (6, 2)


def test_own_cpus_and_the_pool(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("web", ("main", IDLE, "")))
    lane = Lane(node)
    assert len(lane.own) == 1
    assert lane.told["SHARED"] == str(lane.pool)
    assert lane.own.isdisjoint(lane.pool)
    assert lane.cpuset() == lane.own | lane.pool
    assert allowed(node.pids("web")["main"]) == lane.pool
    assert lane.where()["spins"] == lane.own
    assert lane.where()["logs"] == lane.where()["measures"] == lane.pool
    (seen,) = node.pod("lane")["containers"]
    assert (seen["cpus"], seen["shared"]) == (str(lane.own), str(lane.pool))
    assert f"and the shared pool {lane.pool}, no CPU quota" in node.run("status").stdout
    audited = json.loads(node.run("audit", "-o", "json").stdout)["findings"]
    of_itself = {"cpuset-differs", "owner-outside", "quota-caps", "shared-overlaps"}
    assert [one for one in audited if one["slug"] in of_itself] == []

    node.kill()
    node.start()
    assert lane.cpuset() == lane.own | lane.pool
    lane.check_threads()
    node.run("delete", "pod/lane")
    eventually(lambda: allowed(node.pids("web")["main"]), lane.own | lane.pool)


def test_it_has_left_before_an_owner_begins(node: AgentProcess) -> None:
    if len(os.sched_getaffinity(0)) < 4:
        pytest.skip("needs four CPUs (make guest has them)")
    node.start()
    node.apply(manifest("web", ("main", IDLE, "")))
    lane = Lane(node, "2500m" if len(os.sched_getaffinity(0)) > 4 else "1500m")
    others = [str(lane.pid), str(node.pids("web")["main"])]
    lane.check()
    for number in range(6):
        file = node.folder / f"owner-{number}.json"
        command = (sys.executable, "-c", OWNER, str(file), *others)
        node.apply(manifest("owner", ("main", command, "1")))
        wait_until(file.exists)
        seen = json.loads(file.read_text())
        assert seen["strangers"] == []
        assert seen["threads"] == 5, "the four of the mixed container, and the other"
        assert CPUSet(seen["mine"]).isdisjoint(lane.pool | lane.own)
        lane.check()
        if number == 3:
            node.kill()
            node.start()
            lane.check()
        node.run("delete", "pod/owner")
        wait_until(partial(lane.may_use, CPUSet(seen["mine"])))
        lane.check()
