"""The simulation of suppression: what it says of a steady load, and that it says the same twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.suppression import main


def test_a_steady_load_is_one_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for name in ("one.json", "two.json"):
        assert main(["--hours", "0.02", "--json", str(tmp_path / name)]) == 0
        told.append(json.loads((tmp_path / name).read_text()))
    assert told[0] == told[1]
    found = {(one["load"], one["rule"]): one for one in told[0]}
    assert round(found["steady", "Pinfold"]["steps"] * 0.02) == 1
    for load, rule in found:
        if rule == "Pinfold":
            of_others = found[load, "Koordinator"]
            assert found[load, rule]["steps"] < of_others["steps"]
            assert found[load, rule]["above"] < of_others["above"]
    assert "steady" in capsys.readouterr().out
