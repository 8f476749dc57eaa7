"""What a later kubelet answers otherwise than 1.34, and that it answers all else alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.vectors import Case
from tests.vectors.__main__ import main
from tests.vectors.runner import (
    RECORDINGS,
    SAMPLES,
    as_version,
    discover_families,
    read_vector_file,
    replay_file,
    topologies_for,
)

CHANGED = {
    version: frozenset(ids)
    for version, ids in json.loads((SAMPLES / "changed.json").read_text()).items()
}
FILES = [*sorted(SAMPLES.glob("*.jsonl*")), *sorted(RECORDINGS.glob("*.jsonl*"))]


def is_of_1_34_only(case: Case) -> bool:
    return not case.keys() & {"version", "want_1_35", "also"}


@pytest.mark.parametrize("version", ["1.35", "1.36"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_exactly_the_recorded_changes_differ(path: Path, version: str) -> None:
    read = read_vector_file(path)
    read.cases[:] = [one for one in read.cases if is_of_1_34_only(one[1])]
    # Of the largest files every fifth case will do: the command replays them whole.
    read.cases[:] = read.cases[:: 5 if len(read.cases) > 2_000 else 1]
    file = as_version(read, version)
    tally = replay_file(file, topologies_for(file, []), discover_families())
    differ = {where.rpartition(" ")[2] for where, _ in tally.failures}
    there = {case.get("id") for _, case in file.cases}
    assert differ == CHANGED[version] & there, tally.failures[:3]
    assert not tally.not_covered


def test_the_samples_show_changes_of_both_versions() -> None:
    there = {
        case.get("id")
        for path in SAMPLES.glob("*.jsonl*")
        for _, case in read_vector_file(path).cases
        if is_of_1_34_only(case)
    }
    assert CHANGED["1.35"] & there
    assert (CHANGED["1.36"] - CHANGED["1.35"]) & there


def test_the_command_replays_as_another_version(capsys: pytest.CaptureFixture[str]) -> None:
    sample = str(SAMPLES / "device_policy.sample.jsonl")
    assert main(["--as", "1.34", sample]) == 0
    assert main(["--as", "v1.36.2", sample]) == 1
    capsys.readouterr()
    assert main(["--as", "1.33", sample]) == 2
    assert "older than all that are known" in capsys.readouterr().err
