"""The worst decisions as text: as many as are to be shown, and no line too wide."""

from __future__ import annotations

import pytest

from pinfold.render.simulation.worst import BadDecision, BadDecisions, render_worst
from pinfold.render.terminal import Style, cell_width

REFUSED = BadDecision(
    at=93_784.0,
    where="node-3",
    whom="pod-7 with 8 CPUs",
    outcome="TopologyAffinityError",
    why="refused although 30 CPUs were free",
    reasons=tuple(f"reason {number}, " + "word " * 30 for number in range(5)),
)
LET_IN = BadDecision(1.0, "node-0", "pod-1 with 2 CPUs", "", "on 1 more core than 2 CPUs need", ())


def test_nothing_is_said_where_nothing_is_bad() -> None:
    assert not render_worst((), 0, Style())


def test_what_is_told_and_what_is_left_out() -> None:
    text = render_worst((BadDecisions("static", (REFUSED, LET_IN), 4),), 2, Style(200))
    lines = text.splitlines()
    assert lines[:4] == [
        "",
        "Worst decisions",
        "static",
        "  1 d 02:03:04  node-3  pod-7 with 8 CPUs: TopologyAffinityError",
    ]
    assert "  00:00:01  node-0  pod-1 with 2 CPUs is let in" in lines
    assert "reason 2," in text
    assert "reason 3," not in text
    assert lines[-2:] == [
        "  and 4 more",
        "2 more configurations: all of them with -o json or --report",
    ]


@pytest.mark.parametrize("width", [20, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    hostile = BadDecisions("x" * 90 + "\x1b[31m", (REFUSED, LET_IN))
    text = render_worst((hostile,), 0, Style(width))
    assert max(map(cell_width, text.splitlines())) <= width
    assert "\x1b" not in text
