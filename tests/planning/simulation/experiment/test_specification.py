"""The values of a run: fleets of other sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.machine.short_form import parse_short_form
from pinfold.planning.simulation.experiment.specification import FleetKind, scaled

MACHINE = parse_short_form("1s2c1t")


def _counts(counts: list[int], factor: float) -> list[int]:
    kinds = [FleetKind(f"kind{place}", MACHINE, count) for place, count in enumerate(counts)]
    return [kind.count for kind in scaled(kinds, factor)]


def test_kinds_are_scaled_alike_and_rounded_up() -> None:
    assert _counts([100, 10, 1], 1.1) == [110, 11, 2]
    assert _counts([100, 10, 1], 0.001) == [1, 1, 1]
    assert _counts([3], 1 / 3) == [1]


@given(st.lists(st.integers(1, 100_000), min_size=1), st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_larger_factor_is_no_smaller_fleet(counts: list[int], one: float, other: float) -> None:
    less, more = (_counts(counts, factor) for factor in sorted((one, other)))
    assert all(few <= many for few, many in zip(less, more, strict=True))
    assert _counts(counts, 1.0) == counts
