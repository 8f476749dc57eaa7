"""The JSON that commands print and the agent serves, byte for byte as it was recorded.

Who reads these documents finds the same fields, in the same order, with the same values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pinfold.cli import main
from tests.scenes.agent_process import IDLE, AgentProcess, skip_unless_an_agent_can_run
from tests.scenes.agent_process import manifest as live_manifest
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, served

ROOT = Path(__file__).parent.parent.parent
RECORDED = ROOT / "tests" / "data" / "documents"

EXAMPLE = ("--machine", "2s8c2t", "--kubelet-config", "examples/kubelet.yaml", "examples/pods")
GPU = "examples/gpu-node"
DEVICES = (
    *("--machine", f"{GPU}/machine.json", "--devices", f"{GPU}/devices.yaml"),
    *("--kubelet-config", f"{GPU}/kubelet.yaml", f"{GPU}/pods.yaml"),
)
STATE = "tests/data/documents/state"

COMMANDS: dict[str, tuple[str, ...]] = {
    "topology": ("topology", "--machine", "2s2c2t"),
    "topology-numa": ("topology", "--machine", "2s2n2c2t@half"),
    "topology-offline": ("topology", "--machine", "tests/data/machines/offline-cpu0-node0.tar.xz"),
    "topology-hybrid": (
        *("topology", "--machine"),
        "tests/data/machines/20em64t-hybrid-1p6c2t+2ca4co1t.tar.xz",
    ),
    "topology-hwloc": (
        *("topology", "--machine"),
        "tests/data/hwloc/AMD-1Ah-Zen5StrixPoint-RyzenAI9HX370.xml",
    ),
    "topology-devices": ("topology", "--machine", f"{GPU}/machine.json"),
    "plan": ("plan", *EXAMPLE),
    "plan-devices": ("plan", *DEVICES),
    "plan-none": ("plan", "--machine", "1s2c2t", "examples/pods"),
    "compare": ("plan", *EXAMPLE, "--compare", "examples/kubelet-new.yaml"),
    "explain-admitted": ("explain", *EXAMPLE, "--pod", "order-db-0"),
    "explain-rejected": ("explain", *EXAMPLE, "--pod", "risk-model"),
    "explain-devices": ("explain", *DEVICES, "--pod", "train"),
    "hugepages": ("hugepages", "show", "--machine", f"{GPU}/machine.json"),
    "state-show-cpu": ("state", "show", f"{STATE}/cpu_manager_state"),
    "state-show-cpu-v1": ("state", "show", f"{STATE}/cpu_manager_state.v1"),
    "state-show-memory": ("state", "show", f"{STATE}/memory_manager_state"),
    "state-show-devices": ("state", "show", f"{STATE}/kubelet_internal_checkpoint"),
    "state-check": ("state", "check", f"{STATE}/cpu_manager_state", "--machine", "2s2c2t"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_prints(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(main, [*COMMANDS[name], "-o", "json"])
    assert result.exit_code in (0, 1), result.output
    assert result.stdout == (RECORDED / f"{name}.json").read_text()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An agent on fakes, with a pod of each kind."""
    with served(tmp_path_factory.mktemp("api") / "s", explains=False) as server:
        for pod in (
            manifest("owner", "2", "1", init=("1",)),
            manifest("web", ""),
            manifest("too-large", "99"),
            manifest("ending", "1"),
        ):
            assert server.ask("POST", "/v1/pods", pod).status in (200, 201)

        def running() -> bool:
            pods = server.ask("GET", "/v1/pods").json["pods"]
            return all(
                pod["reason"] or any(container["pid"] for container in pod["containers"])
                for pod in pods
            )

        wait_until(running)
        assert server.ask("DELETE", "/v1/pods/default/ending").status == 204
        yield server


ANSWERS = {
    "api-pods": "/v1/pods",
    "api-pod": "/v1/pods/default/owner",
    "api-node": "/v1/node",
    "api-history": "/v1/history",
    "api-not-found": "/v1/pods/default/nobody",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_the_api_answers(api: Served, name: str) -> None:
    assert api.ask("GET", ANSWERS[name]).text == (RECORDED / f"{name}.json").read_text()


def test_what_the_api_answers_of_the_status(api: Served) -> None:
    status = api.ask("GET", "/v1/status").json
    # What the agent says of itself, and times: see the next test.
    del status["agent"], status["config"], status["counters"]
    assert json.dumps(status) == (RECORDED / "api-status.json").read_text()


LIVE = (
    *("/v1/status", "/v1/pods", "/v1/history", "/v1/explain/default/owner"),
    "/v1/explain/default/large",
)


def shape(value: Any) -> Any:
    """The fields of a document in their order, with the kind of each value."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        shapes = [shape(inner) for inner in value]
        # Alike entries are one: machines have different numbers of NUMA nodes.
        return [one for at, one in enumerate(shapes) if one not in shapes[:at]]
    return type(value).__name__


def test_what_a_live_agent_answers(tmp_path: Path) -> None:
    skip_unless_an_agent_can_run()
    node = AgentProcess(tmp_path)
    try:
        node.start()
        node.apply(live_manifest("owner", ("main", IDLE, "1")))
        node.apply(live_manifest("large", ("main", IDLE, "512")))
        node.pids("owner")
        wait_until(lambda: bool(node.pod("owner")["phase"] == "Running"))
        answers = {path: node.client.get(path) for path in LIVE}
        # How cgroups are made is up to the machine, and how long a start takes.
        del answers["/v1/status"]["agent"]["cgroups"]
        answers["/v1/status"]["counters"]["container_start_buckets"].clear()
        (facts,) = (node.state / "pods").glob("*.json")
        answers["facts"] = json.loads(facts.read_text())
        node.run("delete", "pod/owner")
    finally:
        node.clean_up()
    assert json.dumps(shape(answers), indent=1) == (RECORDED / "live.json").read_text()
