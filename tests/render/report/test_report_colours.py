"""The colours of plots can be seen and told apart by everybody, in both schemes."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest

from pinfold.render.report.colours import variables

# Severity 1.0 of Machado, Oliveira and Fernandes (2009), on linear RGB.
SIGHTS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
Triple = tuple[float, float, float]


def linear(colour: str) -> Triple:
    def one(channel: str) -> float:
        value = int(channel, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    return one(colour[1:3]), one(colour[3:5]), one(colour[5:7])


def contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        red, green, blue = linear(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def oklab(colour: str, sight: str) -> Triple:
    seen = [
        min(max(sum(weight * part for weight, part in zip(row, linear(colour), strict=True)), 0), 1)
        for row in SIGHTS[sight]
    ]
    red, green, blue = seen
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def series(colours: dict[str, str]) -> list[str]:
    return [colour for name, colour in colours.items() if name.startswith("series-")]


@pytest.mark.parametrize("dark", [False, True])
def test_every_mark_has_the_contrast_of_graphics(*, dark: bool) -> None:
    """WCAG 2.2, 1.4.11: 3 with what is beside it."""
    colours = variables(dark=dark)
    marks = {n: c for n, c in colours.items() if n.startswith(("series-", "step-"))}
    assert len(marks) == 13
    assert {n: c for n, c in marks.items() if contrast(c, colours["bg"]) < 3} == {}


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_has_the_contrast_of_texts(*, dark: bool) -> None:
    """WCAG 2.2, 1.4.3: 4.5."""
    colours = variables(dark=dark)
    for ink, back in (("ink", "bg"), ("dim", "bg"), ("ink", "box0"), ("ink", "badbg")):
        assert contrast(colours[ink], colours[back]) >= 4.5, (ink, back)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("dark", [False, True])
def test_no_two_series_are_alike_to_anybody(*, dark: bool, sight: str) -> None:
    """0.02 in Oklab is what people just notice side by side; these are three times as far."""
    found = {
        (first, second): math.dist(oklab(first, sight), oklab(second, sight))
        for first, second in combinations(series(variables(dark=dark)), 2)
    }
    assert min(found.values()) > 0.06, min(found, key=found.__getitem__)


def test_steps_go_from_one_end_to_the_other() -> None:
    """Darker and darker on white, lighter and lighter on black: more stands out more."""
    for dark in (False, True):
        colours = variables(dark=dark)
        steps = [contrast(colours[f"step-{n}"], colours["bg"]) for n in range(1, 6)]
        assert steps == sorted(steps)
        assert all(later / earlier > 1.25 for earlier, later in pairwise(steps))
