"""The life of a node as text and as a picture: nothing is too wide, and nothing is broken."""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

import pytest

from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.render.machine_map import machine_map
from pinfold.render.node_map import Owner
from pinfold.render.simulation.life import LifeView, Moment, clock, shares
from pinfold.render.simulation.life_svg import render_life_svg
from pinfold.render.simulation.life_text import render_life
from pinfold.render.terminal import Style, cell_width


def moment(at: float, name: str = "pod-1", title: str = "the fullest") -> Moment:
    """A node of which one pod has two CPUs."""
    owners = (Owner("1", name, CPUSet([2, 3])),)
    node_map = machine_map(
        parse_short_form("2s4c2t"),
        owners,
        shared=CPUSet(range(4, 16)),
        reserved=CPUSet([0, 1]),
    )
    return Moment(at, title, "in 00:01:00: 1 pod came", (f"{name} comes and gets 2-3",), node_map)


def life(*moments: Moment, refusals: tuple[float, ...] = (), until: float = 100.0) -> LifeView:
    """A node of which half of the CPUs are owned from the middle of the run on."""
    return LifeView(
        name="node-3",
        title="node-3 under static, seed 1",
        subtitle="2s4c2t · CPU manager static",
        until=until,
        cpus=14,
        measured="owned",
        used=((0.0, 0), (50.0, 7)),
        refusals=refusals,
        moments=moments,
    )


LONG: Final = "pod-" + "9" * 90
HOSTILE: Final = "<script>\x1b[31m&\"'\u202e🦉"


@pytest.mark.parametrize("width", [20, 33, 80, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("name", ["pod-1", LONG, HOSTILE])
def test_no_line_is_wider_than_the_terminal(width: int, name: str, *, ascii_only: bool) -> None:
    many = [moment(at, name) for at in (0.0, 1.0, 1.5, 2.0, 50.0, 99.9, 100.0)]
    text = render_life(
        life(*many, refusals=(0.0, 60.0, 100.0)), Style(width, ascii_only=ascii_only)
    )
    assert max(map(cell_width, text.splitlines())) <= width
    assert "\x1b" not in text
    if ascii_only and name.isascii():
        assert text.isascii()


def test_the_strip_tells_how_full_it_was_and_when_it_refused() -> None:
    text = render_life(life(moment(50.0), moment(75.0), refusals=(76.0,)), Style(41))
    bars, refused, numbers = text.splitlines()[4:7]
    assert bars == " " * 20 + "▅" * 20
    assert refused == " " * 30 + "✗"
    assert numbers == " " * 20 + "1" + " " * 9 + "2"
    assert "✗ a pod was refused" in text


def test_a_strip_without_refusals_says_nothing_of_them() -> None:
    assert "refused" not in render_life(life(moment(50.0)), Style(80))


def test_numbers_of_moments_that_are_close_stand_beside_each_other() -> None:
    text = render_life(life(moment(50.0), moment(50.1), moment(50.2)), Style(41))
    assert " " * 20 + "1 2 3" in text.splitlines()


@pytest.mark.parametrize(
    ("view", "columns", "wanted"),
    [
        (life(), 4, [0.0, 0.0, 0.5, 0.5]),
        (life(), 1, [0.25]),
        (life(), 3, [0.0, 0.25, 0.5]),
        (life(until=0.0), 2, [0.0, 0.0]),
    ],
)
def test_means_over_each_part_of_the_time(
    view: LifeView, columns: int, wanted: list[float]
) -> None:
    assert shares(view, columns) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "00:00:00"), (3725.9, "01:02:05"), (86_400.0, "1 d 00:00:00")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert clock(seconds) == words


@pytest.mark.parametrize("name", ["pod-1", LONG, HOSTILE])
@pytest.mark.parametrize("until", [0.0, 100.0])
def test_the_picture_is_whole_and_says_what_it_shows(name: str, until: float) -> None:
    view = life(moment(0.0, name), moment(until, name, "the end"), refusals=(0.0,), until=until)
    root = ET.fromstring(render_life_svg(view))  # noqa: S314 - our own
    texts = ["".join(one.itertext()) for one in root.iter()]
    assert "node-3 under static, seed 1" in texts
    assert any("the end" in text for text in texts)
    described = root.find("{http://www.w3.org/2000/svg}desc")
    assert described is not None
    assert "the fullest" in (described.text or "")
    assert "script" not in {one.tag.rpartition("}")[2] for one in root.iter()}
    high = float(root.attrib["height"])
    for one in root.iter():
        assert 0 <= float(one.get("y", 0)) <= high
        assert float(one.get("x", 0)) <= float(root.attrib["width"])
