"""The search for the smallest fleet, against every fleet that there is."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.machine.short_form import parse_short_form
from pinfold.planning.simulation.campaign.searching import Aim, Found, counts, search
from pinfold.planning.simulation.experiment.specification import FleetKind

MACHINE = parse_short_form("1s2c1t")


def _kinds(of: list[int]) -> list[FleetKind]:
    return [FleetKind(f"kind{place}", MACHINE, count) for place, count in enumerate(of)]


def _found(kinds: list[FleetKind], aim: Aim, share: Callable[[float], float]) -> Found:
    asking = search(kinds, aim)
    factor = next(asking)
    while True:
        try:
            factor = asking.send(share(factor))
        except StopIteration as end:
            found: Found = end.value
            return found


FLEETS = st.lists(st.integers(1, 300), min_size=1, max_size=3).map(_kinds)
AIMS = st.builds(Aim, st.just(0.9), st.floats(0.1, 20), st.floats(0.005, 1))


@given(FLEETS, AIMS, st.floats(0.0, 30))
def test_where_more_nodes_let_in_more_it_is_the_smallest(
    kinds: list[FleetKind], aim: Aim, border: float
) -> None:
    nodes = sum(kind.count for kind in kinds) * border

    def share(factor: float) -> float:
        return 1.0 if sum(counts(kinds, factor)) >= nodes else 0.5

    found = _found(kinds, aim, share)
    if share(aim.most) < aim.acceptance:
        assert found.factor is None
        return
    assert found.factor is not None
    assert found.factor <= aim.most
    assert share(found.factor) >= aim.acceptance
    less = found.factor - aim.precision
    if less > 0 and counts(kinds, less) != counts(kinds, found.factor):
        assert share(less) < aim.acceptance


@given(FLEETS, AIMS, st.randoms(use_true_random=False))
def test_whatever_is_let_in_it_ends_and_never_tries_a_fleet_twice(
    kinds: list[FleetKind], aim: Aim, chance: object
) -> None:
    drawn: Callable[[], float] = chance.random  # type: ignore[attr-defined]  # hypothesis' own
    shares: dict[float, float] = {}

    def share(factor: float) -> float:
        assert 0 < factor <= aim.most
        return shares.setdefault(factor, drawn())

    found = _found(kinds, aim, share)
    assert dict(found.tried) == shares
    fleets = [counts(kinds, factor) for factor, _ in found.tried]
    assert len(set(fleets)) == len(fleets) or aim.most < 1
    if found.factor is not None:
        assert shares[found.factor] >= aim.acceptance
        assert all(share < aim.acceptance for at, share in found.tried if at < found.factor)
    assert len(fleets) <= aim.steps + 12


def test_the_factors_of_a_search() -> None:
    kinds = _kinds([100])
    found = _found(kinds, Aim(0.9, 4.0, 0.1), lambda factor: 1.0 if factor >= 1.3 else 0.0)
    assert [factor for factor, _ in found.tried] == [1.0, 2.0, 1.5, 1.25, 1.375, 1.3125]
    assert found.factor == 1.3125
