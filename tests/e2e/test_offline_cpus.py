"""CPUs of the real machine go offline and come back, under a real agent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.cpuset import CPUSet
from tests.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
    until,
)

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
    until(lambda: allowed(pid) == LAST)
    node.kill()
    node.start(*flag)
    assert allowed(pid) == LAST
    node.client.delete("/v1/pods/default/db", grace=0)
    assert status(node)["pool"] == str(LAST)
    assert status(node)["shared"] == str(CPUS)
