"""``--kubelet-version``: whose answers are given, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from pinfold.cli.kubelet_config import ConfigSource
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import (
    DEFAULT_VERSION,
    V1_35,
    V1_36,
    V1_37,
    VersionSource,
    named_version,
)

POD = """
apiVersion: v1
kind: Pod
metadata: {name: feed}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 2, memory: 1Gi}}
"""
STATIC = ("--machine", "2s4c2t", "--policy", "static", "--reserved-cpus", "0")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments], input=POD)


def configured(flags: Mapping[str, Any]) -> tuple[NodeConfig, tuple[str, ...]]:
    return ConfigSource.of(flags).config()


def test_an_explicit_version_is_known_as_such() -> None:
    config, notes = configured({"kubelet_version": named_version("v1.35.6")})
    assert config.kubelet_version == V1_35
    assert config.version_is_explicit
    assert notes == ()
    assert not configured({})[0].version_is_explicit
    assert configured({})[0].kubelet_version == DEFAULT_VERSION == V1_36


def test_a_newer_version_than_all_is_the_newest_and_says_so() -> None:
    config, notes = configured({"kubelet_version": named_version("1.44")})
    assert config.kubelet_version == V1_37
    assert config.kubelet_version_from is VersionSource.FLAG
    (note,) = notes
    assert "kubelet 1.44 is not known yet" in note
    assert "1.37" in note


@pytest.mark.parametrize(
    ("version", "gate", "message"),
    [
        ("1.35", "PodLevelResourceManagers", "kubelet 1.35 has no such gate"),
        ("1.36", "MemoryManager", "kubelet 1.36 has no such gate"),
    ],
)
def test_a_gate_that_the_version_does_not_know_is_refused(
    version: str, gate: str, message: str
) -> None:
    told = run("plan", "-", *STATIC, "--kubelet-version", version, "--feature-gate", f"{gate}=true")
    assert told.exit_code == 2
    assert told.stderr == f"Error: featureGates: unrecognized feature gate: {gate}; {message}\n"


def test_the_version_holds_for_a_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "featureGates: {MemoryManager: true}\n",
        encoding="utf-8",
    )
    config = ("--kubelet-config", str(file))
    assert run("plan", "-", *STATIC, *config, "--kubelet-version", "1.35").exit_code == 0
    refused = run("plan", "-", *STATIC, *config)
    assert refused.exit_code == 2
    assert "kubelet 1.36 has no such gate" in refused.stderr


@pytest.mark.parametrize("text", ["1.33", "next", "1.36\n1.37", ""])
def test_what_is_no_known_version_is_one_line(text: str) -> None:
    told = run("plan", "-", *STATIC, "--kubelet-version", text)
    assert told.exit_code == 2
    assert told.stderr.startswith("Error: --kubelet-version: ")
    assert "known are 1.34, 1.35, 1.36, 1.37" in told.stderr
    assert told.stderr.count("\n") == 1


def node_of(version: str, name: str = "node-1") -> str:
    return f"""
---
apiVersion: v1
kind: Node
metadata: {{name: {name}}}
status: {{nodeInfo: {{kubeletVersion: {version}}}}}
"""


def planned(*arguments: str, manifests: str = POD) -> dict[str, Any]:
    told = CliRunner().invoke(main, ["plan", "-", "-o", "json", *arguments], input=manifests)
    assert told.exit_code == 0, told.output
    document: dict[str, Any] = json.loads(told.stdout)
    return document


@pytest.mark.parametrize(
    ("arguments", "kubelet"),
    [
        ((), {"version": "1.36.2", "source": "default", "recorded": True}),
        (
            ("--kubelet-version", "v1.35.1+k3s1"),
            {"version": "1.35.1", "source": "flag", "recorded": True},
        ),
        (
            ("--kubelet-version", "1.37"),
            {
                "version": "1.37.0",
                "source": "flag",
                "recorded": False,
                "remark": "what is known of kubelet 1.37 was read from proposals, not recorded",
            },
        ),
    ],
)
def test_a_plan_tells_whose_it_is(arguments: tuple[str, ...], kubelet: Mapping[str, Any]) -> None:
    document = planned(*STATIC, *arguments)
    assert document["kubelet"] == kubelet
    remark = kubelet.get("remark")
    assert document["notes"].count(remark) == (remark is not None)


def test_the_text_tells_it_too() -> None:
    def subtitle(*arguments: str) -> str:
        return run("plan", "-", *STATIC, *arguments).stdout.splitlines()[1]

    assert subtitle() == "kubelet 1.36 · CPU manager static · topology manager none"
    assert subtitle("--kubelet-version", "1.34").startswith("kubelet 1.34 · ")
    assert subtitle("--kubelet-version", "1.35.1").startswith("kubelet 1.35.1 · ")
    why = run("explain", "-", *STATIC, "--pod", "feed", "--kubelet-version", "1.34").stdout
    assert "kubelet 1.34 · " in why


def test_the_version_of_a_node_is_its_kubelets() -> None:
    document = planned(*STATIC, manifests=POD + node_of("v1.34.3"))
    assert document["kubelet"]["version"] == "1.34.3"
    assert document["kubelet"]["source"] == "node"
    assert "1 Node: left out but for its kubelet's version without plan --node" in document["notes"]
    asked = planned(*STATIC, "--kubelet-version", "1.35", manifests=POD + node_of("v1.34.3"))
    assert asked["kubelet"]["source"] == "flag"
    assert "1 Node: left out without plan --node" in asked["notes"]
    two = POD + node_of("v1.34.3") + node_of("v1.35.0", "node-2")
    assert planned(*STATIC, manifests=two)["kubelet"]["source"] == "default"
    named = POD + node_of("v1.34.3") + node_of("v1.35.0", "2s4c2t")
    assert planned(*STATIC, manifests=named)["kubelet"]["version"] == "1.35.0"


def test_each_node_has_its_own() -> None:
    nodes = node_of("v1.34.3") + node_of("v1.29.1", "node-2") + node_of("v1.36.2", "node-3")
    document = planned(*STATIC, "--node", "node-*", "--node", "other", manifests=POD + nodes)
    told = {one["name"]: one["plan"]["kubelet"] for one in document["nodes"]}
    assert {name: (one["version"], one["source"]) for name, one in told.items()} == {
        "node-1": ("1.34.3", "node"),
        "node-2": ("1.34.9", "node"),
        "node-3": ("1.36.2", "node"),
        "other": ("1.36.2", "default"),
    }
    (note,) = (note for note in document["notes"] if "1.29" in note)
    assert "these are the answers of 1.34" in note
    assert told["node-2"]["remark"] == note


def test_a_configuration_is_refused_by_the_nodes_kubelet() -> None:
    gate = ("--feature-gate", "PodLevelResourceManagers=true")
    refused = CliRunner().invoke(
        main, ["plan", "-", *STATIC, *gate], input=POD + node_of("v1.35.6")
    )
    assert refused.exit_code == 2
    assert "kubelet 1.35 has no such gate" in refused.stderr
    planned(*STATIC, *gate, manifests=POD + node_of("v1.36.2"))


REMOVED = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: "0"
featureGates: {MemoryManager: true, InPlacePodVerticalScaling: true}
"""
UPGRADE = ("--kubelet-version", "1.35", "--compare-kubelet-version", "1.37")


@pytest.fixture
def removed(tmp_path: Path) -> str:
    file = tmp_path / "kubelet.yaml"
    file.write_text(REMOVED, encoding="utf-8")
    return str(file)


def test_what_an_upgrade_would_change(removed: str) -> None:
    machine = ("--machine", "2s4c2t", "--kubelet-config", removed)
    document = planned(*machine, *UPGRADE)
    assert document["changed"] == []
    assert [document[side]["kubelet"]["version"] for side in ("before", "after")] == [
        "1.35.6",
        "1.37.0",
    ]
    assert document["refused"] == [
        "featureGates: unrecognized feature gate: MemoryManager; kubelet 1.37 has no such gate"
    ]
    assert "feature gate CustomCPUCFSQuotaPeriod: off → on" in document["differences"]
    assert not any("MemoryManager:" in one for one in document["differences"])
    assert any("memory.low of Burstable" in one for one in document["differences"])
    text = run("plan", "-", *machine, *UPGRADE).stdout
    assert "✗ kubelet 1.37 does not start: featureGates: unrecognized feature gate" in text
    assert "\nkubelet 1.37 after kubelet 1.35\n• feature gate " in text
    svg = run("plan", "-", *machine, *UPGRADE, "-o", "svg")
    assert "does not start" in svg.stdout


def test_a_downgrade_names_what_is_not_so_any_more() -> None:
    document = planned(*STATIC, "--compare-kubelet-version", "1.35.5")
    assert any(one.startswith("only in kubelet 1.36.2: Devices") for one in document["differences"])
    assert "feature gate PodLevelResourceManagers: off → there is none" in document["differences"]
    assert not any("MemoryManager:" in one for one in document["differences"]), "on for good"
    assert not any("MemoryQoS" in one for one in document["differences"]), "the gate is off"
    names = run(
        "plan", "-", *STATIC, "--kubelet-version", "1.36.1", "--compare-kubelet-version", "1.36"
    )
    assert "kubelet 1.36.2 after kubelet 1.36.1" in names.stdout
    gates = ("--feature-gate", "MemoryQoS=true,PodLevelResourceManagers=true")
    refused = planned(*STATIC, *gates, "--compare-kubelet-version", "1.35")["refused"]
    assert [one.split(";")[0] for one in refused] == [
        "featureGates: unrecognized feature gate: PodLevelResourceManagers"
    ]
    kept = planned(*STATIC, *gates, "--compare-kubelet-version", "1.35")["differences"]
    assert not any("MemoryQoS:" in one for one in kept), "it is on before and after"


def test_a_comparison_of_files_is_of_one_kubelet(removed: str) -> None:
    document = planned(*STATIC, "--kubelet-version", "1.35", "--compare", removed)
    assert {document[side]["kubelet"]["version"] for side in ("before", "after")} == {"1.35.6"}
    assert "refused" not in document
    assert "differences" not in document
    both = planned(*STATIC, *UPGRADE, "--compare", removed)
    assert both["after"]["config"]["cpuManagerPolicy"] == "static"
    assert len(both["refused"]) == 1


def test_what_the_other_kubelet_refuses_for_good_is_one_line() -> None:
    option = ("--policy-option", "prefer-align-cpus-by-uncorecache=true")
    beta = ("--feature-gate", "CPUManagerPolicyBetaOptions=false")
    told = run("plan", "-", *STATIC, *option, *beta, "--compare-kubelet-version", "1.34")
    assert told.exit_code == 2
    assert told.stderr.startswith("Error: kubelet 1.34: the kubelet would not start: CPU Manager")
    assert run("plan", "-", *STATIC, *option, *beta).exit_code == 0


def test_nodes_are_not_compared() -> None:
    nodes = ("--node", "a", "--node", "b")
    told = run("plan", "-", *STATIC, *nodes, "--compare-kubelet-version", "1.34")
    assert told.exit_code == 2
    assert "--compare-kubelet-version" in told.stderr
