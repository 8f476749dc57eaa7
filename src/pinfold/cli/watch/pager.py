"""A text in a window: which of its lines are on the screen, and what a key does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from pinfold.render.terminal import Style, cell_width, clip

PARTS: Final = {"p": "pods", "m": "map"}
"""What a key shows alone, and again with all the rest."""


class Pager(Struct):
    """Where somebody is in a text that changes under his eyes.

    Attributes:
        top: the first line that is shown.
        part: what is shown alone; empty: everything.
        quits: whether he wants to go.
    """

    top: int = 0
    part: str = ""
    quits: bool = False

    def press(self, key: str, room: int) -> None:
        """Do what a key says, where ``room`` lines are shown."""
        page = max(room - 1, 1)
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page}
        if key in steps:
            self.top = max(self.top + steps[key], 0)
        elif key == "top":
            self.top = 0
        elif key == "end":
            self.top = 1 << 30
        elif key in PARTS:
            self.part = "" if self.part == PARTS[key] else PARTS[key]
            self.top = 0
        elif key in {"q", "Q"}:
            self.quits = True

    def window(self, lines: Sequence[str], room: int) -> list[str]:
        """The lines that are shown, ``room`` of them; it goes no further than to the last."""
        self.top = min(self.top, max(len(lines) - room, 0))
        shown = list(lines[self.top : self.top + room])
        return shown + [""] * (room - len(shown))

    def place(self, lines: Sequence[str], room: int) -> str:
        """Which part of the text it is, where it does not fit."""
        if len(lines) <= room:
            return ""
        return f"lines {self.top + 1}-{min(self.top + room, len(lines))} of {len(lines)}"


def last_line(left: str, right: Sequence[str], style: Style, *, alarm: bool = False) -> str:
    """The line at the bottom, in reverse.

    Args:
        left: what is said at the left, cut where there is no room for it.
        right: what may be said at the right; the first that has room is.
        style: how wide it is.
        alarm: whether it is red.
    """
    left = clip(left, style.width)
    room = style.width - cell_width(left)
    told = next((one for one in right if cell_width(one) + 2 <= room), "")
    text = left + " " * (room - cell_width(told)) + told
    if style.ascii_only:
        text = text.encode("ascii", "replace").decode()
    code = "41;97" if alarm and style.depth != "none" else "7"
    return f"\033[{code}m{text}\033[0m"
