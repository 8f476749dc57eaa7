"""The real agent is killed at each of its effects, on the real kernel, and started again.

Beside it is a real device plugin, which registers with each agent anew.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pinfold.core.values.cpuset import CPUSet
from tests.roots import ROOT
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.sample_plugin import (
    WIDGET,
    SamplePlugin,
    offered,
    skip_unless_the_sample_plugin_can_run,
    until_offered,
)
from tests.scenes.waiting import wait_until

PLUGINS = "p"
CPUS = CPUSet(os.sched_getaffinity(0))
POINTS = os.environ.get("PINFOLD_CRASH_POINTS", "16")
"""How many moments to die at, chosen by chance; ``all`` tries every one."""

PODS = (
    manifest("web", ("main", IDLE, "")),
    manifest("db", ("main", IDLE, "1")),
    manifest("job", ("main", ("true",), ""), restartPolicy="Never"),
)
DEVICES = {"web": 1, "db": 2}
for _pod in PODS:
    if _number := DEVICES.get(_pod["metadata"]["name"]):
        _pod["spec"]["containers"][0]["resources"]["limits"][WIDGET] = str(_number)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    skip_unless_an_agent_can_run()
    skip_unless_the_sample_plugin_can_run()
    folder = tmp_path_factory.mktemp("crash")
    (folder / PLUGINS).mkdir()
    plugin = SamplePlugin(folder / PLUGINS, "--pre-start")
    plugin.start()
    try:
        yield folder
    finally:
        plugin.stop()


def _agent(place: Path, name: str) -> AgentProcess:
    folder = place / name
    folder.mkdir()
    node = AgentProcess(folder)
    node.config["pinfold"]["devicePluginDir"] = str(place / PLUGINS)
    return node


def _start_mortal(node: AgentProcess, at: int, when: str) -> None:
    file = node.folder / "config.yaml"
    file.write_text(yaml.safe_dump(node.config))
    with (node.folder / "log").open("a") as log:
        node.process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenes.dying_agent", str(file), str(at), when],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )


def _live(node: AgentProcess) -> None:
    """Ask for everything; a dead agent answers nothing."""
    process = node.process
    assert process is not None
    deadline = time.monotonic() + 30
    while process.poll() is None and not node.socket.exists():
        assert time.monotonic() < deadline, node.log()
        time.sleep(0.01)
    with contextlib.suppress(click.ClickException):
        until_offered(node, 4, 4)
        for pod in PODS:
            node.apply(pod)
        wait_until(lambda: node.pod("web")["containers"][0]["pid"] or process.poll() is not None, 5)
        wait_until(lambda: node.pod("job")["phase"] in ("Succeeded", "Failed"), 5)
        node.client.delete("/v1/pods/default/db", grace=0)
        node.client.post("/v1/reconcile")


def _check(node: AgentProcess) -> None:
    """Record, kernel and runtime agree, and no CPU has two owners."""
    wait_until(lambda: all(_settled(pod) for pod in node.client.get("/v1/pods")["pods"]))
    status = node.client.get("/v1/status")
    shared, pool = CPUSet.parse(status["shared"]), CPUSet.parse(status["pool"])
    owned = CPUSet()
    given: list[str] = []
    for pod in status["pods"]:
        for container in pod["containers"]:
            cpus = CPUSet.parse(container["cpus"])
            if container["exclusive"]:
                assert owned.isdisjoint(cpus), "two owners"
                owned |= cpus
            if container["pid"]:
                assert allowed(container["pid"]) == (cpus if container["exclusive"] else pool)
                given += _widgets(container["pid"]) if pod["name"] in DEVICES else []
    assert owned.isdisjoint(shared), "owned and shared"
    assert owned | shared == CPUS, "a CPU was lost"
    assert len(set(given)) == len(given), "a device has two owners"
    until_offered(node, 4, 4)
    assert (offered(node) or {})["in_use"] == len(given), "a device was lost"
    assert node.client.post("/v1/reconcile")["drifts"] == []


def _widgets(pid: int) -> list[str]:
    for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"):
        if entry.startswith("WIDGETS="):
            return entry.removeprefix("WIDGETS=").split(",")
    return []


def _settled(pod: dict[str, Any]) -> bool:
    if pod["phase"] in ("Succeeded", "Failed"):
        return True
    return pod["phase"] == "Running" and all(c["pid"] for c in pod["containers"])


def _dies_at(place: Path, at: int, when: str) -> bool:
    node = _agent(place, f"{at}-{when}")
    try:
        _start_mortal(node, at, when)
        _live(node)
        assert node.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.process.wait(0.5)
        if died := node.process.poll() is not None:
            assert node.process.returncode == -signal.SIGKILL, node.log()
        node.kill()
        node.start()
        _check(node)
        for pod in node.client.get("/v1/pods")["pods"]:
            node.client.delete(f"/v1/pods/default/{pod['name']}", grace=0)
        assert node.client.get("/v1/status")["shared"] == str(CPUS)
        assert (offered(node) or {})["in_use"] == 0
        node.stop()
        assert list(Path("/sys/fs/cgroup").rglob(node.name)) == [], "a cgroup was left"
        assert list((node.state / "containers").glob("[0-9a-f]*")) == [], "a container was left"
        return died
    finally:
        node.clean_up()


def test_the_agent_may_be_killed_at_every_effect(place: Path) -> None:
    node = _agent(place, "count")
    try:
        _start_mortal(node, 0, "before")
        _live(node)
        node.stop()
    finally:
        node.clean_up()
    effects = int((node.folder / "config.calls").read_text())
    assert effects > 20
    moments = [(at, when) for at in range(1, effects + 1) for when in ("before", "after")]
    if POINTS != "all":
        moments = random.Random(4).sample(moments, min(int(POINTS), len(moments)))  # noqa: S311 - moments, not secrets
    deaths = 0
    for at, when in moments:
        deaths += _dies_at(place, at, when)
    assert deaths > len(moments) * 0.8, "most of them died"
    print(f"killed at {deaths} of {2 * effects} moments")  # noqa: T201 - for whoever runs it
