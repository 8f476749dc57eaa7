"""Which pods a picture tells in one row: those of a workload that are alike, but for --each-pod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pinfold.cli import main
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import served

STATIC = ("--policy", "static", "--reserved-cpus", "0")
MANY = 14


def replica(name: str, workload: str | None) -> dict[str, Any]:
    """A pod of a cluster; of a Deployment, it has what its ReplicaSet writes."""
    metadata: dict[str, Any] = {"name": name}
    if workload is not None:
        owner = {"kind": "ReplicaSet", "name": f"{workload}-5c4d", "controller": True}
        metadata["ownerReferences"] = [{"apiVersion": "apps/v1", "uid": "u", **owner}]
        metadata["labels"] = {"pod-template-hash": "5c4d"}
    containers = [{"name": "c", "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}}]
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


@pytest.fixture
def pods(tmp_path: Path) -> str:
    """Replicas whose names say nothing, and pods that are called like replicas and are nobody's."""
    owned = [replica(f"a{number}z", "web") for number in range(MANY)]
    named = [replica(f"db-{number}", None) for number in range(3)]
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"kind": "List", "items": [*owned, *named]}))
    return str(file)


def told(*words: str) -> str:
    result = CliRunner().invoke(main, ["plan", *STATIC, *words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--machine", "2s32c2t"),
        ("--machine", "2s32c2t", "-o", "svg"),
        ("--node", "other=1s1c1t", "--node", "n=2s32c2t"),
    ],
)
def test_replicas_are_those_of_a_workload(pods: str, words: tuple[str, ...]) -> None:
    text = told(*words, pods)
    assert f"default/web ×{MANY}" in text
    assert "default/db ×3" in text, "without an owner their names tell"
    each = told(*words, pods, "--each-pod")
    assert "×" not in each
    assert [each.count(f"default/a{number}z ") > 0 for number in range(MANY)] == [True] * MANY


def test_replicas_that_change_alike_are_one_change(pods: str, tmp_path: Path) -> None:
    config = tmp_path / "kubelet.yaml"
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "cpuManagerPolicy: static\nreservedSystemCPUs: '0-3'\n"
    )
    words = ("--machine", "2s32c2t", pods, "--compare", str(config))
    for form in ("text", "svg"):
        text = told(*words, "-o", form)
        assert f"default/web ×{MANY}" in text
        assert f"{MANY} × 2 CPUs" in text
        assert f"{MANY + 3} pods changed, 0 unchanged" in text
    each = told(*words, "--each-pod")
    assert f"{MANY + 3} pods changed, 0 unchanged" in each
    assert [f"default/a{number}z" in each for number in range(MANY)] == [True] * MANY


def test_status_tells_replicas_in_one_row_or_each(tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    with served(socket) as server:
        for number in range(MANY):
            assert server.ask("POST", "/v1/pods", manifest(f"web-{number}", "100m")).status < 300
        words = ["status", "--socket", str(socket)]
        plain, each = (CliRunner().invoke(main, [*words, *more]) for more in ((), ("--each-pod",)))
    assert (plain.exit_code, each.exit_code) == (0, 0)
    assert f"default/web ×{MANY}" in plain.stdout
    assert "×" not in each.stdout
    assert all(f"default/web-{number} " in each.stdout for number in range(MANY))
