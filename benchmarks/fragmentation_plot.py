"""The fragmentation as a picture: a pair of bars for each machine and policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_WIDTH: Final = 760
_LEFT: Final = 250
_RIGHT: Final = 110
_BAR: Final = 20
_COLOURS: Final = {"static": "#e69f00", "dynamic": "#0072b2"}


def as_svg(figures: Sequence[Mapping[str, Any]]) -> str:
    """Draw the rows of :mod:`benchmarks.fragmentation` that are of the trace."""
    rows = [one for one in figures if one["pods"] == "of the trace"]
    high = max(*(_value(one)[0] for one in rows), 1.0)
    parts: list[str] = []
    y = 44.0
    for number, one in enumerate(rows):
        if number % 2 == 0:
            y += 8
        parts += _bar(one, y, high)
        y += _BAR
    y += 24
    parts.append(
        f'<text x="12" y="{y:.0f}" fill="#555" font-size="11">percent of the pods that came; '
        "moves: containers that were moved for each pod that came</text>"
    )
    height = round(y + 16)
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
                f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12" '
                'role="img" aria-label="Pods rejected for topology or split, by policy">'
            ),
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            (
                '<text x="12" y="26" font-size="15" fill="#222">A stream of pods on nodes with '
                "128 CPUs</text>"
            ),
            *parts,
            "</svg>\n",
        ]
    )


def _value(one: Mapping[str, Any]) -> tuple[float, str]:
    """Percent of the arrivals, and what it is of."""
    strict = one["topology_manager"] == "single-numa-node"
    count = one["rejected"] if strict else one["split"]
    return 100 * count / max(one["arrivals"], 1), "rejected" if strict else "split"


def _bar(one: Mapping[str, Any], y: float, high: float) -> Iterator[str]:
    value, what = _value(one)
    name = f"{one['numa_nodes']} NUMA nodes, {what}, {one['policy']}"
    length = max(1.5, value / high * (_WIDTH - _LEFT - _RIGHT))
    moves = one["moves"] / max(one["arrivals"], 1)
    told = f"{value:.1f} %" + (f", {moves:.2f} moves" if one["policy"] == "dynamic" else "")
    yield (
        f'<text x="{_LEFT - 8}" y="{y + 14:.0f}" text-anchor="end" fill="#333">{name}</text>'
        f'<rect x="{_LEFT}" y="{y + 2:.0f}" width="{length:.1f}" height="{_BAR - 5}" '
        f'fill="{_COLOURS[one["policy"]]}"/>'
        f'<text x="{_LEFT + length + 6:.1f}" y="{y + 14:.0f}" fill="#222">{told}</text>'
    )
