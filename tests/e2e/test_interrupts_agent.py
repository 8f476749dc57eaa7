"""An agent that keeps this machine's interrupts off the CPU of a pod, and gives them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.linux import interrupts
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.waiting import wait_until


def affinities() -> Mapping[str, CPUSet]:
    return {interrupts.number_of(p): interrupts.affinity(p) for p in interrupts.places()}


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    before = {place: interrupts.affinity(place) for place in interrupts.places()}
    agent = AgentProcess(tmp_path_factory.mktemp("agent"))
    agent.config["cpuManagerReconcilePeriod"] = "1s"
    try:
        yield agent
    finally:
        agent.clean_up()
        for place, cpus in before.items():
            if Path(place).exists() and interrupts.affinity(place) != cpus:
                interrupts.set_affinity(place, cpus)


def status(node: AgentProcess) -> Any:
    return node.client.get("/v1/status")["agent"].get("interrupts")


def asking(name: str) -> dict[str, Any]:
    pod = manifest(name, ("main", IDLE, "1"))
    pod["metadata"]["annotations"] = {"irqs.pinfold.dev/pod": "keep-off"}
    return pod


def test_off_while_the_pod_runs_and_back_whatever_ends_it(node: AgentProcess) -> None:
    before = affinities()
    node.start()
    assert status(node) is None
    node.apply(asking("pod"))
    told = wait_until(lambda: status(node))
    own = CPUSet.parse(told["cpus"])
    assert own
    during = affinities()
    fixed = {text.split()[1] for text in told["fixed"]}
    assert all(during[number].isdisjoint(own) for number in during.keys() - fixed)
    assert "interrupts are kept off CPUs" in node.run("status", "--no-color").stdout
    assert "pinfold_interrupts_kept_off" in node.client.get("/metrics")
    entries = node.client.get("/v1/history")["entries"]
    assert any(one["kind"] == "interrupts" for one in entries)

    # Killed: nothing is tidied up, and the next one goes on from there.
    node.kill()
    assert affinities() == during
    node.start()
    wait_until(lambda: status(node))
    victim = next(n for n in sorted(during.keys() - fixed - {"default"}) if before[n] & own)
    interrupts.set_affinity(f"/proc/irq/{victim}/smp_affinity_list", before[victim])
    wait_until(lambda: affinities() == during)
    wait_until(lambda: status(node)["contested"])

    # Told to stop, it gives all back, whoever runs on.
    node.stop()
    assert affinities() == before
    node.start()
    wait_until(lambda: affinities() == during)
    node.client.delete("/v1/pods/default/pod")
    wait_until(lambda: affinities() == before)
    # It is told, and forgotten, once the last one is back.
    wait_until(lambda: status(node) is None)
    wait_until(lambda: not (node.state / "interrupts.json").exists())


@pytest.mark.parametrize("housekeeping", ["zwei", "1-", "3-1"])
def test_cpus_that_cannot_be_are_refused(node: AgentProcess, housekeeping: str) -> None:
    node.config["pinfold"]["irqs"] = {"use": True, "housekeeping": housekeeping}
    code, text = node.refused()
    assert code == 2
    assert "housekeeping" in text
    assert "Traceback" not in text
