"""Selectors of devices, evaluated as a scheduler does that allocates claims.

``quantity(TEXT)`` is a value with ``compareTo`` there; here it is its text, and so are capacities.
The maps of a device have an empty map for each domain that they do not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cel_expr_python import cel  # type: ignore[import-untyped] # it says nothing of its types

from pinfold.core.values.quantity import Quantity

_TEXT = cel.Type.STRING


def _same(text: str) -> str:
    Quantity.parse(text)
    return text


def _compared(one: str, other: str) -> int:
    left, right = Quantity.parse(one), Quantity.parse(other)
    return (left > right) - (left < right)


_QUANTITY = cel.FunctionDecl(
    "quantity", [cel.Overload("string_to_quantity", _TEXT, [_TEXT], impl=_same)]
)
_COMPARE = cel.FunctionDecl(
    "compareTo",
    [
        cel.Overload(
            "quantity_compare_to",
            cel.Type.INT,
            [cel.Type.DYN, _TEXT],
            impl=_compared,
            is_member=True,
        )
    ],
)
_ENVIRONMENT = cel.NewEnv(
    variables={"device": cel.Type.DYN},
    extensions=[cel.CelExtension("quantities", [_QUANTITY, _COMPARE])],
)


def device_of(driver: str, device: Mapping[str, Any], domains: Iterable[str]) -> dict[str, Any]:
    """What selectors see of a device of a slice."""
    found: dict[str, Any] = {"driver": driver}
    for part, value_of in (("attributes", _attribute), ("capacity", _capacity)):
        found[part] = {domain: {} for domain in (driver, *domains)}
        for name, value in device.get(part, {}).items():
            domain, _, identifier = name.rpartition("/")
            found[part].setdefault(domain or driver, {})[identifier] = value_of(value)
    return found


def selects(device_class: Mapping[str, Any], device: Mapping[str, Any]) -> bool:
    """Whether all selectors of a class are true of a device; an error is none of that."""
    for selector in device_class["spec"].get("selectors", ()):
        found = _ENVIRONMENT.compile(selector["cel"]["expression"]).eval(data={"device": device})
        assert found.type() != cel.Type.ERROR, (selector, found.value())
        if found.value() is not True:
            return False
    return True


def _attribute(value: Mapping[str, Any]) -> object:
    (held,) = value.values()
    return held


def _capacity(value: Mapping[str, Any]) -> str:
    return str(value["value"])
