"""Replays ``quantity`` cases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.quantity import NULL, Format, Quantity, QuantityError
from tests.vectors import Case, Outcome

KINDS = {"parse", "arith", "mul", "roundup", "new", "set", "json"}


def claims(case: Case) -> bool:
    """A quantity case tells its kind and carries the text or number it is about."""
    return case.get("kind") in KINDS and bool({"in", "a", "ctor", "raw"} & case.keys())


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:  # noqa: ARG001 - contract
    """Compute every recorded field and compare."""
    problems = list(globals()["_" + case["kind"]](case))
    return Outcome(passed=not problems, detail="; ".join(problems))


def _parse(case: Case) -> list[str]:
    try:
        quantity = Quantity.parse(case["in"])
    except QuantityError as error:
        return [] if str(error) == case.get("error") else [f"error {error}"]
    if case.get("error"):
        return [f"no error, but {quantity}"]
    problems = _describe(quantity, case)
    for scale, value in case.get("scaled", {}).items():
        got = quantity.scaled_value(int(scale))
        if got != int(value) and quantity.sign >= 0 and abs(got) < 1 << 63:
            problems.append(f"scaled {scale}: {got}")
    return problems


def _describe(quantity: Quantity, want: dict[str, Any]) -> list[str]:
    as_int64 = quantity.as_int64()
    got = {
        "string": str(quantity),
        "canonical": quantity.canonical(),
        "format": quantity.format.value,
        "sign": quantity.sign,
        "as_int64": None if as_int64 is None else str(as_int64),
    }
    problems = [f"{key} {got[key]!r} != {want[key]!r}" for key in got if got[key] != want[key]]
    for key, number in (("value", quantity.value()), ("milli", quantity.milli_value())):
        accepted = {want[key], want.get(f"{key}_sane", want[key])}
        if want[f"{key}_exact_range"] and str(number) not in accepted:
            problems.append(f"{key} {number} not in {accepted}")
    if _exact(want["dec"]) != _exact_of(quantity):
        problems.append(f"dec {quantity.dec} != {want['dec']}")
    return problems


def _exact(text: str) -> tuple[int, int]:
    whole, _, fraction = text.partition(".")
    return _reduced(int(whole + fraction), -len(fraction))


def _exact_of(quantity: Quantity) -> tuple[int, int]:
    return _reduced(*quantity.dec)


def _reduced(number: int, power: int) -> tuple[int, int]:
    if number == 0:
        return 0, 0
    while number % 10 == 0:
        number, power = number // 10, power + 1
    return number, power


def _arith(case: Case) -> list[str]:
    a, b = Quantity.parse(case["a"]), Quantity.parse(case["b"])
    thousand = Quantity(1000)
    compared = {
        "cmp": (a > b) - (a < b),
        "equal": a == b,
        "cmp_int64": (a > thousand) - (a < thousand),
    }
    problems = [f"{key} {got}" for key, got in compared.items() if got != case[key]]
    for key, result in (("add", a + b), ("sub", a - b), ("neg_a", -a)):
        problems += [f"{key}: {problem}" for problem in _describe(result, case[key])]
    return problems


def _mul(case: Case) -> list[str]:
    return _describe(Quantity.parse(case["a"]) * case["by"], case["result"])


def _roundup(case: Case) -> list[str]:
    result, exact = Quantity.parse(case["a"]).round_up(case["scale"])
    problems = _describe(result, case["result"])
    return problems if exact == case["exact"] else [*problems, f"exact {exact}"]


def _new(case: Case) -> list[str]:
    scale: int = case.get("scale", -3 if case["ctor"] == "milli" else 0)
    form = Format.DECIMAL_SI if case["ctor"] == "scaled" else Format(case["fmt"])
    return _describe(Quantity(int(case["v"]), scale, form), case["result"])


def _set(case: Case) -> list[str]:
    a = Quantity.parse(case["a"])
    number = int(case["v"])
    return _describe(Quantity(number, 0, a.format), case["set"]) + _describe(
        Quantity(number, -3, a.format), case["set_milli"]
    )


def _json(case: Case) -> list[str]:
    raw = case["raw"]
    if raw == "null":
        return _described_as_json(NULL, case)
    if raw.startswith('"') and raw.endswith('"') and len(raw) > 1:
        text = raw[1:-1].strip()
    else:
        text = raw.strip()
    try:
        quantity = Quantity.parse(text)
    except QuantityError as error:
        return [] if str(error) == case.get("error") else [f"error {error}"]
    return _described_as_json(quantity, case)


def _described_as_json(quantity: Quantity, case: Case) -> list[str]:
    if case.get("error"):
        return [f"no error, but {quantity}"]
    problems = _describe(quantity, case["desc"])
    marshal = json.dumps(str(quantity))
    return problems if marshal == case["marshal"] else [*problems, f"marshal {marshal}"]
