"""Manifests given with ``-f``, as a user of ``kubectl`` gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pinfold.cli import main

NODE = ("--machine", "2s4c2t", "--policy", "static", "--reserved-cpus", "0")
COMMANDS = {
    "plan": ("plan", *NODE, "-o", "json"),
    "explain": ("explain", *NODE, "-o", "json"),
    "rebalance": ("rebalance", "--dry-run", *NODE, "-o", "json"),
    "apply": ("apply", "--socket", "/nowhere/pinfold.sock"),
}


@pytest.fixture
def pod(tmp_path: Path) -> str:
    limits = {"cpu": "2", "memory": "1Gi"}
    spec = {"containers": [{"name": "app", "command": ["true"], "resources": {"limits": limits}}]}
    path = tmp_path / "pod.json"
    path.write_text(json.dumps({"kind": "Pod", "metadata": {"name": "feed"}, "spec": spec}))
    return str(path)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_the_option_is_one_of_the_arguments(name: str, pod: str) -> None:
    plain = CliRunner().invoke(main, [*COMMANDS[name], pod])
    for option in ("-f", "--filename"):
        given = CliRunner().invoke(main, [*COMMANDS[name], option, pod])
        assert (given.exit_code, given.output) == (plain.exit_code, plain.output)
    assert plain.exit_code == (2 if name == "apply" else 0)


def test_both_are_read(pod: str, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(Path(pod).read_text().replace("feed", "other"))
    result = CliRunner().invoke(main, ["plan", *NODE, "-o", "json", str(other), "-f", pod])
    assert [one["name"] for one in json.loads(result.stdout)["pods"]] == ["feed", "other"]


@pytest.mark.parametrize("name", ["plan", "apply"])
def test_without_any_the_command_says_so(name: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr
