"""Replays ``hugepages`` cases: names, sizes, media and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.api import PodError, pod_from_api, quantity_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.hugepages import (
    HugePagesError,
    is_divisible,
    is_hugepage_medium,
    medium_page_quantity,
    page_quantity,
    page_size_option,
    resource_name,
    unit_name,
)
from pinfold.core.pod.manifest.validation import (
    manifest_problems,
    pod_problems,
    requirement_problems,
)
from pinfold.core.pod.pod import is_hugepages
from pinfold.core.pod.resource_names import may_be_overcommitted
from pinfold.core.values.quantity import Quantity
from pinfold.core.values.resource_names import is_extended, is_native, is_prefixed_native
from tests.vectors import Case, Outcome

Row = tuple[str, object, object]
T = TypeVar("T")


def claims(case: Case) -> bool:
    """A kind of ours; ``name`` and ``pod`` are others' too, told apart by their fields."""
    kind = KINDS.get(str(case.get("kind")))
    return kind is not None and case.keys() >= kind[0]


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:  # noqa: ARG001 - contract
    """Compute every recorded field and compare."""
    problems = [
        f"{name}: want {want!r}, got {got!r}"
        for name, got, want in KINDS[case["kind"]][1](case)
        if got != want
    ]
    return Outcome(passed=not problems, detail="; ".join(problems))


def _name(case: Case) -> Iterator[Row]:
    name = case["name"]
    for field, answer in (
        ("is_huge", is_hugepages),
        ("is_native", is_native),
        ("is_prefixed_native", is_prefixed_native),
        ("is_extended", is_extended),
        ("overcommit_allowed", may_be_overcommitted),
    ):
        yield field, answer(name), case[field]
    size, error = _attempt(lambda: page_quantity(name))
    yield "size", size and str(size), case["size"]
    yield "size_error", error, case["size_error"]
    if size is not None:
        yield "size_bytes", str(size.value()), case["size_bytes"]


def _divisible(case: Case) -> Iterator[Row]:
    got = is_divisible(case["name"], Quantity.parse(case["value"]))
    yield "divisible", got, case["divisible"]


def _medium(case: Case) -> Iterator[Row]:
    medium = case["medium"]
    yield "is_huge_medium", is_hugepage_medium(medium), case["is_huge_medium"]
    size, error = _attempt(lambda: medium_page_quantity(medium))
    yield "size", size and str(size), case["size"]
    yield "error", error, case["error"]


def _name_from_size(case: Case) -> Iterator[Row]:
    yield "name", resource_name(case["bytes"]), case["name"]


def _unit(case: Case) -> Iterator[Row]:
    unit, error = _attempt(lambda: unit_name(case["bytes"]))
    yield "unit", unit or "", case["unit"]
    yield "error", error, case["error"]


def _volume_mount(case: Case) -> Iterator[Row]:
    pod = pod_from_api(case["pod"])
    option, error = _attempt(lambda: page_size_option(case["medium"], pod))
    yield "option", option or "", case["option"]
    yield "error", error, case["error"]


def _requirements(case: Case) -> Iterator[Row]:
    requests, limits = (
        {
            name: quantity_from_api(value, name)
            for name, value in (case["resources"].get(key) or {}).items()
        }
        for key in ("requests", "limits")
    )
    yield _errors(case, requirement_problems(requests, limits))


def _pod(case: Case) -> Iterator[Row]:
    pod = apply_defaults(pod_from_api(case["pod"]))
    yield "qos", pod.qos.value, case["qos"]
    yield _errors(case, [*pod_problems(pod), *manifest_problems(case["pod"])])


def _errors(case: Case, problems: Iterator[PodError] | list[PodError]) -> Row:
    got = sorted((str(problem), problem.path) for problem in problems)
    return (
        "errors",
        got,
        sorted((error["message"], error["field"]) for error in case["errors_sorted"]),
    )


def _attempt(call: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return call(), None
    except HugePagesError as error:
        return None, str(error)


KINDS: Final[dict[str, tuple[frozenset[str], Callable[[Case], Iterator[Any]]]]] = {
    "name": (frozenset({"is_huge", "size_error"}), _name),
    "divisible": (frozenset({"name", "value", "divisible"}), _divisible),
    "medium": (frozenset({"medium", "is_huge_medium"}), _medium),
    "name_from_size": (frozenset({"bytes", "name"}), _name_from_size),
    "unit": (frozenset({"bytes", "unit"}), _unit),
    "volume_mount": (frozenset({"medium", "pod", "option"}), _volume_mount),
    "v1_requirements": (frozenset({"resources", "errors_sorted"}), _requirements),
    "pod": (frozenset({"pod", "qos", "errors_sorted"}), _pod),
}
