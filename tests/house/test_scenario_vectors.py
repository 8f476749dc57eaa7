"""The replay of whole nodes notices what is otherwise, wherever it is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.vectors import Case
from tests.vectors.runner import (
    SAMPLES,
    VectorFile,
    discover_families,
    read_vector_file,
    replay_case,
    topologies_for,
)


@pytest.fixture(scope="module", name="sample")
def _sample() -> VectorFile:
    return read_vector_file(SAMPLES / "scenario.sample.jsonl.gz")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything in a document that is no list or mapping."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in items:
        if isinstance(one, dict | list):
            yield from leaves(one, (*path, key))
        else:
            yield (*path, key)


def other(value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}7"
    return "something"


def passes(sample: VectorFile, case: Case) -> bool:
    outcome = replay_case(case, topologies_for(sample, [sample]), discover_families())
    assert outcome is not None
    return outcome.passed


STEPS = ["admit", "delete", "files", "hints", "remove", "report", "resize", "restart"]


@pytest.mark.parametrize("step", [*STEPS, "start_container", "start"])
def test_every_field_of_a_result_counts(sample: VectorFile, step: str) -> None:
    for _, case in sample.cases:
        ops = ["start", *(one["op"] for one in case["steps"])]
        results = case["want"]["results"]
        numbers = [n for n, op in enumerate(ops[: len(results)]) if op == step]
        if not numbers:
            continue
        number, seen = numbers[-1], set[str]()
        for path in leaves(results[number]):
            kind = ".".join(key for key in path if isinstance(key, str) and not key[-1:].isdigit())
            if kind in seen:
                continue
            seen.add(kind)
            changed = copy.deepcopy(case)
            place = changed["want"]["results"][number]
            for key in path[:-1]:
                place = place[key]
            if place[path[-1]] is None and "memory_file" in kind:
                continue  # recorded as "not the same twice"
            place[path[-1]] = other(place[path[-1]])
            assert not passes(sample, changed), (case["id"], number, path)
        return
    pytest.fail(f"no case has a step {step}")


def test_results_are_neither_more_nor_fewer(sample: VectorFile) -> None:
    _, case = sample.cases[0]
    assert passes(sample, case)
    for change in (lambda rows: rows[:-1], lambda rows: [*rows, rows[-1]]):
        results = change(case["want"]["results"])
        assert not passes(sample, case | {"want": {"results": results}})
