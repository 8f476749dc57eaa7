"""``POST /v1/run`` takes the processes of whoever asks, and nobody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.process.peers import process_of
from pinfold.adapters.process.processes import identify
from pinfold.cli.client import Client, RefusedError
from pinfold.ports.held_process import ForeignProcessError, Peer
from tests.scenes.agent_process import (
    AgentProcess,
    allowed,
    an_agent,
    manifest,
)
from tests.scenes.waiting import wait_until

IDLE = ("sleep", "1000")


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def me(**changes: Any) -> Peer:
    return Peer(os.getpid(), os.geteuid(), now())._replace(**changes)


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(IDLE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def grandchild() -> Iterator[int]:
    with subprocess.Popen(
        ["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        yield pid
        os.kill(pid, 9)


AGENT = 4_194_303
"""The pid of an agent that is nowhere near."""


def refusal(peer: Peer, pid: int, *, agent: int = AGENT) -> str:
    with pytest.raises(ForeignProcessError) as caught:
        process_of(peer, pid, agent=agent)
    return str(caught.value)


def test_ones_own_process_and_what_descends_from_it(child: int, grandchild: int) -> None:
    for pid in (child, grandchild):
        held = process_of(me(), pid, agent=AGENT)
        known = identify(pid)
        assert known is not None
        assert (held.pid, held.start) == (known.pid, known.start)
    # What asks for itself: as another agent would be asked by this process.
    with subprocess.Popen(
        [sys.executable, "-c", "import os, sys; os.read(0, 1)"], stdin=subprocess.PIPE
    ) as other:
        assert process_of(me(pid=other.pid), other.pid, agent=AGENT).pid == other.pid
        other.kill()


def test_nobody_elses(child: int, grandchild: int) -> None:
    neither = "is neither process"
    assert neither in refusal(me(), 1)
    assert neither in refusal(me(), 2), "a kernel thread"
    assert neither in refusal(me(), os.getppid())
    assert neither in refusal(me(pid=child), os.getppid())
    # What the agent has started is its own, although it descends from the one who asks.
    for pid in (child, grandchild, os.getpid()):
        said = refusal(me(pid=os.getppid()), pid, agent=os.getpid())
        assert said == f"process {pid} belongs to the agent itself"
    assert refusal(me(), 4_194_305) == "there is no process 4194305"


def test_who_asks_has_to_be_the_one_who_connected(child: int) -> None:
    gone = "the process that asks has gone, or is in another PID namespace than the agent"
    assert refusal(me(pid=0), child) == gone
    assert refusal(me(pid=child, since=now() - 1000), child) == gone, "its pid is another's by now"
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert refusal(me(pid=ended.pid), child) == gone


def test_a_process_of_another_user(child: int) -> None:
    assert "runs as another user than 12345" in refusal(me(uid=12345), child)


# ------------------------------------------------------------------------------- a real agent


node = pytest.fixture(an_agent)


def wrapped(name: str) -> dict[str, Any]:
    return manifest(name, ("main", IDLE, "1"), restartPolicy="Never")


def test_an_agent_takes_no_process_of_somebody_else(node: AgentProcess, child: int) -> None:
    node.start()
    assert node.process is not None
    before = {pid: (allowed(pid), _cgroups(pid)) for pid in (1, os.getppid(), node.process.pid)}
    for pid in (os.getppid(), node.process.pid):
        with pytest.raises(RefusedError) as caught:
            node.client.post("/v1/run", {"manifest": wrapped("stolen"), "pid": pid})
        assert caught.value.status in (400, 403)
    # Its own: the supervisor of a container, and the container.
    node.apply(manifest("web", ("main", IDLE, "")))
    main = node.pids("web")["main"]
    supervisor = int(Path(f"/proc/{main}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (main, supervisor):
        with pytest.raises(RefusedError, match=f"process {pid} belongs to the agent itself"):
            node.client.post("/v1/run", {"manifest": wrapped("stolen"), "pid": pid})
    assert {pid: (allowed(pid), _cgroups(pid)) for pid in before} == before
    assert [pod["name"] for pod in node.client.get("/v1/pods")["pods"]] == ["web"]
    # The own child, once.
    taken = node.client.post("/v1/run", {"manifest": wrapped("mine"), "pid": child})
    assert str(allowed(child)) == taken["containers"][0]["cpus"]
    with pytest.raises(RefusedError, match=f"process {child} is a container of pod default/mine"):
        node.client.post("/v1/run", {"manifest": wrapped("again"), "pid": child})


def test_a_child_of_another_process_is_refused(node: AgentProcess, child: int) -> None:
    """The one who asks is a process of its own, beside the one whose child it wants."""
    node.start()
    body = json.dumps({"manifest": wrapped("stolen"), "pid": child})
    script = (
        "import sys, json; from pinfold.cli.client import Client\n"
        "try: Client(sys.argv[1]).post('/v1/run', json.loads(sys.argv[2]))\n"
        "except Exception as error: print(error.message)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(node.socket), body],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"process {child} is neither process" in done.stdout, done
    wait_until(lambda: Client(str(node.socket)).get("/v1/pods")["pods"] == [])


def _cgroups(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()
