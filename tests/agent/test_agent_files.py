"""An agent that runs out of open files refuses pods, and goes on with everything else."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest
import yaml

from pinfold.cli.client import RefusedError
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.descriptors import LAST, RESERVE
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.waiting import wait_until

FEW = 64


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path_factory.mktemp("agent"), cpuManagerReconcilePeriod="1s")
    agent.open_files = (FEW, FEW)
    try:
        yield agent
    finally:
        agent.clean_up()


def open_files(agent: AgentProcess) -> int:
    assert agent.process is not None
    return len(os.listdir(f"/proc/{agent.process.pid}/fd"))


def fill(agent: AgentProcess) -> tuple[list[str], str]:
    """Apply pods until one is refused: those that were taken, and what was said."""
    taken: list[str] = []
    while len(taken) < FEW:
        name = f"pod-{len(taken)}"
        try:
            agent.apply(manifest(name, ("main", IDLE, "")))
        except RefusedError as error:
            return taken, f"{error.status}: {error.message}"
        agent.pids(name)
        taken.append(name)
    raise AssertionError("no pod was refused")


def test_pods_are_refused_before_the_files_are_gone(node: AgentProcess) -> None:
    node.start()
    taken, said = fill(node)
    assert len(taken) > 5
    assert said.startswith("503: ")
    assert f"of the {FEW} files that the agent may have open" in said
    assert "raise LimitNOFILE (ulimit -n), or delete pods" in said
    assert open_files(node) <= FEW - RESERVE + 5, "the reserve is free"
    # A pod of the folder is refused for the same reason, and tried again when there is room.
    late = [manifest(f"late-{number}", ("c", IDLE, "")) for number in range(4)]
    (node.manifests / "late.yaml").write_text(yaml.safe_dump_all(late))
    wait_until(lambda: any("late" in p for p in node.client.get("/v1/status")["agent"]["problems"]))
    assert "late" in node.run("status").stdout
    with pytest.raises(RefusedError, match="manifests: pod default/late-"):
        node.client.get("/readyz")
    # Whatever is not a new pod goes on.
    assert node.client.post("/v1/reconcile")["drifts"] == []
    for name in taken[:6]:
        assert node.run("delete", f"pod/{name}", "--grace", "0").returncode == 0
    wait_until(lambda: node.client.get("/v1/status")["agent"]["problems"] == [])
    node.client.get("/readyz")
    for pod in late:
        node.pids(pod["metadata"]["name"])
    assert node.apply(manifest("own", ("main", IDLE, "1")))["phase"] == "Admitted"
    assert 0 not in allowed(node.pids("own")["main"])
    failures = node.client.get("/metrics")
    assert 'pinfold_background_failures_total{work="manifests"}' in failures
    assert "Traceback" not in node.log()
    assert "Too many open files" not in node.log()


def test_connections_do_not_take_the_reserve(node: AgentProcess) -> None:
    """Nor do those who connect keep others out, or pods from being ended."""
    node.start()
    node.apply(manifest("web", ("main", IDLE, "")))
    node.pids("web")
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(node.socket))
        assert node.client.get("/v1/status")["pods"]
        assert open_files(node) <= FEW - LAST
        assert node.run("delete", "pod/web", "--grace", "0").returncode == 0
    time.sleep(1.5)  # the period of the reconciliation
    assert node.client.get("/v1/status")["agent"]["problems"] == []
    assert "Traceback" not in node.log()


def test_nothing_ends_an_agent_whose_files_somebody_else_takes(node: AgentProcess) -> None:
    """The limit falls below what is open while it runs: no file can be opened at all."""
    node.start()
    node.apply(manifest("web", ("main", IDLE, "")))
    (node.manifests / "own.yaml").write_text(yaml.safe_dump(manifest("own", ("c", IDLE, "1"))))
    wait_until(lambda: len(node.client.get("/v1/pods")["pods"]) == 2)
    pids = {**node.pids("web"), "own": node.pids("own")["c"]}
    assert node.process is not None
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (3, FEW))
    wait_until(lambda: "failed" in node.log())
    time.sleep(3)
    assert node.process.poll() is None, node.log()
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
    wait_until(lambda: node.client.get("/v1/status")["agent"]["problems"] == [])
    assert {**node.pids("web"), "own": node.pids("own")["c"]} == pids, "no pod was ended or begun"
    assert CPUSet.parse(node.pod("own")["containers"][0]["cpus"]) == allowed(pids["own"])
    told = [line for line in node.log().splitlines() if "[error" in line and "online CPUs" in line]
    assert len(told) == 1, "it is said once"
    assert "Traceback" not in node.log()


def test_an_agent_takes_as_many_files_as_it_may(node: AgentProcess) -> None:
    """And its containers get the limit that it came with."""
    node.open_files = (FEW, 4096)
    node.start()
    assert node.process is not None
    assert resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE) == (4096, 4096)
    node.apply(manifest("web", ("main", IDLE, "")))
    pid = node.pids("web")["main"]
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (FEW, 4096)
