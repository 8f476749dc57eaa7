"""Pods of several nodes, and ``--node NAME``, as a user gives them to each command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main

STATIC = ("--machine", "1s4c2t", "--policy", "static", "--reserved-cpus", "0")
MIXED = "pods of 2 nodes (spec.nodeName) are planned onto one: 2 of n1, 1 of n2, 1 pod of none"


def pod(name: str, node: str = "", created: str = "", **status: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}}]
    spec = {"containers": containers, **({"nodeName": node} if node else {})}
    metadata = {"name": name, **({"creationTimestamp": created} if created else {})}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


# As kubectl get pods -A -o json prints them: the newest is no last one.
CLUSTER: dict[str, Any] = {
    "kind": "List",
    "items": [
        pod("new", created="2026-01-01T00:00:00Z"),
        pod("b", "n1", "2026-01-03T00:00:00Z"),
        pod("other", "n2", "2026-01-02T00:00:00Z"),
        pod("a", "n1", "2026-01-02T00:00:00Z"),
        pod("done", "n1", "2026-01-01T00:00:00Z", phase="Succeeded"),
        pod("failed", "n1", phase="Failed", containerStatuses=[{"name": "c"}]),
    ],
}


def run(*words: str, objects: Mapping[str, Any] = CLUSTER) -> Result:
    return CliRunner().invoke(main, [*words, "-"], input=json.dumps(objects))


def plan(*words: str, objects: Mapping[str, Any] = CLUSTER) -> Any:
    result = run("plan", *STATIC, *words, "-o", "json", objects=objects)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def names(document: Any) -> list[str]:
    return [one["name"] for one in document["pods"]]


def test_pods_of_several_nodes_are_planned_and_told() -> None:
    document = plan()
    assert MIXED in document["notes"][0]
    assert "--node NAME takes those of one node" in document["notes"][0]
    # Those that a kubelet has come before the one that it may get.
    assert names(document) == ["other", "a", "b", "new"]


@pytest.mark.parametrize(
    "words",
    [
        ("plan",),
        ("plan", "-o", "svg"),
        ("explain", "--pod", "a"),
        ("rebalance", "--dry-run"),
        ("plan", "--compare-kubelet-version", "1.35"),
    ],
)
def test_every_command_says_so_before_it_answers(words: tuple[str, ...]) -> None:
    result = run(*words, *STATIC)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(f"note: {MIXED}")
    assert not run(*words, *STATIC, "--node", "n1").stderr
    is_for_others = "svg" in words
    assert ("pods of 2 nodes" in result.stdout) is is_for_others, "once, where it is read"


@pytest.mark.parametrize("words", [(), ("--pod", "a"), ("--pod", "a", "--pod", "other")])
def test_explain_says_so_once(words: tuple[str, ...]) -> None:
    result = run("explain", *STATIC, *words)
    assert (result.stdout + result.stderr).count(MIXED) == 1
    document = run("explain", *STATIC, *words, "-o", "json").stdout
    assert (MIXED in document) == (len(words) != 2), "one explanation has no notes on reading"


def test_a_node_has_its_own_pods_and_then_those_of_none() -> None:
    document = plan("--node", "n1")
    assert names(document) == ["a", "b", "new"]
    notes = "\n".join(document["notes"])
    assert "1 pod of other nodes left out: 1 of n2" in notes
    assert "1 pod without spec.nodeName planned after the 2 of node n1" in notes
    assert "pod default/done has ended (Succeeded), left out" in notes
    assert "pod default/failed has ended (Failed), left out" in notes
    placed = {one["name"]: one["containers"][0]["cpus"] for one in document["pods"]}
    assert placed == {"a": "2-3", "b": "4-5", "new": "6-7"}


def test_explain_and_rebalance_take_a_node() -> None:
    explained = run("explain", *STATIC, "--node", "n2", "--pod", "other", "-o", "json")
    assert explained.exit_code == 0, explained.output
    assert run("explain", *STATIC, "--node", "n2", "--pod", "a").exit_code != 0
    assert run("rebalance", "--dry-run", *STATIC, "--node", "n2").exit_code == 0
    for words in (("explain", "--pod", "a"), ("rebalance", "--dry-run")):
        for nodes in (("--node", "n1", "--node", "n2"), ("--node", "n*")):
            result = run(*words, *STATIC, *nodes)
            assert result.exit_code == 2
            assert "--node: this is answered for one node" in result.stderr


def test_one_node_has_the_plan_of_one_machine() -> None:
    document = plan("--node", "n1=2s4c2t")
    assert document["machine"]["name"] == "2s4c2t"
    svg = run("plan", *STATIC, "--node", "n1", "-o", "svg")
    assert svg.stdout.startswith("<svg")
    both = run("plan", *STATIC, "--node", "n1", "--compare-kubelet-version", "1.35")
    assert both.exit_code == 0, both.output


def test_several_nodes_have_the_plan_of_a_cluster() -> None:
    document = plan("--node", "n1", "--node", "n2")
    assert [one["name"] for one in document["nodes"]] == ["n1", "n2"]
    bound = {one["name"]: one["node"] for one in document["pods"]}
    assert bound == {"a": "n1", "b": "n1", "other": "n2", "new": "n2"}


def test_a_node_of_which_nobody_knows_is_refused() -> None:
    result = run("plan", *STATIC, "--node", "n3")
    assert result.exit_code == 2
    problem = "--node n3: no pod is on it (spec.nodeName), and no Node is called so"
    assert f"{problem}; there are n1, n2" in result.stderr
    # Who says what machine it is, knows it.
    assert names(plan("--node", "n3=1s4c2t")) == ["new"]
    assert names(plan("--node", "n3", objects=pod("new"))) == ["new"]


@pytest.mark.parametrize("command", ["plan", "explain", "rebalance --dry-run"])
def test_this_machine_does_not_answer_for_a_node_that_somebody_has_in_mind(command: str) -> None:
    result = run(*command.split(), "--policy", "static", "--node", "worker-1", objects=pod("new"))
    assert result.exit_code == 2
    assert "--node worker-1: the manifests say nothing of a node; " in result.stderr
    assert "give its machine: --node worker-1=MACHINE" in result.stderr
    assert ("--from-cluster" in result.stderr) == (not command.startswith("rebalance"))


def test_the_node_object_of_that_name_tells_the_kubelet() -> None:
    def node(name: str, version: str) -> dict[str, Any]:
        info = {"nodeInfo": {"kubeletVersion": version}}
        return {"kind": "Node", "metadata": {"name": name}, "status": info}

    both = [node("n1", "v1.34.1"), node("n2", "v1.35.1")]
    objects = {"kind": "List", "items": [*CLUSTER["items"], *both]}
    for name, version in (("n1", "1.34"), ("n2", "1.35")):
        assert plan("--node", name, objects=objects)["kubelet"]["version"].startswith(version)
    # The only Node there is, is another one's.
    objects["items"] = [*CLUSTER["items"], both[1]]
    assert plan("--node", "n1", objects=objects)["kubelet"]["version"].startswith("1.36")


def test_pods_of_one_node_need_no_note() -> None:
    objects = {"kind": "List", "items": [pod("a", "n1"), pod("new")]}
    assert not any("spec.nodeName" in note for note in plan(objects=objects)["notes"])
