"""``pinfold explain`` of manifests: all that are rejected, and pods and workloads by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 6
  template:
    spec:
      containers:
      - name: app
        resources: {limits: {cpu: 2, memory: 1Gi}}
"""
ODD = """
---
apiVersion: v1
kind: Pod
metadata: {name: odd}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 3, memory: 1Gi}}
"""
FULL = ("--policy", "static", "--reserved-cpus", "0", "--policy-option", "full-pcpus-only=true")
SMALL = ("--machine", "1s4c2t", *FULL)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("web.yaml").write_text(WEB + ODD, encoding="utf-8")


def explain(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments], input=stdin)


def told(*arguments: str, stdin: str | None = None) -> str:
    result = explain(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_rejections_at_once_and_those_alike_once() -> None:
    lines = told(*SMALL, "web.yaml").splitlines()
    assert lines[0] == "4 of 7 pods rejected"
    assert [line for line in lines if line.startswith("✗")] == ["✗ default/web-3", "✗ default/odd"]
    assert "  and 2 alike: default/web-4, default/web-5" in lines
    assert "  would help: remove pod default/web-0, or place this one before it" in lines
    document = json.loads(told(*SMALL, "web.yaml", "-o", "json"))
    assert (document["admitted"], document["rejected"]) == (3, 4)
    web, odd = document["explanations"]
    assert web["pods"] == [f"default/web-{at}" for at in (3, 4, 5)]
    assert odd["explanation"]["name"] == "odd"


def test_where_all_are_admitted_it_says_so_and_how_to_ask() -> None:
    text = told("--machine", "2s8c2t", "web.yaml")
    assert text.startswith("7 pods, all admitted\n")
    assert "pod/NAME" in text


@pytest.mark.parametrize("word", ["deployment/web", "deploy/web", "deployments/default/web"])
def test_a_workload_is_all_its_replicas(word: str) -> None:
    groups = json.loads(told(*SMALL, "web.yaml", word, "-o", "json"))["explanations"]
    assert [(one["explanation"]["admitted"], len(one["pods"])) for one in groups] == [
        (True, 3),
        (False, 3),
    ]
    text = told(*SMALL, "web.yaml", word)
    assert text.count("Container app") == 2


def test_pods_of_a_cluster_are_known_by_their_controllers() -> None:
    pods = [
        {
            "kind": "Pod",
            "metadata": {
                "name": f"web-5d8f9-{at}",
                "labels": {"pod-template-hash": "5d8f9"},
                "ownerReferences": [
                    {"kind": "ReplicaSet", "name": "web-5d8f9", "controller": True}
                ],
            },
            "spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "1"}}}]},
        }
        for at in "ab"
    ]
    listed = json.dumps({"kind": "List", "items": pods})
    for word in ("deployment/web", "rs/web-5d8f9"):
        document = json.loads(told(*SMALL, "-", word, "-o", "json", stdin=listed))
        [group] = document["explanations"]
        assert group["pods"] == ["default/web-5d8f9-a", "default/web-5d8f9-b"]


def test_a_pod_by_name_is_one_document_and_the_answer_comes_first() -> None:
    wide = ("--machine", "2s8c2t", *FULL)
    for named in (["pod/odd"], ["default/odd"], ["--pod", "odd"], ["pod/odd", "-n", "default"]):
        assert json.loads(told(*wide, "-f", "web.yaml", *named, "-o", "json"))["name"] == "odd"
    lines = told(*wide, "-f", "web.yaml", "pod/odd").splitlines()
    assert lines.index("What would admit it") < lines.index(
        "Container app  requests cpu 3, memory 1Gi"
    )


def test_hints_are_told_when_they_are_asked_for() -> None:
    policy = ("--topology-manager-policy", "best-effort")
    asked = (*SMALL, *policy, "web.yaml", "--pod", "web-0")
    assert "merged hint" not in told(*asked)
    assert "--hints" in told(*asked)
    assert "merged hint" in told(*asked, "--hints")


def test_what_is_there_is_a_file_and_it_is_said() -> None:
    Path("pod").mkdir()
    Path("web.yaml").rename("pod/odd")
    result = explain(*SMALL, "pod/odd")
    assert result.stdout.startswith("4 of 7")
    assert result.stderr == "note: pod/odd is there as a file or folder: taken as that\n"


def test_an_agent_is_asked_for_pods() -> None:
    assert "an agent has pods and no workloads" in explain("deployment/web").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["web.yaml", "pod/web"], "did you mean deployment/web?"),
        (["web.yaml", "deployment/x"], "workloads there: deployment/web"),
        (["web.yaml", "pod/odd", "-n", "other"], "no pod 'other/odd'"),
        (["web.yaml", "pod/"], "names no pod"),
        (["pods/none.yaml"], "pods/none.yaml: no such file or folder"),
        (["deployment/web"], "--machine is for MANIFEST...; the agent knows its own node"),
        ([], "say which pods"),
    ],
)
def test_names_that_mean_nothing_are_refused(words: list[str], said: str) -> None:
    result = explain(*SMALL, *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_what_was_passed_over_is_told_with_the_explanation() -> None:
    Path("service.yaml").write_text("kind: Service\nmetadata: {name: s}\n", encoding="utf-8")
    for words in ([], ["pod/odd"], ["deployment/web"]):
        assert "Service has no pods, left out" in told(*SMALL, "web.yaml", "service.yaml", *words)
