"""Texts of a report: what may be in them, and how much of them is shown."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from pinfold.render.svg_canvas import text_width
from pinfold.render.terminal import clean

_FIRST: Final = "\N{FIRST STRONG ISOLATE}"
_END: Final = "\N{POP DIRECTIONAL ISOLATE}"
_ISOLATED: Final = re.compile(f"({_FIRST}|{_END})")


def isolated(name: str) -> str:
    """A name that stands in a sentence, so that it turns nothing but itself from right to left."""
    name = clean(name)
    if any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in name):
        return f"{_FIRST}{name}{_END}"
    return name


def safe(text: str) -> str:
    """``text`` without what moves a cursor or turns direction, except for what isolates a name."""
    if text.isascii():
        return clean(text)
    return "".join(
        part if part in (_FIRST, _END) else clean(part) for part in _ISOLATED.split(text)
    )


def elided(text: str, width: float, size: float) -> str:
    """``text`` without its middle, if it is wider than so many pixels: names differ at the end."""
    if text_width(text, size) <= width:
        return text
    opened, closed = (_FIRST, _END) if text.startswith(_FIRST) else ("", "")
    inner = text.strip(_FIRST + _END)
    for kept in range(len(inner) - 1, 1, -1):
        tail = kept // 2
        short = f"{opened}{inner[: kept - tail]}…{inner[-tail:]}{closed}"
        if text_width(short, size) <= width:
            return short
    return "…"
