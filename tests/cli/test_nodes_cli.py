"""``pinfold plan --node`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.json import decode

from pinfold.cli import main
from pinfold.documents.cluster_plan import ClusterPlan
from tests.roots import ROOT

STATIC = ["--policy", "static", "--reserved-cpus", "0"]


def plan(*words: str) -> Result:
    return CliRunner().invoke(main, ["plan", *STATIC, *words])


def node(name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": name}, "spec": spec}


def pod(name: str, cpu: int = 2, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}}]
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(*objects: dict[str, Any]) -> str:
        file = tmp_path / "all.json"
        file.write_text(json.dumps({"kind": "List", "items": objects}))
        return str(file)

    return to_file


def told(result: Result) -> ClusterPlan:
    assert result.exit_code == 0, result.output
    return decode(result.stdout, type=ClusterPlan)


def test_the_document_has_the_plan_of_each_node(write: Any) -> None:
    file = write(pod("a"), pod("b", 6), pod("c", 9))
    document = told(plan("--node", "x=1s4c2t", "--node", "y=2s4c2t", file, "-o", "json"))
    assert [(p.name, p.node, p.reason) for p in document.pods] == [
        ("a", "y", None),
        ("b", "y", None),
        ("c", None, "Unschedulable"),
    ]
    assert [(n.name, n.plan.machine.name) for n in document.nodes] == [
        ("x", "1s4c2t"),
        ("y", "2s4c2t"),
    ]
    [refused] = document.pods[2].refused_by or ()
    assert (refused.reason, list(refused.nodes)) == ("Insufficient cpu", ["x", "y"])


def test_nodes_are_named_by_their_manifests(write: Any) -> None:
    taint = {"key": "gpu", "effect": "NoSchedule"}
    nodes = [node("n1"), node("n2", unschedulable=True), node("n3", taints=[taint]), node("m1")]
    file = write(*nodes, pod("a", affinity={"nodeAffinity": {}}), pod("b", 7))
    document = told(plan("--machine", "1s4c2t", "--node", "n*", file, "-o", "json"))
    assert [one.name for one in document.nodes] == ["n1", "n2", "n3"]
    assert [one.node for one in document.pods] == ["n1", None]
    assert sorted(one.reason for one in document.pods[1].refused_by or ()) == [
        "Insufficient cpu",
        "node(s) had untolerated taint {gpu}",
        "node(s) had untolerated taint {node.kubernetes.io/unschedulable}",
    ]
    notes = "\n".join(document.notes)
    assert "Node m1: no --node says what machine it is, left out" in notes
    assert "spec.affinity of 1 pod: planned without it" in notes


def test_allocatable_of_a_node_is_what_the_scheduler_heeds(write: Any) -> None:
    small = {**node("n1"), "status": {"allocatable": {"cpu": "3", "example.com/x": "1"}}}
    file = write(small, pod("a"), pod("b"))
    # A pattern stands for several nodes, however many there are.
    document = told(plan("--node", "n*=1s4c2t", file, "-o", "json"))
    assert [one.node for one in document.pods] == ["n1", None]


def test_compute_resources_of_other_nodes_are_told() -> None:
    files = str(ROOT / "examples" / "nodes")
    result = plan("--node", "gpu-1=1s4c2t", "--node", "cpu-1=1s4c2t", files)
    assert result.exit_code == 0
    told = " ".join(result.output.split())
    assert "ComputeResource gpu-2-p100 is of node gpu-2, which is not among the nodes" in told


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--node", "=1s4c2t"], "write NAME, or NAME=MACHINE"),
        (["--node", "a="], "write NAME, or NAME=MACHINE"),
        (["--node", "a=1s4c2t", "--node", "a=1s4c2t"], "is there twice"),
        (["--node", "x*=1s4c2t"], "no Node among the manifests is called so"),
        (["--node", "a=nonsense"], "nonsense"),
        (["--node", "a=1s4c2t", "--node", "b", "--resize", "pod/a=3"], "go with none of"),
        (["--node", "a=1s4c2t", "--node", "b", "-o", "svg"], "go with none of"),
    ],
)
def test_what_is_no_node_is_named(write: Any, words: list[str], problem: str) -> None:
    result = plan(*words, write(pod("a")))
    assert (result.exit_code, problem in result.stderr) == (2, True), result.output


def test_nodes_among_the_manifests_are_told_where_none_is_asked_for(write: Any) -> None:
    result = plan("--machine", "1s4c2t", write(node("n1"), pod("a")))
    assert "1 Node: left out without plan --node" in result.output
