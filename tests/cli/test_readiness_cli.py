"""``pinfold readiness``: what an autoscaler asks of new nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from tests.roots import ROOT

CLASSES = ROOT / "examples" / "classes" / "classes.yaml"
AT = "2026-01-31T12:05:00Z"
NODE = """
apiVersion: v1
kind: Node
metadata:
  name: {name}
  creationTimestamp: "2026-01-31T12:00:00Z"
  labels: {{example.com/gpus: "{promised}"}}
status: {{allocatable: {{cpu: "8", nvidia.com/gpu: "{gpus}"}}}}
---
"""
CLASS = """
apiVersion: pinfold.dev/v1alpha1
kind: ResourceClass
metadata: {{name: gpu}}
spec:
  labelSelector: [{{matchExpressions: [{{key: Kind, operator: In, values: [nvidia-gpu]}}]}}]
  provisionConfig: {{capacityNodeLabelKeys: [example.com/gpus], {more}}}
---
"""


def run(*arguments: object, text: str = "") -> Result:
    return CliRunner().invoke(main, ["readiness", *map(str, arguments)], input=text)


def asked(text: str, *more: str) -> tuple[int, list[dict[str, Any]]]:
    done = run("-", "--at", AT, "-o", "json", *more, text=text)
    assert done.exit_code != 2, done.stderr
    found = json.loads(done.stdout)
    assert found["at"] == AT
    return done.exit_code, found["answers"]


@pytest.mark.parametrize(
    ("promised", "gpus", "bound", "status", "state", "wait"),
    [
        (4, 4, "provisionSeconds: 400", 0, "ready", None),
        (4, 1, "provisionSeconds: 400", 3, "coming", 100.0),
        (4, 1, "provisionSeconds: 300", 1, "not viable", None),
        (4, 1, "", 3, "coming", None),
        ("many", 0, "provisionSeconds: 400", 1, "not here", None),
        ("many", 2, "provisionSeconds: 400", 0, "ready", None),
        (4, 0, "resourceType: CLUSTERLEVEL", 0, "ready", None),
    ],
)
def test_a_class_on_a_node(  # noqa: PLR0917 - the case and its answer
    promised: object, gpus: int, bound: str, status: int, state: str, wait: float | None
) -> None:
    text = CLASS.format(more=bound) + NODE.format(name="new", promised=promised, gpus=gpus)
    found = asked(text)
    assert found[0] == status
    assert found[1] == [
        {
            "class_name": "gpu",
            "node": "new",
            "state": state,
            "expected": promised if isinstance(promised, int) else None,
            "exported": gpus,
            "wait_seconds": wait,
        }
    ]


def test_what_is_published_of_devices_decides_and_priorities_too() -> None:
    node = NODE.format(name="node-1", promised=0, gpus=4)
    for gpus, counts in ((4, (2, 2)), (1, (1, 0)), (0, (0, 0))):
        text = CLASSES.read_text(encoding="utf-8") + "\n---\n" + node.replace('"4"', f'"{gpus}"')
        _, answers = asked(text)
        found = {one["class_name"]: one["exported"] for one in answers}
        assert (found["gpu-gold"], found["gpu-silver"]) == counts, gpus


def test_classes_of_the_cluster_take_nothing_of_nodes() -> None:
    cluster = CLASS.format(more="resourceType: CLUSTERLEVEL").replace("name: gpu}", "name: all}")
    high = cluster.replace("spec:", "spec:\n  priority: 10")
    text = CLASS.format(more="") + high + NODE.format(name="new", promised=2, gpus=2)
    _, answers = asked(text, "--class", "gpu")
    assert [(one["state"], one["exported"]) for one in answers] == [("ready", 2)]


def test_several_are_asked_at_once_or_some_of_them() -> None:
    classes = CLASS.format(more="provisionSeconds: 400")
    other = classes.replace("name: gpu}", "name: all}")
    nodes = NODE.format(name="a", promised=1, gpus=1) + NODE.format(name="b", promised=2, gpus=1)
    text = classes + other + nodes
    status, answers = asked(text)
    assert status == 3
    assert [(one["node"], one["class_name"], one["state"]) for one in answers] == [
        ("a", "gpu", "ready"),
        ("a", "all", "ready"),
        ("b", "gpu", "coming"),
        ("b", "all", "coming"),
    ]
    assert asked(text, "--node", "a", "--class", "all")[0] == 0
    done = run("-", "--at", AT, "--class", "gpu", text=text)
    assert done.stdout == "a  gpu  ready   1 of 1\nb  gpu  coming  1 of 2, wait 100 s at most\n"


def test_a_list_of_kubectl_is_read_and_an_undated_node_is_new() -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "new", "labels": {"example.com/gpus": "1"}},
    }
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, {"kind": "Pod"}]})
    _, (answer,) = asked(CLASS.format(more="provisionSeconds: 60") + items)
    assert (answer["state"], answer["wait_seconds"]) == ("coming", 60.0)


@pytest.mark.parametrize(
    ("arguments", "text", "problem"),
    [
        ((), CLASS.format(more=""), "there is no Node in these files"),
        ((), NODE.format(name="new", promised=1, gpus=1), "there is no ResourceClass in these"),
        (("--class", "glod"), "", "--class: there is no class glod"),
        (("--node", "m"), "", "--node: there is no Node m in these files"),
        (("--at", "noon"), "", "--at: must be a time such as"),
        ((), "created", "metadata.creationTimestamp: must be a time such as"),
        ((), "twice", "Node new is there already"),
        ((), "status", "status.allocatable"),
        ((), "[]", "not a Kubernetes object"),
    ],
)
def test_what_cannot_be_answered(arguments: tuple[str, ...], text: str, problem: str) -> None:
    node = NODE.format(name="new", promised=1, gpus=1)
    whole = CLASS.format(more="") + node
    made = {
        "": whole,
        "created": whole.replace("2026-01-31T12", "noon"),
        "twice": whole + node,
        "status": whole.replace('"8"', "[]"),
    }
    done = run("-", *arguments, text=made.get(text, text))
    assert done.exit_code == 2, done.stdout
    assert problem in done.stderr
