"""The colours of plots, for light and for dark pages, as CSS variables.

The hues follow those of :data:`pinfold.render.palette.OWNERS`, moved until each has a contrast of
at least 3 with the page (WCAG 2.2, 1.4.11) and no two are alike to anybody: the smallest distance
(Oklab) among all of them, as seen with protanopia, deuteranopia and tritanopia (Machado, Oliveira
and Fernandes, 2009), was made as large as it gets near these hues.
"""

from __future__ import annotations

from typing import Final

from pinfold.render.svg_canvas import DARK, LIGHT

SERIES_LIGHT: Final = (
    "#2f58bc",
    "#d85649",
    "#2b9082",
    "#ba6ad6",
    "#764d11",
    "#654287",
    "#4b8600",
    "#6f294c",
)
SERIES_DARK: Final = (
    "#26a4ff",
    "#f0b88f",
    "#009e5e",
    "#f673af",
    "#d3d527",
    "#8574cb",
    "#90b11c",
    "#bb2f2c",
)
STEPS_LIGHT: Final = ("#6f96d4", "#2f6fc0", "#1b4f94", "#123768", "#0a1f3d")
STEPS_DARK: Final = ("#3f6fb5", "#5f93d8", "#8ab4ec", "#b5d1f7", "#e0edff")
"""Shades of one colour, from little to much."""


def variables(*, dark: bool) -> dict[str, str]:
    """Name of the variable, without its dashes -> colour."""
    theme = DARK if dark else LIGHT
    series, steps = (SERIES_DARK, STEPS_DARK) if dark else (SERIES_LIGHT, STEPS_LIGHT)
    found = {name: theme[name] for name in ("bg", "ink", "dim", "edge", "core", "box0")}
    found |= {name: theme[name] for name in ("bad", "badbg")}
    found |= {f"series-{number}": colour for number, colour in enumerate(series, start=1)}
    return found | {f"step-{number}": colour for number, colour in enumerate(steps, start=1)}


def declarations(*, dark: bool) -> str:
    """The variables as declarations of a style sheet."""
    return "".join(f"--{name}:{value};" for name, value in variables(dark=dark).items())


def series(index: int) -> str:
    """The colour of the series with this index."""
    return f"var(--series-{index % len(SERIES_LIGHT) + 1})"


def step(index: int) -> str:
    """The shade of the step with this index; all from the last on have the last one."""
    return f"var(--step-{min(index, len(STEPS_LIGHT) - 1) + 1})"
