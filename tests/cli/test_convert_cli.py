"""``pinfold convert``: streams, notes and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from click.testing import CliRunner, Result

from pinfold.adapters.kubernetes.manifests import read_manifests
from pinfold.cli import main
from tests.roots import ROOT

CLASSES = ROOT / "examples" / "classes" / "classes.yaml"
PODS = ROOT / "examples" / "classes" / "pods.yaml"


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)], input=text)


def test_there_and_back_is_what_a_plan_reads(tmp_path: Path) -> None:
    there = run(CLASSES, PODS)
    assert there.exit_code == 0
    assert "ComputeResource 'node-1-k80': left out" in there.stderr
    back = run("--to", "classes", "-", text=there.stdout)
    assert back.exit_code == 0
    file = tmp_path / "back.yaml"
    file.write_text(back.stdout, encoding="utf-8")
    read, before = read_manifests([str(file)]), read_manifests([str(CLASSES), str(PODS)])
    assert read.classes == before.classes
    assert read.compute_resources == before.compute_resources[1:]
    assert [pod.containers for pod in read.pods] == [pod.containers for pod in before.pods]


def test_json_is_a_list() -> None:
    found = json.loads(run("-o", "json", CLASSES).stdout)
    assert (found["apiVersion"], found["kind"]) == ("v1", "List")
    assert found["items"] == list(yaml.safe_load_all(run(CLASSES).stdout))


def test_strict_refuses_what_is_left_out() -> None:
    done = run("--strict", CLASSES)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.endswith("Error: not all of it can be carried over (--strict)\n")
    assert run("--strict", PODS).exit_code == 0


def test_an_error_names_the_place_and_the_object() -> None:
    text = CLASSES.read_text(encoding="utf-8").replace("GtEq", "More")
    done = run("-", text=text)
    assert done.exit_code == 2
    assert done.stderr.startswith(
        "Error: -: document 1 (line 2): ResourceClass 'gpu-gold': "
        "spec.labelSelector[0].matchExpressions[1].operator: Unsupported value"
    )
    wrong = run("--driver", "no driver", CLASSES)
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith('Error: driver: Invalid value: "no driver": ')


def test_what_cannot_be_said_on_the_other_side_is_refused() -> None:
    text = PODS.read_text(encoding="utf-8").replace("gpu-silver: 2", "class.pinfold.dev/a: 40")
    done = run("-", text=text)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "a claim has at most 32 requests and 32 devices" in done.stderr


def test_where_nothing_is_converted_the_other_way_is_told() -> None:
    there = run(CLASSES)
    again = run("-", text=there.stdout)
    assert again.stdout == there.stdout
    assert again.stderr == "• there was nothing to convert; --to classes is the other way\n"
    assert run("--to", "classes", PODS).stderr.endswith("--to dra is the other way\n")


def test_what_is_no_manifest_is_at_fault() -> None:
    for text in ("[]", "a: b", "{", "a: [}"):
        done = run("-", text=text)
        assert (done.exit_code, done.stdout) == (2, ""), text
    assert run("/no/such/file").exit_code == 2
