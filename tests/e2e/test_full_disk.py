"""A whole agent whose disk is full: answers, deletions, readiness; and a flood of output."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.cli.client import RefusedError
from tests.scenes.agent_process import (
    BUSY,
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.process_world import processes_of
from tests.scenes.small_disk import fill, mounted
from tests.scenes.waiting import wait_until

LIMIT = 1 << 20
FLOOD = ("sh", "-c", "yes 0123456789012345678901234567890123456789")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    with mounted(tmp_path / "disk", "24m"):
        node = AgentProcess(tmp_path / "disk", containerLogMaxSize="1Mi", containerLogMaxFiles=2)
        yield node
        (node.folder / "ballast").unlink(missing_ok=True)
        node.clean_up()


def is_ready(node: AgentProcess) -> bool:
    try:
        node.client.get("/readyz")
    except RefusedError as error:
        return error.status != 503
    return True


def logs_of(node: AgentProcess, name: str) -> list[Path]:
    return list(node.state.glob(f"logs/default_{name}_*/*/*"))


def test_a_flood_stops_neither_agent_nor_neighbour(node: AgentProcess) -> None:
    """It writes for some seconds as fast as it can, on a disk of 24 MiB."""
    node.start()
    node.apply(manifest("owner", ("busy", BUSY, "1")))
    node.apply(manifest("flood", ("flood", FLOOD, "")))
    wait_until(lambda: len(logs_of(node, "flood")) == 2)
    (first,) = {path for path in logs_of(node, "flood") if path.name != "0.log"}
    # Several times the disk.
    wait_until(lambda: rotations(node) > 30)
    assert not first.exists()
    sizes = [path.stat().st_size for path in logs_of(node, "flood") if path.exists()]
    assert all(size <= LIMIT for size in sizes)
    assert is_ready(node)
    (owner,) = node.pids("owner").values()
    # Who copies all that is on the reserved CPU, and the owner has its own for itself.
    supervisors = processes_of(str(node.state / "containers"))
    assert len(supervisors) == 2
    assert {str(allowed(pid)) for pid in supervisors} == {"0"}
    assert str(allowed(owner)) == "1"
    assert node.client.post("/v1/reconcile")["drifts"] == []
    assert is_alive(owner)
    done = node.run("logs", "--tail", "3", "flood")
    # It goes on writing: the last line may be half there, and what it belongs to emptied since.
    line = FLOOD[2].removeprefix("yes ")
    *whole, begun = done.stdout.split("\n")
    assert (done.returncode, {*whole}) == (0, {line})
    assert len(whole) <= 3
    assert line.startswith(begun)
    assert node.run("delete", "flood", "--grace", "0").returncode == 0
    assert logs_of(node, "flood") == []


def rotations(node: AgentProcess) -> int:
    numbers = [path.name.rpartition(".")[2] for path in logs_of(node, "flood")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_pods_are_deleted_on_a_full_disk(node: AgentProcess) -> None:
    node.start()
    for name in ("one", "two", "three"):
        node.apply(manifest(name, ("main", IDLE, "")))
        node.pids(name)
    ballast = fill(node.folder)
    wait_until(lambda: not is_ready(node))
    began = time.monotonic()
    with pytest.raises(RefusedError, match="are kept for deleting pods") as refused:
        node.apply(manifest("four", ("main", IDLE, "")))
    assert refused.value.status == 503
    for name in ("one", "two"):
        assert node.run("delete", name, "--grace", "0").returncode == 0
    assert [pod["name"] for pod in node.client.get("/v1/pods")["pods"]] == ["three"]
    assert node.client.post("/v1/reconcile")["drifts"] == []
    assert time.monotonic() - began < 60
    # A new agent goes on from what is on this disk.
    node.kill()
    node.start()
    assert node.run("delete", "three", "--grace", "0").returncode == 0
    ballast.unlink()
    wait_until(lambda: is_ready(node))
    node.apply(manifest("four", ("main", IDLE, "")))
    node.pids("four")


def test_a_job_that_ended_leaves_its_log(node: AgentProcess) -> None:
    node.start()
    script = ("sh", "-c", "echo working; echo failed >&2; exit 3")
    node.apply(manifest("job", ("main", script, ""), restartPolicy="Never"))
    wait_until(lambda: node.pod("job")["phase"] == "Failed")
    assert node.run("logs", "job").stdout == "working\nfailed\n"
    node.kill()
    node.start()
    assert node.run("logs", "job").stdout == "working\nfailed\n"
    assert node.run("delete", "job").returncode == 0
    assert not (node.state / "logs").exists() or list((node.state / "logs").iterdir()) == []


def test_logs_are_followed_from_the_command_line(node: AgentProcess) -> None:
    node.start()
    script = ("sh", "-c", "echo begin; sleep 1; echo end")
    node.apply(manifest("web", ("main", script, ""), restartPolicy="Never"))
    node.pids("web")
    with node.begin("logs", "-f", "web") as following:
        text, errors = following.communicate(timeout=60)
    assert (text, errors, following.returncode) == ("begin\nend\n", "", 0)


def test_a_client_that_goes_away_is_no_pod_later(node: AgentProcess) -> None:
    """Many ask and hang up at once: what there is afterwards is what the log and history tell."""
    node.start()

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection("x")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(node.socket))
        body = manifest(f"gone-{number}", ("main", IDLE, ""))
        connection.request("POST", "/v1/pods", json.dumps(body))
        connection.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: is_ready(node))
    # In this order: one that was begun may still come to its end.
    pods = {f"default/{pod['name']}" for pod in node.client.get("/v1/pods")["pods"]}
    entries = node.client.get("/v1/history", limit=1000)["entries"]
    assert pods <= {entry["pod"] for entry in entries if entry["kind"] == "admitted"}
