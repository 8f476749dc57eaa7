"""Arithmetic on resource lists, as quotas count: what one list does not name is nothing.

Source: upstream ``apiserver/pkg/quota/v1`` (``resources.go``, 1.34).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from pinfold.core.pod.pod import Resources
from pinfold.core.values.quantity import Quantity

_ZERO: Final = Quantity.parse("0")


def add(a: Resources, b: Resources) -> dict[str, Quantity]:
    """The sum of both."""
    total = dict(a)
    for name, quantity in b.items():
        total[name] = total[name] + quantity if name in total else quantity
    return total


def subtract(a: Resources, b: Resources) -> dict[str, Quantity]:
    """What is left of ``a``; it may be negative."""
    left = dict(a)
    for name, quantity in b.items():
        left[name] = left[name] - quantity if name in left else -quantity
    return left


def subtract_to_zero(a: Resources, b: Resources) -> dict[str, Quantity]:
    """What is left of ``a``, and nothing where less than nothing would be, or it names nothing."""
    return {
        name: left if left.sign > 0 and name in a else _ZERO
        for name, left in subtract(a, b).items()
    }


def maximum(a: Resources, b: Resources) -> dict[str, Quantity]:
    """The larger of both, name by name."""
    most = dict(a)
    for name, quantity in b.items():
        if name not in most or most[name] <= quantity:
            most[name] = quantity
    return most


def mask(resources: Resources, names: Collection[str]) -> dict[str, Quantity]:
    """The part with these names."""
    return {name: quantity for name, quantity in resources.items() if name in names}


def exceeded(a: Resources, b: Resources) -> tuple[str, ...]:
    """The names, sorted, of which ``a`` has more than ``b`` says, where it says anything."""
    return tuple(sorted(name for name, most in b.items() if name in a and most < a[name]))


def negative(resources: Resources) -> tuple[str, ...]:
    """The names of less than nothing, sorted."""
    return tuple(sorted(name for name, quantity in resources.items() if quantity.sign < 0))


def without_zeros(resources: Resources) -> dict[str, Quantity]:
    """The part that is not nothing."""
    return {name: quantity for name, quantity in resources.items() if quantity.sign}


def is_zero(resources: Resources) -> bool:
    """Whether there is nothing in it."""
    return not any(quantity.sign for quantity in resources.values())


def as_text(resources: Resources) -> str:
    """``name=quantity,...`` by name, as the API server writes it."""
    return ",".join(f"{name}={resources[name]}" for name in sorted(resources))


def names_as_text(names: Iterable[str]) -> str:
    """``name,...``, sorted."""
    return ",".join(sorted(names))
