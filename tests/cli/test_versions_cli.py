"""``--kubelet-version``: whose answers are given, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from pinfold.cli.node import load_config
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


def test_an_explicit_version_is_known_as_such() -> None:
    config, notes = load_config(None, {"kubelet_version": named_version("v1.35.6")})
    assert config.kubelet_version == V1_35
    assert config.version_is_explicit
    assert notes == ()
    assert not load_config(None, {})[0].version_is_explicit
    assert load_config(None, {})[0].kubelet_version == DEFAULT_VERSION == V1_36


def test_a_newer_version_than_all_is_the_newest_and_says_so() -> None:
    config, notes = load_config(None, {"kubelet_version": named_version("1.44")})
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
