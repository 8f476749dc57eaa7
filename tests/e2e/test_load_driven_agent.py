"""A real agent gives a real process CPUs of its own while it is busy, and takes them back."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.cgroup import open_cgroups
from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import AgentProcess, allowed, skip_unless_an_agent_can_run
from tests.scenes.waiting import eventually, wait_until

OPTIONS = {
    "use": True,
    "promoteAfter": "1s",
    "demoteAfter": "2s",
    "minShared": "1s",
    "minExclusive": "1s",
}
WORK = """
import pathlib, sys, time
busy = pathlib.Path(sys.argv[1])
while True:
    if not busy.exists():
        time.sleep(0.2)
        until = time.process_time() + 0.01
        while time.process_time() < until:
            pass
"""
"""At rest it uses 5% of a CPU all the same, however slow that is: an agent that has started anew
knows what it was promoted with."""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    one = AgentProcess(tmp_path, cpuManagerPolicy="dynamic")
    one.config["pinfold"] |= {"loadDriven": OPTIONS, "observationPeriod": "500ms"}
    try:
        one.start()
        yield one
    finally:
        one.clean_up()


def pod(name: str, cpu: str, command: list[str], **annotations: str) -> dict[str, Any]:
    limits = {"cpu": cpu, "memory": "64Mi"}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "uid": f"uid-{name}", "annotations": annotations},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "command": command,
                    "resources": {"limits": limits, "requests": limits},
                }
            ],
        },
    }


def quota(agent: AgentProcess) -> str:
    """The quota of the container, of whichever kind of cgroup."""
    cgroups = open_cgroups(name=agent.name)
    name = "cpu.cfs_quota_us" if isinstance(cgroups, CgroupsV1) else "cpu.max"
    found = [
        file.read_text().split()[0]
        for root in (Path("/sys/fs/cgroup"),)
        for file in root.glob(f"**/{agent.name}/**/*uid-feed*/main/{name}")
    ]
    (value,) = dict.fromkeys(found)
    return value


def test_busy_is_promoted_and_rest_is_demoted(agent: AgentProcess, tmp_path: Path) -> None:
    flag = tmp_path / "busy"
    annotation = {"load-driven.pinfold.dev/pod": "true"}
    agent.apply(pod("feed", "1", [sys.executable, "-c", WORK, str(flag)], **annotation))
    pid, everything = agent.pids("feed")["main"], CPUSet(os.sched_getaffinity(0))
    eventually(lambda: allowed(pid), everything - CPUSet([0]) or everything)
    shared = allowed(pid)
    assert quota(agent) not in {"-1", "max"}

    flag.write_text("")
    wait_until(lambda: own(agent))
    mine = CPUSet.parse(own(agent))
    assert len(mine) == 1
    eventually(lambda: allowed(pid), mine)
    eventually(lambda: quota(agent) in {"-1", "max"}, expected=True)
    told = agent.state / "assignments" / "uid-feed" / "main" / "assignment.json"
    eventually(lambda: json.loads(told.read_text())["current"]["cpus"], str(mine))

    # Whoever goes on has it where it is, and goes on deciding.
    agent.kill()
    agent.start()
    assert allowed(pid) == mine
    flag.unlink()
    eventually(lambda: own(agent), "")
    eventually(lambda: allowed(pid), shared)
    eventually(lambda: quota(agent) in {"-1", "max"}, expected=False)
    eventually(lambda: json.loads(told.read_text())["current"]["cpus"], "")
    history = agent.client.get("/v1/history")["entries"]
    why = [one["document"]["why"] for one in history if one["kind"] == "controlled"]
    # Beside others on this machine it may wait before it uses much.
    assert any("promote" in one and "demoteUsage" not in one for one in why), why
    assert any("less than demoteUsage 30%" in one for one in why), why


def own(agent: AgentProcess) -> str:
    (container,) = agent.pod("feed")["containers"]
    return str(container["cpus"]) if container["exclusive"] else ""
