"""``pinfold run --wait`` with an agent on a busy machine: needs root and a cgroup tree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.scenes.agent_process import AgentProcess, an_agent
from tests.scenes.waiting import PATIENCE

node = pytest.fixture(an_agent)

ALL = str(len(os.sched_getaffinity(0)) - 1)
BEGUN = 6


@pytest.fixture
def busy() -> Iterator[None]:
    """So many want each CPU that everything takes its time."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(4 * len(os.sched_getaffinity(0)))
    ]
    yield
    for one in loops:
        one.kill()
        one.wait()


@pytest.mark.usefixtures("busy")
def test_on_a_busy_machine_all_run_one_after_the_other(node: AgentProcess) -> None:
    node.start()
    place = f"{node.folder}/on-$PINFOLD_CPUS"
    script = f"mkdir {place} && sleep 0.1 && rmdir {place}"
    lives = [
        node.begin("run", "--wait", "--cpus", ALL, "--", "sh", "-c", script) for _ in range(BEGUN)
    ]
    told = [one.communicate(timeout=120 * PATIENCE)[1] for one in lives]
    assert [one.returncode for one in lives] == [0] * BEGUN, told
    assert node.client.get("/v1/pods")["pods"] == []
    entries = node.client.get("/v1/history", limit=1000)["entries"]
    kinds = [one["kind"] for one in entries]
    assert kinds.count("admitted") == BEGUN
    # Who waits asks again when something has changed, and not all the time.
    assert kinds.count("rejected") <= 3 * BEGUN * BEGUN


def test_who_waits_is_told_what_for_and_may_give_up(node: AgentProcess) -> None:
    node.start()
    first = node.begin("run", "--cpus", ALL, "--", "sh", "-c", "echo begun; sleep 1000")
    assert first.stdout is not None
    assert first.stdout.readline() == "begun\n"
    done = node.run("run", "--wait", "--timeout", "1", "--cpus", "1", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pinfold: waiting until CPUs are free: " in done.stderr
    assert done.stderr.count("nothing was run within 1 s") == 1
    rejected = node.client.get("/v1/history", kind="rejected")["entries"]
    assert len(rejected) <= 2, "nothing has changed meanwhile"
    never = node.run("run", "--wait", "--cpus", "4096", "--", "echo", "ran")
    assert (never.returncode, never.stdout) == (1, "")
    assert "waiting" not in never.stderr
    waiting = node.begin("run", "--wait", "--cpus", "1", "--", "echo", "ran")
    assert waiting.stderr is not None
    assert "waiting" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=30 * PATIENCE) == ("", "")
    assert waiting.returncode == 130
    detached = node.begin(
        "run", "--wait", "--detach", "--name", "later", "--cpus", "1", "--", "sleep", "9"
    )
    assert detached.stderr is not None
    assert "waiting" in detached.stderr.readline()
    first.send_signal(signal.SIGTERM)
    first.communicate()
    assert detached.communicate(timeout=30 * PATIENCE)[0] == "pod/later\n"
    assert [one["name"] for one in json.loads(node.run("status", "-o", "json").stdout)["pods"]] == [
        "later"
    ]
