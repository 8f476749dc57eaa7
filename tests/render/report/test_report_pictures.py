"""Plots as SVG: well-formed whatever a name holds, with their words, in both schemes."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

import pytest
from defusedxml.ElementTree import fromstring
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.render.report.drawing import NARROW, WIDE, inline, picture
from pinfold.render.report.specification import DASHES, SHAPES, labels, specification
from pinfold.render.report.texts import elided, isolated, safe
from pinfold.render.report.view import (
    Bar,
    BarChart,
    Chart,
    Column,
    Figure,
    Line,
    LineChart,
    Table,
)
from pinfold.render.svg_canvas import text_width
from pinfold.views.report.view import report_view
from tests.scenes.simulation_results import HOSTILE_NAMES, simulation

SVG = "{http://www.w3.org/2000/svg}"


def figure(chart: Chart, title: str = "A plot", says: str = "What is seen.") -> Figure:
    return Figure("a-plot", title, says, chart, Table("", (Column("x"),), ()))


def lines(*names: str) -> LineChart:
    points = tuple((float(x), float(x * x)) for x in range(30))
    all_lines = tuple(Line(place, points) for place in range(len(names)))
    return LineChart("days", "pods", names, all_lines)


def texts(drawn: Element) -> list[str]:
    return [element.text or "" for element in drawn.iter(f"{SVG}text")]


def parsed(text: str) -> Element:
    found: Element = fromstring(text)
    return found


FIGURES = {found.name: found for found in report_view(simulation(seeds=2)).figures()}


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_says_what_it_is_in_both_schemes(name: str) -> None:
    text = picture(FIGURES[name])
    drawn = parsed(text)
    assert drawn.get("role") == "img"
    words = {element.get("id"): element.text for element in drawn if element.get("id")}
    assert [words[word] for word in (drawn.get("aria-labelledby") or "").split()] == [
        FIGURES[name].title,
        FIGURES[name].says,
    ]
    (style,) = drawn.iter(f"{SVG}style")
    assert "--series-1:#2f58bc" in (style.text or "")
    assert "prefers-color-scheme:dark" in (style.text or "")
    assert FIGURES[name].title in texts(drawn)
    assert "href" not in text
    # Programs without CSS have a colour as well.
    for element in drawn.iter():
        for kind, variable in re.findall(
            r"(fill|stroke):var\(--([\w-]+)\)", element.get("style", "")
        ):
            assert re.fullmatch(r"#[0-9a-f]{6}", element.get(kind, "")), variable
        assert "var(" not in element.get("fill", "") + element.get("stroke", "")


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", FIGURES)
def test_a_plot_of_a_page_is_as_wide_as_asked(name: str, width: int) -> None:
    drawn = parsed(inline(FIGURES[name], width))
    assert float(drawn.get("width", "0")) == pytest.approx(width, abs=3)
    assert list(drawn.iter(f"{SVG}style")) == []


def test_names_of_two_plots_of_a_page_never_meet() -> None:
    ids = [
        found
        for one in FIGURES.values()
        for width in (WIDE, NARROW)
        for found in re.findall(r'\bid="([^"]*)"', inline(one, width))
    ]
    assert len(ids) == len(set(ids)) > 2 * len(FIGURES)


def test_the_same_data_make_the_same_bytes() -> None:
    one = FIGURES["time-running-pods"]
    assert picture(one) == picture(one)


def test_every_name_is_drawn_as_text_whatever_it_holds() -> None:
    drawn = parsed(picture(figure(lines(*HOSTILE_NAMES), HOSTILE_NAMES[0], HOSTILE_NAMES[4])))
    assert {elided(isolated(name), 490, 12) for name in HOSTILE_NAMES} <= set(texts(drawn))
    known = {"svg", "g", "path", "text", "tspan", "rect", "line", "title", "desc", "style", "defs"}
    known |= {"clipPath"}
    assert {element.tag.removeprefix(SVG) for element in drawn.iter()} <= known


def test_forty_lines_each_look_different() -> None:
    names = [f"configuration {n}" for n in range(32)]
    spec = specification(lines(*names), WIDE)
    line, marks = spec["layer"]
    looks = zip(
        line["encoding"]["color"]["scale"]["range"],
        map(tuple, line["encoding"]["strokeDash"]["scale"]["range"]),
        marks["encoding"]["shape"]["scale"]["range"],
        strict=True,
    )
    assert len(set(looks)) == 32 == len(SHAPES) * len(DASHES)
    # Also for who sees no colours.
    assert len({(key // 8 % 4, key % 8) for key in range(32)}) == 32


def test_each_bar_has_its_value_in_words_and_its_parts_in_order() -> None:
    bars = (
        Bar("none", "0 (0 %)", (0.0, 0.0)),
        Bar("static", "30 (3 %)", (0.01, 0.02), (0.025, 0.04)),
    )
    drawn = parsed(inline(figure(BarChart("share", ("first", "second"), bars, percent=True)), WIDE))
    assert {"none: 0 (0 %)", "static: 30 (3 %)", "first", "second"} <= set(texts(drawn))
    fills = [element.get("style", "") for element in drawn.iter(f"{SVG}path")]
    seen = [n for style in fills for n in re.findall(r"fill:var\(--series-(\d)\)", style)]
    assert seen.index("1") < seen.index("2")


NAMES = st.lists(st.text(max_size=100), min_size=1, max_size=30)


@given(NAMES, st.integers(100, 600))
def test_labels_are_narrow_enough_and_each_is_there_once(names: list[str], width: int) -> None:
    found = labels(names, width)
    assert len(found) == len(names)
    assert len(set(found)) == len(found)
    assert all(text_width(label, 12) <= width for label in found)


def test_a_name_from_right_to_left_turns_nothing_but_itself() -> None:
    name = "\u05e9\u05dc\u05d5\u05dd"
    assert safe(f"{isolated(name)}: 3 pods") == f"\u2068{name}\u2069: 3 pods"
    assert isolated("plain") == "plain"
    assert isolated("\u202eturned") == "\ufffdturned"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=4), st.text(max_size=60))
def test_any_text_makes_a_picture(names: list[str], title: str) -> None:
    drawn = parsed(picture(figure(lines(*names), title)))
    assert drawn.tag == f"{SVG}svg"
