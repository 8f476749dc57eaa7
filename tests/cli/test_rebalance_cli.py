"""``pinfold rebalance --dry-run`` on manifests, and moves that ``explain`` names."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from tests.scenes.published_schemas import check_document

STATIC = ("--machine", "2s4c2t", "--policy", "static", "--reserved-cpus", "0,8")
ROOMY = (*STATIC[:-1], "0")


@pytest.fixture
def pods(tmp_path: Path) -> str:
    """``c`` sits where ``d`` would have room under single-numa-node."""
    texts = [
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n"
        f"  - {{name: app, resources: {{limits: {{cpu: {count}, memory: 1Gi}}}}}}\n"
        for name, count in (("a", 3), ("b", 5), ("c", 2), ("d", 4))
    ]
    file = tmp_path / "pods.yaml"
    file.write_text("---\n".join(texts))
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_dry_run_tells_the_moves_of_pods_that_are_planned(pods: str) -> None:
    ask = ("rebalance", "--dry-run", *ROOMY, pods)
    told = document(*ask)
    check_document("move-plan", told)
    assert told["why"] == "rebalance"
    assert told["price"]["owners"] == len([o for o in told["owners"] if o["before"] != o["after"]])
    assert told["objective"]["after"] < told["objective"]["before"]
    text = run(*ask)
    assert text.exit_code == 0
    assert "before" in text.stdout
    svg = run(*ask, "-o", "svg").stdout
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314 - our own output


def test_nothing_moves_where_all_are_well_placed(pods: str) -> None:
    told = document("rebalance", "--dry-run", "--machine", "2s16c2t", *STATIC[2:], pods)
    assert (told["steps"], told["price"]["owners"]) == ([], 0)


def test_who_opts_out_stays(tmp_path: Path, pods: str) -> None:
    said = "{name: app, annotations: {rebalance.pinfold.dev/pod: 'false'}}"
    stays = tmp_path / "stays.yaml"
    text = Path(pods).read_text()
    for name in "abcd":
        text = text.replace(f"{{name: {name}}}", said.replace("app", name))
    stays.write_text(text)
    ask = ("rebalance", "--dry-run", *ROOMY)
    assert document(*ask, pods)["steps"]
    told = document(*ask, str(stays))
    assert not told["steps"]
    assert {row["reason"] for row in told["stays"]} == {
        'annotation rebalance.pinfold.dev/pod: "false"'
    }
    words = " ".join(run(*ask, str(stays)).stdout.split())
    assert "nothing moves: no better placement can be had for those who may move" in words
    assert f"{told['stays'][0]['pod']} app stays: annotation rebalance" in words


@pytest.mark.parametrize("opt_in", ["true", "false"])
def test_a_plan_heeds_opt_in(tmp_path: Path, pods: str, opt_in: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "cpuManagerPolicy: dynamic\nreservedSystemCPUs: '0'\n"
        f"pinfold: {{dynamic: {{optIn: {opt_in}}}}}\n"
    )
    ask = ("rebalance", "--dry-run", "--machine", ROOMY[1], "--kubelet-config", str(config), pods)
    told = document(*ask)
    assert bool(told["steps"]) is (opt_in == "false")
    assert ("stays" in told) is (opt_in == "true")


def test_a_dry_run_names_what_was_resized_and_what_was_not(pods: str) -> None:
    ask = ("rebalance", "--dry-run", *ROOMY, "--resize", "pod/a=4", "--resize", "pod/c=60", pods)
    told = document(*ask)
    assert [note.split(" app ")[0] for note in told["notes"]] == [
        "resized before: default/a",
        "not resized: default/c",
    ]
    words = " ".join(run(*ask).stdout.split())
    assert "not resized: default/c app to 60 CPUs: resizeAllocateCPUsError:" in words


def test_nobody_has_cpus_under_policy_none(pods: str) -> None:
    result = run("rebalance", "--dry-run", "--machine", "2s4c2t", pods)
    assert result.exit_code == 2
    assert "CPU manager policy none; set cpuManagerPolicy to dynamic" in result.stderr


def test_explain_names_the_moves_that_would_admit_a_pod(pods: str) -> None:
    ask = ("explain", *STATIC, "--topology-manager-policy", "single-numa-node", pods)
    told = document(*ask, "--pod", "d")
    check_document("explanation", told)
    moves = told["moves"]
    assert moves["why"] == "make-room"
    assert [(o["pod"], o["before"], o["after"]) for o in moves["owners"]] == [
        ("default/c", "4-5", "14-15")
    ]
    assert "moves" not in document(*ask, "--pod", "c")
    text = run(*ask, "--pod", "d").stdout
    assert "Moves that would admit it" in text
    said = (
        "nobody makes these moves as it is configured; with cpuManagerPolicy: dynamic and makeRoom"
    )
    assert said in " ".join(text.split())
    assert "take 4-5 from default/c app, which runs on 14-15 then" in text


def test_no_moves_admit_what_is_too_large(pods: str) -> None:
    large = Path(pods).read_text().replace("cpu: 4", "cpu: 6")
    Path(pods).write_text(large)
    ask = ("explain", *STATIC, "--topology-manager-policy", "single-numa-node", pods)
    assert "moves" not in document(*ask, "--pod", "d")


def test_a_plan_with_dynamic_shows_what_would_be_possible(tmp_path: Path, pods: str) -> None:
    outcome = {}
    for policy in ("static", "dynamic"):
        config = tmp_path / f"{policy}.yaml"
        config.write_text(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
            f"cpuManagerPolicy: {policy}\nreservedSystemCPUs: '0,8'\npinfold: {{}}\n"
            "topologyManagerPolicy: single-numa-node\n"
        )
        ask = ("plan", "--machine", "2s4c2t", "--kubelet-config", str(config), pods)
        told = document(*ask)
        check_document("plan", told)
        (rejected,) = [pod for pod in told["pods"] if not pod["admitted"]]
        outcome[policy] = rejected.pop("moves", None)
        words = " ".join(run(*ask).stdout.split())
        assert ("after moves: default/c app 4-5 → 14-15" in words) is (policy == "dynamic")
    assert outcome["static"] is None
    assert [owner["after"] for owner in outcome["dynamic"]["owners"]] == ["14-15"]


def test_two_configurations_are_told_apart_by_their_resizes(tmp_path: Path, pods: str) -> None:
    sides = []
    for name, options in (("one", "{}"), ("two", "{full-pcpus-only: 'true'}")):
        sides.append(tmp_path / f"{name}.yaml")
        sides[-1].write_text(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
            "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
            f"cpuManagerPolicyOptions: {options}\n"
        )
    both = ("--kubelet-config", str(sides[0]), "--compare", str(sides[1]))
    ask = ("plan", "--machine", "2s8c2t", *both, "--resize", "pod/c=3", pods)
    words = " ".join(run(*ask).stdout.split())
    assert "; 1 resize otherwise" in words
    assert "default/c app, resized to 3" in words
    assert "✗ resizeAllocateCPUsError: SMTAlignmentError" in words
    svg = run(*ask, "-o", "svg").stdout
    assert "default/c app, resized to 3" in svg
    assert "shared pool" in svg, "the legend"


def test_no_name_of_a_fact_is_cut_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, pods: str
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = run("rebalance", "--dry-run", *ROOMY, pods).stdout
    assert "…" not in text
    assert "uncore caches beyond need" in text
