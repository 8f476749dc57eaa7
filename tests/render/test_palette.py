"""Who is who: marks and colours of owners, for every kind of eye and of page."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.boxes import CellState
from pinfold.render.node_map import Owner, build_node_map, number_owners
from pinfold.render.palette import (
    OWNERS,
    STATES,
    STRIPES,
    Paint,
    owner_paint,
    owner_stripes,
    owner_symbol,
    state_symbol,
    stripe_color,
)
from pinfold.render.plan_view import PlanView
from pinfold.render.svg import render_plan_svg
from pinfold.render.svg_canvas import DARK, LIGHT, STATES_IN_THE_DARK
from pinfold.render.terminal import Style, cell_width, line_width, print_lines
from pinfold.render.text_map import map_lines
from tests.scenes.contrast import AA, contrast
from tests.scenes.pictures import machine

MANY = 1024


@given(st.integers(0, MANY - 1), st.integers(0, MANY - 1), st.booleans())
def test_two_owners_never_have_the_same_mark(one: int, two: int, ascii_only: bool) -> None:
    marks = {owner_symbol(index, ascii_only=ascii_only) for index in (one, two)}
    assert len(marks) == len({one, two})


@pytest.mark.parametrize("ascii_only", [False, True])
def test_marks_of_a_thousand_owners_can_be_printed(ascii_only: bool) -> None:
    marks = [owner_symbol(index, ascii_only=ascii_only) for index in range(MANY)]
    states = {state_symbol(state, ascii_only=ascii_only) for state in CellState}
    assert len(set(marks)) == MANY
    assert not states & set(marks)
    assert max(map(cell_width, marks)) == 2
    assert not ascii_only or all(mark.isascii() for mark in marks)


def test_owners_of_one_colour_have_other_stripes() -> None:
    looks = {(owner_paint(index), owner_stripes(index)) for index in range(MANY)}
    assert len(looks) == len(OWNERS) * len(STRIPES)
    first = [(owner_paint(index), owner_stripes(index)) for index in range(len(looks))]
    assert len(set(first)) == len(looks)


@pytest.mark.parametrize("paint", [*OWNERS, *STATES.values()])
def test_cells_have_the_contrast_that_wcag_asks_for(paint: Paint) -> None:
    assert contrast(paint.background, paint.text) >= AA


@pytest.mark.parametrize("paint", OWNERS)
def test_text_on_stripes_has_no_less(paint: Paint) -> None:
    assert contrast(stripe_color(paint), paint.text) >= contrast(paint.background, paint.text)


@pytest.mark.parametrize(("fill", "ink"), STATES_IN_THE_DARK.values())
def test_states_can_be_read_on_a_dark_page(fill: str, ink: str) -> None:
    assert contrast(fill, ink) >= AA


@pytest.mark.parametrize(
    ("theme", "ink", "ground"),
    [
        (theme, ink, ground)
        for theme, ink, ground in itertools.product(
            (LIGHT, DARK), ("ink", "dim", "bad", "good", "off"), ("bg", "box0", "box1", "box2")
        )
    ]
    + [(theme, ink, "badbg") for theme in (LIGHT, DARK) for ink in ("ink", "dim", "bad")]
    + [(theme, "dim", "core") for theme in (LIGHT, DARK)],
)
def test_text_can_be_read_on_both_pages(theme: dict[str, str], ink: str, ground: str) -> None:
    assert contrast(theme[ink], theme[ground]) >= AA


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("count", [69, 70, 71, 300])
def test_maps_of_many_owners_name_each_of_them(count: int, width: int) -> None:
    owners = number_owners(Owner(str(cpu), str(cpu), CPUSet([cpu])) for cpu in range(count))
    node_map = build_node_map(machine(2, 256, 1), owners, shared=CPUSet(range(count, 512)))
    lines = map_lines(node_map, Style(width))
    assert max(map(line_width, lines)) <= width
    painted = [text for line in lines for text, style in line if isinstance(style, Paint)]
    found = {text.strip().lstrip("0123456789") for text in painted}
    assert {owner_symbol(owner.index) for owner in owners} <= found
    plain = print_lines(lines, Style(width))
    assert count < 71 or " aa " in plain or "70aa" in plain


def test_a_picture_has_stripes_from_the_second_round_of_colours_on() -> None:
    def drawn(count: int) -> str:
        owners = number_owners(Owner(str(cpu), str(cpu), CPUSet([cpu])) for cpu in range(count))
        return render_plan_svg(PlanView("n", build_node_map(machine(1, 32, 1), owners)))

    assert "<path" not in drawn(len(OWNERS))
    assert drawn(len(OWNERS) + 2).count("<path") == 2
