"""``pinfold simulate --show-node``: the life of a node, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from click.testing import CliRunner, Result

from pinfold.cli import main
from tests.roots import ROOT

SMALL = ROOT / "examples" / "simulation" / "small.yaml"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """The small example for some hours."""
    experiment: dict[str, Any] = yaml.safe_load(SMALL.read_text(encoding="utf-8"))
    experiment["spec"] |= {"warmUp": "0", "stop": {"after": "1d"}}
    file = tmp_path / "experiment.json"
    file.write_text(json.dumps(experiment), encoding="utf-8")
    return file


def test_the_life_is_shown_in_place_of_the_figures(short: Path) -> None:
    done = run(short, "--show-node", "node-7", "--configuration", "whole cores")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "node-7 under whole cores, seed 1"
    assert lines[1].startswith("2s16c2t@half@256Gi · kubelet ")
    assert any(line.endswith(" is refused: SMTAlignmentError") for line in lines)
    assert any(line.endswith("the end of the run") for line in lines)
    assert max(map(len, lines)) <= 80
    assert "rejected  " not in done.stdout


def test_without_a_configuration_there_is_one_life_each(short: Path) -> None:
    done = run(short, "--show-node", "node-0", "--seed", 5)
    heads = [line for line in done.stdout.splitlines() if line.startswith("node-0 under ")]
    assert heads == [f"node-0 under {one}, seed 5" for one in ("none", "static", "whole cores")]


def test_moments_of_the_command_line(short: Path) -> None:
    some = ("--configuration", "static", "--at", "20h", "--at", "90m", "--at", "0d1h")
    done = run(short, "--show-node", "node-0", *some)
    heads = [line for line in done.stdout.splitlines() if line.endswith("as asked for")]
    assert [head.split()[1] for head in heads] == ["01:00:00", "01:30:00", "20:00:00"]


def test_pictures_are_written(short: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "pictures"
    done = run(short, "--show-node", "node-0", "--svg", folder)
    assert done.exit_code == 0, done.stderr
    files = sorted(path.name for path in folder.iterdir())
    assert files == [
        "life-1-node-0-none.svg",
        "life-2-node-0-static.svg",
        "life-3-node-0-whole-cores.svg",
    ]
    for path in folder.iterdir():
        assert ET.parse(path).getroot().tag.endswith("}svg")  # noqa: S314 - our own


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--show-node", "node-20"], "no node is called 'node-20'; there are node-0 to node-19"),
        (["--show-node", "x\x1b[31m"], "no node is called 'x\\x1b[31m'"),
        (["--show-node", "node-0", "--configuration", "x"], "none, static, whole cores are there"),
        (["--show-node", "node-0", "--at", "25h"], "over after 86400 seconds"),
        (["--show-node", "node-0", "--at", "1x"], "unknown unit"),
        (["--show-node", "node-0", "--at", ""], "'--at'"),
        (["--show-node", "node-0", "--at", "-1h"], "from the first arrival on"),
        (["--show-node", "node-0", "--at", "1d-2h"], "from the first arrival on"),
        (["--show-node", "node-0", "-o", "json"], "leave -o away"),
        (["--at", "1h"], "give --show-node NAME"),
        (["--configuration", "static"], "give --show-node NAME"),
        (["--show-node", "node-0", "--svg", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    short: Path, arguments: list[str], told: str
) -> None:
    done = run(short, *arguments)
    assert done.exit_code == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_the_worst_decisions_stand_below_the_table(short: Path) -> None:
    done = run(short, "--seed", 1)
    assert done.exit_code == 0, done.stderr
    below = done.stdout.partition("\nWorst decisions\n")[2].splitlines()
    # Under none nobody has CPUs of his own, and nothing is bad.
    assert [line for line in below if not line.startswith(" ")] == [
        "static",
        "whole cores",
        "all of them with -o json or --report",
    ]
    assert any("not multiple cpus per core = 2" in line for line in below)
