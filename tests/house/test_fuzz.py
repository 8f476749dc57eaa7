"""What the fuzzer found stays found, and the fuzzer itself finds what there is to find."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fuzz.engine import Target, attempt, fuzz
from fuzz.mutator import MAX_BYTES, Mutator
from fuzz.targets import TARGETS

from pinfold.core.values.cpuset import CPUSet, CPUSetError
from tests.roots import DATA

REGRESSIONS = DATA / "regressions"
FOUND = sorted(path for path in REGRESSIONS.glob("*/*") if path.is_file())
OPEN: frozenset[str] = frozenset()
"""Known and not yet fixed; an entry has to go when its fault is gone."""


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_stays_fixed(path: Path, request: pytest.FixtureRequest) -> None:
    if f"{path.parent.name}/{path.name}" in OPEN:
        request.applymarker(pytest.mark.xfail(reason="known and not yet fixed", strict=True))
    failure = attempt(TARGETS[path.parent.name], path.read_bytes(), seconds=2)
    assert failure is None, failure.trace


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_some_mutations_of(name: str) -> None:
    report = fuzz(TARGETS[name], seconds=60, seed=1, inputs=60)
    assert [failure.trace for failure in report.failures.values()] == []
    assert report.inputs > 0


def planted(data: bytes) -> None:
    """A parser with a fault that no seed shows."""
    text = data.decode("utf-8", "replace")
    try:
        cpus = CPUSet.parse(text)
    except CPUSetError:
        return
    if len(cpus) > 60:
        raise KeyError(text)


def test_a_planted_fault_is_found_and_reproduced() -> None:
    target = Target("planted", planted, lambda: [b"0-3,8"], (b"64",))
    report = fuzz(target, seconds=20, seed=3, inputs=5000)
    (failure,) = report.failures.values()
    assert failure.error.startswith("KeyError")
    again = attempt(target, failure.data)
    assert again is not None
    assert again.error == failure.error


def endless(data: bytes) -> None:
    """Never answers, and swallows ordinary exceptions."""
    while data is not None:
        try:
            sum(range(100_000))
        except Exception as error:  # noqa: BLE001 - what a careless parser might do
            del error


def test_an_endless_parser_is_a_failure() -> None:
    failure = attempt(Target("endless", endless, list), b"x", seconds=0.1)
    assert failure is not None
    assert "no answer within 0.1 s" in failure.error


def test_new_inputs_join_the_corpus(tmp_path: Path) -> None:
    fuzz(TARGETS["cpulist"], seconds=20, seed=1, corpus=tmp_path, inputs=300)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    report = fuzz(TARGETS["cpulist"], seconds=20, seed=2, corpus=tmp_path, inputs=0)
    assert report.inputs >= len(kept)


def test_the_same_seed_makes_the_same_inputs() -> None:
    def inputs(seed: int) -> list[bytes]:
        mutator = Mutator(random.Random(seed), (b"word",))  # noqa: S311 - no secret
        data = [b"0-3,8\nline: {a: [1]}\n"]
        for _ in range(200):
            data.append(mutator.mutate(data[0], data[-1]))
        return data

    assert inputs(5) == inputs(5)
    assert inputs(5) != inputs(6)
    assert all(len(data) <= MAX_BYTES for data in inputs(7))
    assert len(set(inputs(5))) > 150
