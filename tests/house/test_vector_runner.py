"""The replay of recorded kubelet decisions: the runner itself, and all files that are there."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.machine.topology import CPUTopology
from tests.roots import ROOT
from tests.vectors import Case, Outcome
from tests.vectors.__main__ import main
from tests.vectors.runner import (
    RECORDINGS,
    SAMPLES,
    Family,
    UnknownTopologyError,
    discover_families,
    read_vector_file,
    replay_case,
    replay_file,
    topologies_for,
)

BY_DESIGN = {"cpus-not-free", "distribution-hangs", "combination-overwritten"}


def vector_files() -> list[Path]:
    """The committed samples, and the full recordings where they are."""
    return [*sorted(SAMPLES.glob("*.jsonl*")), *sorted(RECORDINGS.rglob("*.jsonl*"))]


@pytest.mark.parametrize("path", vector_files(), ids=lambda path: path.name)
def test_replays(path: Path) -> None:
    file = read_vector_file(path)
    tally = replay_file(file, topologies_for(file, [file]), discover_families())
    assert tally.failures == []
    assert tally.not_covered == {}
    assert tally.by_design.keys() <= BY_DESIGN


def topology(id_: str, cpus: int) -> Case:
    return {
        "id": id_,
        "num_cpus": cpus,
        "num_cores": cpus,
        "num_sockets": 1,
        "num_numa": 1,
        "num_uncore": 1,
        "cpus": [[cpu, cpu, 0, 0, 0] for cpu in range(cpus)],
    }


def packed(id_: str, topo: str, want: str, n: int = 1, avail: str = "0-1") -> Case:
    return {
        "id": id_,
        "topo": topo,
        "avail": avail,
        "n": n,
        "sort": "packed",
        "uncore": False,
        "want": {"cpus": want},
    }


def write(path: Path, *lines: Case) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, list[str], str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err


def test_counts_and_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(
        tmp_path / "any name",
        topology("m", 2),
        packed("good", "m", "0"),
        packed("bad", "m", "1"),
        {"id": "other", "kind": "unheard-of"},
    )
    status, out, _ = run(capsys, file)
    assert status == 1
    assert out[-1] == "1 passed, 1 failed, 1 not covered"
    assert out[-2] == "differ by design: 0"
    assert "not covered: 1 (unheard-of 1)" in out
    assert any(line.startswith("FAILED any name:3: bad: ") for line in out)


def test_all_passed_is_status_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.jsonl.gz", topology("m", 2), packed("good", "m", "0-1", n=2))
    status, out, _ = run(capsys, file)
    assert (status, out[-1]) == (0, "1 passed, 0 failed")


def test_a_case_that_nobody_replays_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a", topology("m", 2), packed("good", "m", "0"), {"kind": "unheard-of"})
    status, out, _ = run(capsys, file)
    assert (status, out[-1]) == (1, "1 passed, 0 failed, 1 not covered")


def test_a_folder_is_all_files_below_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = tmp_path / "all" / "1.36"
    newer.mkdir(parents=True)
    write(tmp_path / "all" / "topologies.jsonl", topology("m", 2))
    write(tmp_path / "all" / "old.jsonl", packed("old", "m", "0"))
    new = write(newer / "new.jsonl.gz", packed("new", "m", "0-1", n=2))
    (newer / "table.json").write_text("no cases")
    (newer / "VECTORS.md").write_text("no cases")
    status, out, _ = run(capsys, tmp_path / "all", new)
    assert (status, out[-1]) == (0, "2 passed, 0 failed")
    assert [line.partition(":")[0] for line in out[:3]] == [
        "new.jsonl.gz",
        "old.jsonl",
        "topologies.jsonl",
    ]
    assert run(capsys, new)[1][-1] == "1 passed, 0 failed", "of the folder above"
    (tmp_path / "none").mkdir()
    status, out, err = run(capsys, tmp_path / "none")
    assert (status, out) == (2, [])
    assert "no .jsonl or .jsonl.gz file is in this folder" in err


def test_command_line_form(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", topology("m", 2), packed("good", "m", "0"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.vectors", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed"


def test_a_gzip_is_told_by_its_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zipped = write(tmp_path / "a.gz", topology("m", 2), packed("good", "m", "0"))
    status, out, _ = run(capsys, zipped.rename(tmp_path / "plain.jsonl"))
    assert (status, out[-1]) == (0, "1 passed, 0 failed")


def test_topologies_are_found_nearest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Own file, other files given (same folder first), the folder's topologies, the sample."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    write(here / "topologies.jsonl", topology("beside", 2), topology("given", 4))
    case = write(
        here / "case.jsonl",
        topology("own", 2),
        packed("own", "own", "0-1", 2),
        packed("beside", "beside", "0-1", 2),
        packed("given", "given", "0-5", 6, avail="0-5"),
    )
    given = write(there / "given.jsonl", topology("given", 6), topology("own", 1))
    status, out, _ = run(capsys, case, given)
    assert (status, out[-1]) == (0, "3 passed, 0 failed")
    assert run(capsys, case)[1][-1] == "2 passed, 1 failed"


def test_unknown_topology_is_a_failed_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, write(tmp_path / "a.jsonl", packed("lost", "nowhere", "0")))
    assert (status, out[-1]) == (1, "0 passed, 1 failed")
    assert any("no topology 'nowhere' in the files given" in line for line in out)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{}\n{oops\n", "line 2: not JSON"),
        (b"[1]\n", "line 1: a list; one JSON object a line is expected"),
        (b"\xff\xfe\n", "not UTF-8 (byte 0)"),
        (gzip.compress(b"{}" * 99, mtime=0)[:-9], "broken gzip"),
        (b"[" * 200_000, "not JSON"),
    ],
    ids=["json", "list", "utf-8", "gzip", "depth"],
)
def test_a_bad_file_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, complaint: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    status, out, err = run(capsys, path)
    assert (status, out) == (2, [])
    assert complaint in err
    assert str(path) in err
    assert len(err.splitlines()) == 1


def test_a_missing_file_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, tmp_path / "absent.jsonl")
    assert status == 2
    assert "No such file" in err


def test_an_incomplete_topology_fails_its_cases(tmp_path: Path) -> None:
    broken: Case = topology("m", 2) | {"cpus": [[0, 0]]}
    file = read_vector_file(write(tmp_path / "a.jsonl", broken, packed("x", "m", "0")))
    tally = replay_file(file, topologies_for(file, [file]), discover_families())
    assert tally.failed == 1
    assert "topology 'm' is incomplete" in tally.failures[0][1]


def claim_all(case: Case) -> bool:
    return bool(case)


def forever(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    del case, topologies
    while True:
        try:
            time.sleep(5)
        except Exception:  # noqa: BLE001, S112 - what a careless replay might do
            continue


def raising(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    del topologies
    raise ZeroDivisionError(case["id"])


def test_a_hanging_case_fails_in_time() -> None:
    start = time.monotonic()
    outcome = replay_case({"id": "x"}, {}, [Family("slow", claim_all, forever)], seconds=0.1)
    assert outcome == Outcome(passed=False, detail="no answer within 0.1 s")
    assert time.monotonic() - start < 4


def test_a_raising_case_fails_with_its_error() -> None:
    outcome = replay_case({"id": "x"}, {}, [Family("broken", claim_all, raising)])
    assert outcome == Outcome(passed=False, detail="ZeroDivisionError: x")


def test_a_case_of_no_family_is_not_covered() -> None:
    assert replay_case({"id": "x"}, {}, discover_families()) is None


def test_a_case_of_two_families_has_to_pass_in_both() -> None:
    def passing(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
        del case, topologies
        return Outcome(passed=True)

    families = [Family("a", claim_all, passing), Family("b", claim_all, raising)]
    outcome = replay_case({"id": "x"}, {}, families)
    assert outcome is not None
    assert not outcome.passed


def test_lazy_topologies_are_a_mapping(tmp_path: Path) -> None:
    file = read_vector_file(write(tmp_path / "a.jsonl", topology("m", 2)))
    found: Mapping[str, Any] = topologies_for(file, [file])
    assert "m" in list(found)
    assert len(found) >= 1
    with pytest.raises(UnknownTopologyError, match="no topology 'absent'"):
        found["absent"]
