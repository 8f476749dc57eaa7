"""An agent that watches what runs, on the running kernel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenes.agent_process import (
    BUSY,
    IDLE,
    AgentProcess,
    an_agent,
    manifest,
)
from tests.scenes.waiting import wait_until

agent = pytest.fixture(an_agent)


@pytest.fixture
def node(agent: AgentProcess) -> AgentProcess:
    agent.config["pinfold"]["observationPeriod"] = "100ms"
    return agent


def loads(node: AgentProcess) -> dict[str, Any]:
    told: Any = node.client.get("/v1/observation")
    return {one["container"]: one for one in told["containers"]}


def test_who_works_and_who_sleeps_are_told_apart(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("pod", ("works", BUSY, ""), ("sleeps", IDLE, "")))
    node.pids("pod")

    def works() -> bool:
        found = loads(node)
        return {"works", "sleeps"} <= found.keys() and found["works"]["last"]["usage"] > 0.01

    wait_until(works)
    found = loads(node)
    assert found["sleeps"]["minute"]["usage"] < found["works"]["minute"]["usage"]
    told: Any = node.client.get("/v1/observation")
    assert told["idle"].keys() >= {"0", "1"}
    assert told["wait_source"] in {"cpu.pressure", "schedstat", ""}
    assert bool(told["wait_source"]) == (found["works"]["last"]["wait"] is not None)
    labels = 'container="works",namespace="default",pod="pod"'
    assert f"pinfold_container_cpu_usage_seconds_total{{{labels}}}" in node.client.get("/metrics")
    shown = node.run("status", "--no-color").stdout
    assert "uses 0.00 CPUs" in shown
    assert "CPUs are busy" in shown

    node.client.delete("/v1/pods/default/pod")
    wait_until(lambda: not loads(node))

    # Nothing of it is kept, and an agent that watches nothing says so.
    node.stop()
    del node.config["pinfold"]["observationPeriod"]
    node.start()
    assert "observation" not in node.client.get("/v1/status")


@pytest.mark.parametrize("period", ["50ms", "1m", "100s", "-1s"])
def test_a_period_that_cannot_be_is_refused(node: AgentProcess, period: str) -> None:
    node.config["pinfold"]["observationPeriod"] = period
    status, text = node.refused()
    assert status == 2
    assert "observationPeriod" in text
    assert "Traceback" not in text
