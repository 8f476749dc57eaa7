"""What a placement costs in fleets of different size, as a picture.

    python -m benchmarks.simulation_growth docs/pictures/simulation-growth.svg

One line has four pods for each node, so that a larger fleet has more of them; the other one has as
many pods in every fleet.  Were the nodes looked through for each pod, both would rise tenfold from
one size to the next.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from benchmarks.simulation import ARRIVALS, FLEETS, filling, of, placement
from pinfold.planning.simulation.experiment.specification import RunSpec
from pinfold.render.report.drawing import picture
from pinfold.render.report.view import Column, Figure, Line, LineChart, Table

_KEYS: Final = ("four pods for each node", f"{ARRIVALS:,} pods in every fleet")


def alike(nodes: int) -> RunSpec:
    """The same pods for fleets of any size, of which the smallest is nearly full."""
    largest = filling(ARRIVALS // 4)
    return of(largest.arrivals, "2s32c2t@512Gi", nodes, largest.config, ARRIVALS)


def growth() -> Figure:
    """Measure, and draw."""
    rows = [
        (nodes, placement(filling(nodes)) / 1000, placement(alike(nodes)) / 1000)
        for nodes in FLEETS[1:]
    ]
    lines = tuple(
        Line(key, tuple((float(place), row[key + 1]) for place, row in enumerate(rows)))
        for key in range(len(_KEYS))
    )
    return Figure(
        "simulation-growth",
        "The cost of a placement by the size of the fleet",
        "CPU time of one placement, its end and its share of all else, under policy static.",
        LineChart(
            "nodes",
            "microseconds a placement",
            _KEYS,
            lines,
            categories=tuple(f"{nodes:,}" for nodes, *_ in rows),
        ),
        Table(
            "Microseconds a placement",
            (Column("nodes"), *(Column(key) for key in _KEYS)),
            tuple((f"{nodes:,}", *(f"{cost:.1f}" for cost in costs)) for nodes, *costs in rows),
        ),
    )


def _main() -> None:
    figure = growth()
    Path(sys.argv[1]).write_text(picture(figure), encoding="utf-8")
    for row in figure.table.rows:
        print(" ".join(f"{cell:>12}" for cell in row))


if __name__ == "__main__":
    _main()
