"""``/v1/rebalance``: what would move, and moving it; and the command that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import json

from pinfold.cli import main
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, served

LOOSE = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))


def spread(server: Served) -> None:
    """``c`` sits in both NUMA nodes, although there is room for it in one."""
    for name, cpus in (("a", "5"), ("c", "6")):
        assert server.ask("POST", "/v1/pods", manifest(name, cpus)).status == 201

    def running() -> bool:
        pods = server.ask("GET", "/v1/pods").json["pods"]
        return all(container["pid"] for pod in pods for container in pod["containers"])

    wait_until(running)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "s", machine="2s4c2t", config=LOOSE, dynamic=DynamicOptions()) as server:
        spread(server)
        yield server


def where(server: Served) -> str:
    pod = server.ask("GET", "/v1/pods/default/c").json
    return str(pod["containers"][0]["cpus"])


def test_what_would_move_moves_when_it_is_asked_for(api: Served) -> None:
    told = api.ask("GET", "/v1/rebalance")
    assert (told.status, where(api)) == (200, "6-11")
    assert told.json["price"]["owners"] == 1
    assert told.json["objective"]["after"] < told.json["objective"]["before"]
    made = api.ask("POST", "/v1/rebalance")
    assert (made.status, made.json["steps"]) == (200, told.json["steps"])
    assert where(api) == "8-13"
    (owner,) = made.json["owners"]
    assert (owner["pod"], owner["before"], owner["after"]) == ("default/c", "6-11", "8-13")
    assert api.ask("POST", "/v1/rebalance").json["steps"] == []
    kinds = [entry["kind"] for entry in api.ask("GET", "/v1/history").json["entries"]]
    assert kinds.count("moved") == 1


def test_another_policy_moves_nobody(tmp_path: Path) -> None:
    with served(tmp_path / "s", machine="2s4c2t", config=LOOSE) as server:
        spread(server)
        assert server.ask("GET", "/v1/rebalance").json["steps"]
        refused = server.ask("POST", "/v1/rebalance")
        assert refused.status == 400
        assert "policy dynamic" in refused.json["error"]["message"]
        assert "cpuManagerPolicy" in refused.json["error"]["remedy"]
        assert where(server) == "6-11"


def test_policy_none_has_nobody_to_move(tmp_path: Path) -> None:
    with served(tmp_path / "s", config=NodeConfig()) as server:
        assert server.ask("GET", "/v1/rebalance").status == 400


def test_an_agent_of_a_kubelet_moves_containers_too(api: Served) -> None:
    api.backend.is_kubelets = True
    assert api.ask("GET", "/v1/rebalance").json["price"]["owners"] == 1
    assert api.ask("POST", "/v1/rebalance").status == 200
    assert where(api) == "8-13"


def test_the_command_shows_it_and_does_it(api: Served) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["rebalance", "--socket", str(api.path), *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    dry = run("--dry-run")
    assert "default/c c0\n    6-11 → 8-13" in dry
    assert where(api) == "6-11"
    assert json.decode(run("--dry-run", "-o", "json"))["why"] == "rebalance"
    assert run("--dry-run", "-o", "svg").startswith("<svg")
    done = run()
    assert "6-11 → 8-13" in done
    assert where(api) == "8-13"
    assert "nothing moves" in run()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--machine", "2s4c2t"], "--machine is for MANIFEST"),
        (["--resize", "pod/a=3"], "--resize is for MANIFEST"),
        (["pods.yaml"], "add --dry-run"),
    ],
)
def test_what_does_not_go_together(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["rebalance", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr
