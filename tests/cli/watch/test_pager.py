"""Where somebody is in a text: he never leaves it, whatever he presses and however it changes."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from pinfold.cli.watch.pager import Pager, last_line
from pinfold.render.terminal import Style, cell_width

KEYS = st.sampled_from(["up", "down", "page up", "page down", "top", "end", "p", "m", "x", "\x1b"])


@given(st.lists(st.tuples(KEYS, st.integers(1, 60), st.integers(1, 50)), max_size=30))
def test_the_window_is_full_and_in_the_text(steps: list[tuple[str, int, int]]) -> None:
    pager = Pager()
    for key, count, room in steps:
        lines = [str(number) for number in range(count)]
        pager.press(key, room)
        window = pager.window(lines, room)
        assert len(window) == room
        assert window[: min(room, count)] == lines[pager.top : pager.top + room]
        assert (pager.place(lines, room) == "") == (count <= room)
        assert not pager.quits


def test_keys_are_what_they_say() -> None:
    pager, lines = Pager(), [str(number) for number in range(100)]
    for key, top in [
        ("down", 1),
        ("page down", 10),
        ("up", 9),
        ("page up", 0),
        ("up", 0),
        ("end", 90),
        ("down", 90),
        ("top", 0),
    ]:
        pager.press(key, 10)
        assert pager.window(lines, 10)[0] == str(top), key
    assert pager.place(lines, 10) == "lines 1-10 of 100"
    pager.press("p", 10)
    assert pager.part == "pods"
    pager.press("m", 10)
    assert pager.part == "map"
    pager.press("m", 10)
    assert pager.part == ""
    pager.press("q", 10)
    assert pager.quits


@given(st.text(max_size=40), st.lists(st.text(max_size=30), max_size=3), st.integers(1, 100))
def test_the_last_line_is_as_wide_as_the_screen(left: str, right: list[str], width: int) -> None:
    text = last_line(left, right, Style(width=width))
    shown = re.fullmatch("\033\\[7m(.*)\033\\[0m", text, re.DOTALL)
    assert shown
    assert cell_width(shown[1]) == width


def test_the_longest_that_has_room_is_at_the_right() -> None:
    def shown(width: int) -> str:
        return last_line("left", ["much more", "more"], Style(width=width))[4:-4]

    assert [shown(width) for width in (15, 14, 10, 9, 3)] == [
        "left  much more",
        "left      more",
        "left  more",
        "left     ",
        "le…",
    ]
