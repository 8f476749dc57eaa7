"""Colours and symbols of owners and states, the same in the terminal and in SVG.

The first eight colours are those of Okabe and Ito (distinct with every common kind of colour
blindness), the rest fill the gaps.  Cells carry both background and text colour, so that they
read the same on dark and on light terminals.  There are always more owners than colours
somewhere: therefore every owner has a symbol of its own as well, a letter or two, and colour is
never the only mark.  In pictures each further round of the colours has other stripes.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from pinfold.render.boxes import Cell, CellState
from pinfold.render.node_map import NodeMap


class Paint(Struct, frozen=True):
    """Background and text as ``RRGGBB``, and the nearest of the 16 basic ANSI backgrounds."""

    background: str
    text: str
    basic: int


OWNERS: Final = (
    Paint("56b4e9", "000000", 46),
    Paint("e69f00", "000000", 43),
    Paint("009e73", "000000", 42),
    Paint("cc79a7", "000000", 45),
    Paint("0072b2", "ffffff", 44),
    Paint("f0e442", "000000", 103),
    Paint("d55e00", "000000", 41),
    Paint("88ccc0", "000000", 106),
    Paint("6a4ca0", "ffffff", 105),
    Paint("a6b53f", "000000", 102),
    Paint("8f1d4b", "ffffff", 101),
    Paint("c8a2e8", "000000", 104),
)
"""Cycled; stripes and symbol keep owners of the same colour apart."""

STRIPES: Final = ("", "rising", "falling", "upright", "level", "both")
"""How the cells of an owner are striped in pictures: one for each round of :data:`OWNERS`."""

STATES: Final = {
    CellState.LENT: Paint("ffffff", "3a4450", 47),
    CellState.IDLE: Paint("f4f1ea", "5e543f", 107),
    CellState.SHARED: Paint("d3d9e0", "3a4450", 47),
    CellState.RESERVED: Paint("5b6470", "ffffff", 100),
    CellState.ONLINE: Paint("c3d3e6", "1f3a5a", 47),
    CellState.ISOLATED: Paint("e8d6a0", "4a3a00", 43),
    CellState.UNSEEN: Paint("e9c1bb", "5a1a10", 45),
}
"""``OFFLINE`` has no block: it is an outline."""

STATE_SYMBOLS: Final = {
    CellState.LENT: "~",
    CellState.IDLE: "-",
    CellState.SHARED: "·",
    CellState.RESERVED: "R",
    CellState.ONLINE: " ",
    CellState.ISOLATED: "i",
    CellState.UNSEEN: "?",
    CellState.OFFLINE: "x",
}

# Without l, o, x, I, O, R, X: they read as digits or mean something else here.
_LATIN: Final = "abcdefghjkmnpqrstuvwyzABCDEFGHJKLMNPQSTUVWYZ"
_GREEK: Final = "αβγδεζηθλμξπσφψωΓΔΘΛΞΠΣΦΨΩ"
_ASCII_MORE: Final = "%&$@+=!^"

_SHADE: Final = 0.4
"""How much of the way to white or black the colour of stripes is."""


def owner_symbol(index: int, *, ascii_only: bool = False) -> str:
    """The mark of the owner with this index: one letter, and two when these run out.

    No two of the first 1,900 owners have the same; then they cycle.

    >>> [owner_symbol(index) for index in (0, 43, 70, 71, 114)]
    ['a', 'Z', 'aa', 'ab', 'ba']
    """
    symbols = _LATIN + (_ASCII_MORE if ascii_only else _GREEK)
    if index < len(symbols):
        return symbols[index]
    first, second = divmod(index - len(symbols), len(_LATIN))
    return _LATIN[first % len(_LATIN)] + _LATIN[second]


def owner_paint(index: int) -> Paint:
    """The colours of the owner with this index."""
    return OWNERS[index % len(OWNERS)]


def owner_stripes(index: int) -> str:
    """How the cells of the owner with this index are striped; one of :data:`STRIPES`."""
    return STRIPES[index // len(OWNERS) % len(STRIPES)]


def stripe_color(paint: Paint) -> str:
    """Another shade of a background: the text on it reads even better."""
    away = 255 if paint.text == "000000" else 0
    parts = (int(paint.background[at : at + 2], 16) for at in (0, 2, 4))
    return "".join(f"{round(part + (away - part) * _SHADE):02x}" for part in parts)


def state_symbol(state: CellState, *, ascii_only: bool = False) -> str:
    """One character for a CPU that nobody owns."""
    symbol = STATE_SYMBOLS.get(state, " ")
    return "." if ascii_only and symbol == "·" else symbol


def cell_symbol(node_map: NodeMap, cell: Cell, *, ascii_only: bool = False) -> str:
    """The character, or two, that say whose a cell is, for terminals without colour.

    Muted cells have none: without colour it is the letters that show what is not muted.
    """
    if cell.muted:
        return " "
    if cell.owner is not None and cell.state is not CellState.LENT:
        return owner_symbol(node_map.owners[cell.owner].index, ascii_only=ascii_only)
    return state_symbol(cell.state, ascii_only=ascii_only)


def cell_paint(node_map: NodeMap, cell: Cell) -> Paint | Literal["dim"]:
    """The colours of a cell; offline and muted ones have none."""
    if cell.muted or cell.state is CellState.OFFLINE:
        return "dim"
    if cell.owner is not None:
        return owner_paint(node_map.owners[cell.owner].painted)
    return STATES[cell.state]
