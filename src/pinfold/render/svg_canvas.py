"""Writing SVG: escaping, estimated text widths, and the colours of light and dark pages.

Colours are presentation attributes for the light page, so that programs without CSS (slides,
converters) draw them right; a style sheet recolours the classes where the reader prefers dark.
Every text goes through :func:`escape`, so the result is well-formed XML whatever a name holds.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.boxes import Cell, CellState
from pinfold.render.node_map import NodeMap, Owner
from pinfold.render.palette import STATES, owner_paint, owner_stripes, stripe_color
from pinfold.render.terminal import clean, wrap

SANS: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

LIGHT: Final = {
    "bg": "#ffffff",
    "ink": "#1c2430",
    "dim": "#5c6773",
    "box0": "#f4f6f9",
    "box1": "#ffffff",
    "box2": "#f4f6f9",
    "edge": "#c5cdd6",
    "core": "#e4e9ef",
    "bad": "#b42318",
    "badbg": "#fdecea",
    "good": "#1a7f4b",
    "off": "#66707b",
}
DARK: Final = {
    "bg": "#0f141a",
    "ink": "#e8edf2",
    "dim": "#a3aeb9",
    "box0": "#171e26",
    "box1": "#0f141a",
    "box2": "#171e26",
    "edge": "#36404b",
    "core": "#28313b",
    "bad": "#ff8a7a",
    "badbg": "#3a1b18",
    "good": "#5fd39a",
    "off": "#8f9aa5",
}
_LOWER: Final = 0.6
_THIN: Final = " .,:;ijl|!'·"
_STROKES: Final = ("edge", "off")
_SWATCH: Final = 16
"""Cells up to this size show a letter or two, and no CPU."""

STATES_IN_THE_DARK: Final = {
    CellState.SHARED: ("#3b4651", "#d4dce4"),
    CellState.RESERVED: ("#8a94a0", "#0f141a"),
    CellState.ONLINE: ("#2c4159", "#d5e4f5"),
}


def escape(text: str) -> str:
    """``text`` as XML character data or attribute value (in double quotes).

    Characters that XML 1.0 cannot hold, and those that turn the direction of text, become the
    replacement character.
    """
    text = clean(text)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(char, entity)
    return text


def text_width(text: str, size: float, *, mono: bool = False, bold: bool = False) -> float:
    """About the width of ``text`` in pixels: that of wide fonts, so rather too much."""
    ems = sum(map(_mono_ems if mono else _ems, text))
    return size * ems * (1.1 if bold and not mono else 1.0)


@lru_cache(1 << 12)
def _ems(char: str) -> float:
    return 0.34 if char in _THIN else _wide(char, _LOWER + 0.1 * char.isupper())


@lru_cache(1 << 12)
def _mono_ems(char: str) -> float:
    return _wide(char, 0.61)


def _wide(char: str, narrow: float) -> float:
    return 1.0 if unicodedata.east_asian_width(char) in ("W", "F") else narrow


def wrap_text(text: str, size: float, width: float, *, mono: bool = False) -> list[str]:
    """Break ``text`` to about ``width`` pixels, at spaces, commas, slashes or dashes.

    In monospace are lists of CPUs, whose ranges are not broken.
    """
    if text_width(text, size, mono=mono) <= width:
        return [text]
    columns = max(int(width / (size * (0.61 if mono else _LOWER))), 4)
    return wrap(text, columns, after="," if mono else ",/-.")


class Look(Struct, frozen=True):
    """How a cell is drawn: its class, fill and text colour, and its stripes of another shade.

    ``stripes`` is one of :data:`~pinfold.render.palette.STRIPES`.
    """

    kind: str
    fill: str
    ink: str
    stripes: str = ""
    shade: str = ""


class Canvas:
    """Elements of one picture, in drawing order; coordinates are pixels."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.strokes: tuple[str, ...] = _STROKES

    def rect(
        self,
        box: tuple[float, float, float, float],
        fill: str,
        *,
        radius: float = 0,
        stroke: str = "",
        dashed: bool = False,
    ) -> None:
        """A rectangle ``(x, y, width, height)`` in colours of the theme (``none`` for no fill)."""
        x, y, width, height = box
        classes = [f"f-{fill}"] if fill in LIGHT else []
        line = ""
        if stroke:
            classes.append(f"s-{stroke}")
            line = f' stroke="{LIGHT[stroke]}"' + (' stroke-dasharray="3 2"' if dashed else "")
        self.parts.append(
            f'<rect class="{" ".join(classes)}" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}" rx="{radius:g}" fill="{LIGHT.get(fill, fill)}"{line}/>'
        )

    def text(  # noqa: PLR0913 - the attributes of a line of text
        self,
        at: tuple[float, float],
        text: str,
        size: float,
        *,
        color: str = "ink",
        bold: bool = False,
        mono: bool = False,
        anchor: str = "",
    ) -> None:
        """A line of text with its baseline at ``(x, y)``."""
        extra = ' font-weight="600"' if bold else ""
        extra += f' font-family="{MONO}"' if mono else ""
        extra += f' text-anchor="{anchor}"' if anchor else ""
        self.parts.append(
            f'<text class="f-{color}" x="{at[0]:g}" y="{at[1]:g}" font-size="{size:g}" '
            f'fill="{LIGHT[color]}"{extra}>{escape(text)}</text>'
        )

    def cell(self, at: tuple[float, float], size: float, look: Look, texts: Texts) -> None:
        """One thread as a rounded square."""
        kind, fill, ink = look.kind, look.fill, look.ink
        x, y = at
        tooltip, top, bottom = texts
        line = f' stroke="{LIGHT["off"]}" stroke-dasharray="3 2"' if kind == "c-off" else ""
        inset = 0.5 if line else 0.0
        ids = size * (0.40 if len(top) < 3 else 0.36 if len(top) == 3 else 0.3)
        if size <= _SWATCH:
            ids = size * (0.64 if len(top) < 2 else 0.56)  # one letter, or two
        base = y + size * (0.47 if bottom else 0.64 if size > _SWATCH else 0.72)
        inner = size - 2 * inset
        shape = f'x="{x + inset:g}" y="{y + inset:g}" width="{inner:g}" height="{inner:g}"'
        parts = [f'<g class="{kind}"><title>{escape(tooltip)}</title>']
        parts.append(f'<rect {shape} rx="{size * 0.18:g}" fill="{fill}"{line}/>')
        if look.stripes:
            parts.append(
                f'<path d="{_stripes(x, y, size, look.stripes)}" stroke="{look.shade}" '
                f'stroke-width="{size * 0.09:.3g}"/>'
            )
        # Stripes end before what is written on them.
        plate = f' stroke="{fill}" stroke-width="{size * 0.16:.3g}" stroke-linejoin="round"'
        plate = f'{plate} paint-order="stroke"' if look.stripes else ""
        for text, height, font, weight in (
            (top, base, ids, ' font-weight="600"'),
            (bottom, y + size * 0.85, size * 0.32, ""),
        ):
            if text:
                parts.append(
                    f'<text x="{x + size / 2:g}" y="{height:g}" font-size="{font:.3g}"{weight} '
                    f'text-anchor="middle" fill="{ink}"{plate}>{escape(text)}</text>'
                )
        self.parts.append("".join(parts) + "</g>")

    def outline(self, at: tuple[float, float], size: float) -> None:
        """A frame in the colour of text around a cell."""
        x, y = at
        self.strokes = (*_STROKES, "ink")
        self.parts.append(
            f'<rect class="s-ink" x="{x + 1:g}" y="{y + 1:g}" width="{size - 2:g}" '
            f'height="{size - 2:g}" rx="{size * 0.15:g}" fill="none" stroke="{LIGHT["ink"]}" '
            'stroke-width="2.5"/>'
        )

    def segment(self, box: tuple[float, float, float, float], look: Look, tooltip: str) -> None:
        """A piece of a bar in the colours of a cell."""
        x, y, width, height = box
        shown = LIGHT["core"] if look.fill == "none" else look.fill
        self.parts.append(
            f'<g class="{look.kind}"><title>{escape(tooltip)}</title><rect x="{x:g}" y="{y:g}" '
            f'width="{width:.4g}" height="{height:g}" rx="2" fill="{shown}"/></g>'
        )

    def plain(self, at: tuple[float, float], text: str, ink: str) -> None:
        """Centred small text in a colour that is the same on every page."""
        self.parts.append(
            f'<text x="{at[0]:g}" y="{at[1]:g}" font-size="11" text-anchor="middle" '
            f'fill="{ink}">{escape(text)}</text>'
        )

    def document(self, width: float, height: float, title: str, description: str) -> str:
        """The whole picture as text, ending in a newline."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" role="img" '
            f'aria-labelledby="pinfold-title pinfold-desc" font-family="{SANS}">\n'
            f'<title id="pinfold-title">{escape(title)}</title>\n'
            f'<desc id="pinfold-desc">{escape(description)}</desc>\n'
            f"<style>{_style(self.strokes)}</style>\n"
            f'<rect class="f-bg" width="{width:g}" height="{height:g}" fill="{LIGHT["bg"]}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


class Ruler(Canvas):
    """A canvas on which nothing is drawn: how much room a drawing takes is asked before."""

    def rect(self, *_: object, **__: object) -> None:
        """Nothing."""

    def text(self, *_: object, **__: object) -> None:
        """Nothing."""

    def cell(self, *_: object) -> None:
        """Nothing."""


Texts = tuple[str, str, str]
"""Tooltip, text in the middle (the CPU id), text below it (the symbol or nothing)."""


def cell_look(node_map: NodeMap, cell: Cell) -> Look:
    """How a cell is drawn."""
    if cell.muted:
        return Look("c-mute", LIGHT["core"], LIGHT["dim"])
    if cell.state is CellState.OFFLINE:
        return Look("c-off", "none", LIGHT["off"])
    if cell.owner is not None:
        return owner_look(node_map.owners[cell.owner])
    paint = STATES[cell.state]
    return Look(f"c-{cell.state.name.lower()}", f"#{paint.background}", f"#{paint.text}")


def state_colors(state: CellState) -> tuple[tuple[str, str], tuple[str, str]]:
    """Background and text of a state that no owner has, on light pages and on dark ones."""
    if state is CellState.OFFLINE:
        return (LIGHT["bg"], LIGHT["off"]), (DARK["bg"], DARK["off"])
    paint = STATES[state]
    light = f"#{paint.background}", f"#{paint.text}"
    return light, STATES_IN_THE_DARK.get(state, light)


def owner_look(owner: Owner) -> Look:
    """How an owner's cells are drawn."""
    paint = owner_paint(owner.painted)
    stripes = owner_stripes(owner.painted)
    shade = f"#{stripe_color(paint)}" if stripes else ""
    return Look("c-own", f"#{paint.background}", f"#{paint.text}", stripes, shade)


def _stripes(x: float, y: float, size: float, stripes: str) -> str:
    """The path of three stripes across a square, within its round corners."""
    near, far = size * 0.05, size * 0.95
    lines: list[tuple[float, float, float, float]] = []
    for at in (0.25, 0.5, 0.75):
        place = size * at
        if stripes == "upright":
            lines.append((place, near, place, far))
        if stripes == "level":
            lines.append((near, place, far, place))
        # A slanted one meets two sides: x + y is the same all along.
        low, high = max(near, 2 * place - far), min(far, 2 * place - near)
        if stripes in {"rising", "both"}:
            lines.append((low, high, high, low))
        if stripes in {"falling", "both"}:
            lines.append((size - low, high, size - high, low))
    return "".join(
        f"M{x + one:.4g} {y + two:.4g}L{x + three:.4g} {y + four:.4g}"
        for one, two, three, four in lines
    )


def describe_cpus(cpus: CPUSet) -> str:
    """``4 CPUs (0-3)``, for descriptions."""
    return f"{len(cpus)} CPU{'s' * (len(cpus) != 1)} ({cpus})" if cpus else "no CPUs"


def _style(strokes: Iterable[str]) -> str:
    rules = [f".f-{name}{{fill:{value}}}" for name, value in DARK.items()]
    rules += [f".s-{name}{{stroke:{DARK[name]}}}" for name in strokes]
    for state, (fill, ink) in STATES_IN_THE_DARK.items():
        name = state.name.lower()
        rules.append(f".c-{name} rect{{fill:{fill}}}.c-{name} text{{fill:{ink}}}")
    rules.append(f".c-mute rect{{fill:{DARK['core']}}}.c-mute text{{fill:{DARK['dim']}}}")
    return "@media (prefers-color-scheme:dark){" + "".join(rules) + "}"
