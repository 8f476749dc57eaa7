"""CPUs of the real machine go offline and come back, under a real agent."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.processes import lives
from tests.scenes.agent_process import (
    BUSY,
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.waiting import eventually, wait_until

CPUS = CPUSet(os.sched_getaffinity(0))
LAST = CPUSet([max(CPUS)])


class Switch:
    """The last CPU's own."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def off(self) -> None:
        self._file.write_text("0")

    def on(self) -> None:
        self._file.write_text("1")


@pytest.fixture
def switch() -> Iterator[Switch]:
    file = Path(f"/sys/devices/system/cpu/cpu{max(CPUS)}/online")
    if not os.environ.get("PINFOLD_TEST_HOTPLUG"):
        pytest.skip("takes a CPU offline: set PINFOLD_TEST_HOTPLUG=1 on a machine of your own")
    if not file.exists():
        pytest.skip(f"there is no {file}")
    found = Switch(file)
    try:
        yield found
    finally:
        found.on()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    found = AgentProcess(tmp_path, reservedSystemCPUs=str(CPUS - LAST))
    try:
        yield found
    finally:
        found.clean_up()


def owner(node: AgentProcess) -> int:
    """A pod that owns the last CPU; its process."""
    node.apply(manifest("db", ("main", IDLE, "1")))
    pid = node.pids("db")["main"]
    assert allowed(pid) == LAST
    return pid


def status(node: AgentProcess) -> Any:
    return node.client.get("/v1/status")


@pytest.mark.parametrize("flag", [(), ("--on-mismatch=repair",)])
def test_an_agent_starts_while_a_cpu_is_offline(
    node: AgentProcess, switch: Switch, flag: tuple[str, ...]
) -> None:
    node.start()
    pid = owner(node)
    node.kill()
    switch.off()
    node.start(*flag)
    assert (status(node)["offline"], status(node)["shared"]) == (str(LAST), str(CPUS - LAST))
    switch.on()
    wait_until(lambda: allowed(pid) == LAST)
    node.kill()
    node.start(*flag)
    assert allowed(pid) == LAST
    node.client.delete("/v1/pods/default/db", grace=0)
    assert status(node)["pool"] == str(LAST)
    assert status(node)["shared"] == str(CPUS)


def told(node: AgentProcess) -> Any:
    """What status says of the owner's container."""
    (container,) = node.pod("db")["containers"]
    return container["place"], container["offline"]


def test_an_owner_without_cpus_shares_until_they_are_back(
    node: AgentProcess, switch: Switch
) -> None:
    node.start()
    pid = owner(node)
    switch.off()
    eventually(lambda: "/shared" in Path(f"/proc/{pid}/cgroup").read_text(), True, 1)  # noqa: FBT003 - what is expected
    assert allowed(pid) == CPUS - LAST
    assert node.client.post("/v1/reconcile")["drifts"] == []
    assert told(node) == ("shared", str(LAST))
    assert node.client.post("/v1/reconcile")["drifts"] == []
    assert node.pod("db")["containers"][0]["cpus"] == str(LAST)
    node.kill()
    node.start()
    assert told(node) == ("shared", str(LAST))
    assert allowed(pid) == CPUS - LAST
    switch.on()
    eventually(lambda: allowed(pid), LAST)
    assert told(node) == ("own", "")
    assert node.client.post("/v1/reconcile")["drifts"] == []


def runtime(pid: int, after: float = 0.0) -> int:
    """Nanoseconds that a process has run so far."""
    time.sleep(after)
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def test_an_owner_without_cpus_is_frozen_where_that_is_asked_for(
    node: AgentProcess, switch: Switch
) -> None:
    node.config["pinfold"]["ownerOffline"] = "freeze"
    node.start()
    node.apply(manifest("db", ("main", BUSY, "1")))
    pid = node.pids("db")["main"]
    assert runtime(pid) < runtime(pid, 0.3)
    switch.off()
    wait_until(lambda: told(node) == ("frozen", str(LAST)))
    assert node.client.post("/v1/reconcile")["drifts"] == []
    assert runtime(pid) == runtime(pid, 0.3)
    assert allowed(pid) == CPUS - LAST
    node.kill()
    node.start()
    assert runtime(pid) == runtime(pid, 0.3)
    switch.on()
    eventually(lambda: allowed(pid), LAST)
    assert told(node) == ("own", "")
    assert runtime(pid) < runtime(pid, 0.3)
    switch.off()
    wait_until(lambda: told(node) == ("frozen", str(LAST)))
    node.client.delete("/v1/pods/default/db")
    assert not lives(pid)
