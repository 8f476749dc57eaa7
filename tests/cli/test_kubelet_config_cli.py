"""A kubelet's configuration in several files, as a user gives it to each command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from pinfold.config.agent import load_agent_config
from pinfold.planning.simulation.experiment.loading import load_experiment
from tests.scenes.small_experiment import experiment_file

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
POD = {
    "kind": "Pod",
    "metadata": {"name": "feed"},
    "spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}}]},
}
MACHINE = ("--machine", "1s4c2t")


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), input=json.dumps(POD))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder with ``kubelet.yaml`` and ``conf.d`` with one drop-in."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "kubelet.yaml").write_text(f"{HEADER}cpuManagerPolicy: static\n")
    (tmp_path / "conf.d" / "10-cpus.conf").write_text(f"{HEADER}reservedSystemCPUs: 0-1\n")
    return tmp_path


def given(node: Path) -> tuple[str, ...]:
    return ("--kubelet-config", str(node / "kubelet.yaml"), "--config-dir", str(node / "conf.d"))


def planned(*words: str) -> Any:
    result = run("plan", *MACHINE, *words, "-", "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_plan_is_made_under_the_drop_ins(node: Path) -> None:
    document = planned(*given(node))
    assert document["reserved"] == "0-1"
    # The command line has the last word.
    assert planned(*given(node), "--reserved-cpus", "0")["reserved"] == "0"


@pytest.mark.parametrize(
    "words", [("explain", "--pod", "feed"), ("rebalance", "--dry-run")], ids=lambda words: words[0]
)
def test_other_commands_take_them_too(node: Path, words: tuple[str, ...]) -> None:
    result = run(*words, *MACHINE, *given(node), "-")
    assert result.exit_code == 0, result.output
    (node / "conf.d" / "20-bad.conf").write_text(f"{HEADER}maxPods: -1\n")
    result = run(*words, *MACHINE, *given(node), "-")
    assert result.exit_code == 2
    assert "conf.d/20-bad.conf: maxPods: " in result.stderr


def test_a_profile_is_checked_with_them(node: Path) -> None:
    result = run("profile", "check", *MACHINE, *given(node), "-o", "json")
    assert json.loads(result.stdout)["exclusive"] == "2-7"


def test_an_agent_starts_with_them(node: Path) -> None:
    folder = str(node / "conf.d")
    config = load_agent_config(node / "kubelet.yaml", config_dir=folder)
    assert str(config.node.reserved_system_cpus) == "0-1"
    (node / "conf.d" / "20-own.conf").write_text(f"{HEADER}pinfold: {{socket: /run/x.sock}}\n")
    assert (
        load_agent_config(node / "kubelet.yaml", config_dir=folder).own.api.socket == "/run/x.sock"
    )


def test_an_experiment_takes_them(node: Path) -> None:
    files = {"kubeletConfiguration": "kubelet.yaml", "configDir": "conf.d"}
    experiment = experiment_file(node, configurations=[{"name": "a", **files}])
    assert str(load_experiment(str(experiment)).specs[0].config.reserved_system_cpus) == "0-1"
    (node / "conf.d" / "20-bad.conf").write_text(f"{HEADER}maxPods: -1\n")
    result = run("simulate", str(experiment))
    assert result.exit_code == 2
    assert "conf.d/20-bad.conf: maxPods: " in result.stderr


def test_drop_ins_can_be_compared(node: Path) -> None:
    other = node / "other.d"
    other.mkdir()
    (other / "10-cpus.conf").write_text(f"{HEADER}reservedSystemCPUs: 0-5\n")
    result = run("plan", *MACHINE, *given(node), "--compare-config-dir", str(other), "-")
    assert result.exit_code == 0, result.output
    assert "kubelet.yaml with conf.d" in result.stdout
    assert "kubelet.yaml with other.d" in result.stdout


def test_the_configuration_at_fault_is_named_when_two_are_compared(node: Path) -> None:
    good, bad = node / "kubelet.yaml", node / "bad.yaml"
    good.write_text(f"{HEADER}cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n")
    for text, problem in (
        ("maxPods: -1\n", "maxPods: invalid configuration"),
        # Only on this machine is it found out that no kubelet would start so.
        ("cpuManagerPolicy: static\n", "the kubelet would not start: [cpumanager]"),
    ):
        bad.write_text(HEADER + text)
        for first, second in ((good, bad), (bad, good)):
            result = run(
                "plan", *MACHINE, "--kubelet-config", str(first), "--compare", str(second), "-"
            )
            assert result.exit_code != 0
            assert f"{bad}: {problem}" in result.stderr
