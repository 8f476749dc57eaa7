"""Coloured lines for terminals and pipes: what may be printed, how wide it is, and its codes.

Plain SGR codes (ECMA-48, 8.3.117) do for rows of coloured cells; why no library draws them:
docs/adr/0007-no-terminal-library.md.

A line is a list of spans ``(text, style)``; styles are the names of ``_BASE`` or a
:class:`pinfold.render.palette.Paint`.  Widths are terminal columns, not characters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from msgspec import Struct

from pinfold.render.palette import Paint

Depth = Literal["none", "16", "256", "truecolor"]
Span = tuple[str, "str | Paint"]
Line = list[Span]

MIN_WIDTH: Final = 20
"""Narrower terminals are treated as this wide."""

_BASE: Final = {
    "": "",
    "bold": "1",
    "dim": "2",
    "frame": "2",
    "good": "32",
    "bad": "1;31",
    "warn": "33",
    "key": "36",
}

_UNSAFE: Final = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
# They make narrow characters wide on some terminals and not on others.
_SELECTORS: Final = ("\ufe0e", "\ufe0f")

_ASCII: Final = str.maketrans(
    {
        "·": "-",
        "…": "~",
        "→": ">",
        "×": "x",
        "✓": "+",
        "✗": "x",
        "★": "*",
        "─": "-",
        "│": "|",
        "╭": "+",
        "╮": "+",
        "╰": "+",
        "╯": "+",
        "█": "#",
        "•": "*",
    }
)


class Style(Struct, frozen=True):
    """How to print: ``width`` in columns, the depth of colour, and whether only ASCII works."""

    width: int = 80
    depth: Depth = "none"
    ascii_only: bool = False

    @classmethod
    def detect(
        cls,
        environ: Mapping[str, str],
        *,
        is_tty: bool,
        encoding: str | None,
        width: int = 80,
        color: bool | None = None,
    ) -> Style:
        """The style for a stream.

        Order of precedence: ``color`` (an option of the command line), ``NO_COLOR`` (any text,
        https://no-color.org), ``FORCE_COLOR`` and ``CLICOLOR_FORCE`` (any text but ``0``),
        ``TERM=dumb``, ``CLICOLOR=0``, and whether the stream is a terminal.

        Args:
            environ: the process environment.
            is_tty: whether the stream is a terminal.
            encoding: the stream's encoding; anything that is not a form of UTF-8 gets ASCII.
            width: the terminal's columns (80 for pipes, unless ``COLUMNS`` says otherwise).
            color: ``--color`` or ``--no-color``.
        """
        normal = (encoding or "").lower().replace("-", "").replace("_", "")
        ascii_only = not normal.startswith(("utf8", "utf16", "utf32"))
        force = any(
            environ.get(name, "") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")
        )
        if color is not None:
            wanted = color
        elif environ.get("NO_COLOR"):
            wanted = False
        elif force:
            wanted = True
        else:
            dumb = environ.get("TERM", "") in ("dumb", "unknown")
            wanted = is_tty and not dumb and environ.get("CLICOLOR") != "0"
        return cls(max(width, MIN_WIDTH), _depth(environ) if wanted else "none", ascii_only)


def _depth(environ: Mapping[str, str]) -> Depth:
    levels: dict[str, Depth] = {"1": "16", "2": "256", "3": "truecolor"}
    forced = levels.get(environ.get("FORCE_COLOR", ""))
    if forced is not None:
        return forced
    if environ.get("COLORTERM", "") in ("truecolor", "24bit"):
        return "truecolor"
    term = environ.get("TERM", "")
    if term in ("linux", "vt100", "vt220", "ansi", "cygwin", "xterm", "screen", "rxvt"):
        return "16"
    return "256"


def clean(text: str) -> str:
    """``text`` without anything that moves the cursor, breaks lines or turns direction.

    Names come from files; an escape sequence in one must not reach the terminal.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(char) in _UNSAFE or char in _SELECTORS
        else char
        for char in text
    )


def cell_width(text: str) -> int:
    """Columns that ``text`` takes: 2 for wide and fullwidth characters, 0 for combining ones."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def clip(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns, with an ellipsis where something was cut."""
    if cell_width(text) <= width:
        return text
    kept, used = "", 0
    for char in text:
        used += _char_width(char)
        if used > width - 1:
            break
        kept += char
    return f"{kept}…" if width > 0 else ""


def pad(text: str, width: int) -> str:
    """``text`` in exactly ``width`` columns, at the left."""
    text = clip(text, width)
    return text + " " * (width - cell_width(text))


def wrap(text: str, width: int, *, after: str = "") -> list[str]:
    """Break ``text`` into lines of at most ``width`` columns, at spaces or after ``after``.

    Words that are wider than a line are broken anywhere; nothing is dropped but spaces.
    """
    width = max(width, 2)
    lines: list[str] = []
    line = ""
    for word in _words(text, after):
        if cell_width(line) + cell_width(word.rstrip(" ")) > width:
            if line.strip(" "):
                lines.append(line.rstrip(" "))
            line = ""
        rest = word
        while cell_width(rest.rstrip(" ")) > width:
            cut = _prefix(rest, width)
            lines.append(cut)
            rest = rest[len(cut) :]
        line += rest
    if line.strip(" ") or not lines:
        lines.append(line.rstrip(" "))
    return lines


def _words(text: str, after: str) -> list[str]:
    words, start = [], 0
    for at, char in enumerate(text, 1):
        if char == " " or (after and char in after):
            words.append(text[start:at])
            start = at
    return [*words, text[start:]]


def _prefix(text: str, width: int) -> str:
    used = 0
    for at, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[: max(at, 1)]
    return text


def line_width(line: Line) -> int:
    """Columns of a line."""
    return sum(cell_width(text) for text, _ in line)


def pad_line(line: Line, width: int) -> Line:
    """The line with spaces up to ``width``."""
    missing = width - line_width(line)
    return [*line, (" " * missing, "")] if missing > 0 else line


def clip_line(line: Line, width: int) -> Line:
    """The line in at most ``width`` columns, with an ellipsis where something was cut."""
    if line_width(line) <= width:
        return line
    kept: Line = []
    room = width
    for text, style in line:
        if cell_width(text) >= room:
            kept.append((clip(text + " ", room) if room else "", style))
            break
        kept.append((text, style))
        room -= cell_width(text)
    return kept


def print_lines(lines: Iterable[Line], style: Style) -> str:
    """The lines as text, each ending in a newline, none wider than ``style.width``."""
    return "".join(f"{_print_line(clip_line(line, style.width), style)}\n" for line in lines)


def _print_line(line: Line, style: Style) -> str:
    parts: list[str] = []
    texts = [(_encodable(text) if style.ascii_only else text, name) for text, name in line if text]
    while texts and isinstance(texts[-1][1], str) and not texts[-1][0].strip(" "):
        texts.pop()  # no spaces at line ends
    if texts and isinstance(texts[-1][1], str):
        texts[-1] = (texts[-1][0].rstrip(" "), texts[-1][1])
    if style.depth == "none":
        return "".join(text for text, _ in texts).rstrip(" ")
    for text, name in texts:
        code = _sgr(name, style.depth)
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(parts)


def _encodable(text: str) -> str:
    if text.isascii():
        return text
    # One question mark per column keeps the columns where they are.
    return "".join(
        char if char.isascii() else "?" * _char_width(char) for char in text.translate(_ASCII)
    )


def _sgr(name: str | Paint, depth: Depth) -> str:
    if isinstance(name, str):
        return _BASE[name]
    if depth == "16":
        dark = name.basic in (41, 44, 100, 101, 105)
        return f"{name.basic};{97 if dark else 30}"
    kind = _rgb if depth == "truecolor" else _indexed
    return f"48;{kind(name.background)};38;{kind(name.text)}"


def _rgb(color: str) -> str:
    return "2;" + ";".join(str(int(color[i : i + 2], 16)) for i in (0, 2, 4))


def _indexed(color: str) -> str:
    """The nearest colour of the 6x6x6 cube or the grey ramp of 256-colour terminals."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (0, 2, 4))
    steps = (0, 95, 135, 175, 215, 255)
    cube = [_nearest(steps, value) for value in (red, green, blue)]
    grey = max(0, min(23, round(((red + green + blue) / 3 - 8) / 10)))
    level = 8 + 10 * grey
    off_cube = sum((steps[s] - v) ** 2 for s, v in zip(cube, (red, green, blue), strict=True))
    off_grey = sum((level - v) ** 2 for v in (red, green, blue))
    if off_grey < off_cube:
        return f"5;{232 + grey}"
    return f"5;{16 + 36 * cube[0] + 6 * cube[1] + cube[2]}"


def _nearest(steps: tuple[int, ...], value: int) -> int:
    return min(range(len(steps)), key=lambda at: abs(steps[at] - value))
