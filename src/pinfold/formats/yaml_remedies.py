"""What a broken YAML text has, and what helps: the parser's words tell neither to most readers.

The parser is libyaml; the keys are its messages (``scanner.c``, ``parser.c``, ``reader.c``).
"""

from __future__ import annotations

import re
from typing import Final

_BACKSLASH: Final = "a backslash is written \\\\ between double quotes"
_REMEDIES: Final = {
    "unknown escape character": _BACKSLASH,
    "invalid Unicode character escape code": _BACKSLASH,
    "did not find expected hexdecimal number": _BACKSLASH,
    "mapping values are not allowed": "indent it like its neighbours, and quote a text with ': '",
    "could not find expected ':'": "a key is followed by ': ', a text with line breaks is quoted",
    "did not find expected key": "indent it like its neighbours, and double a quote within quotes",
    "did not find expected '-' indicator": "indent it like its neighbours",
    "did not find expected ',' or": "close the bracket, and put commas between what is in it",
    "did not find expected node content": "a value is missing, or begins with a sign to be quoted",
    "found unexpected end of stream": "close the quote",
    "found undefined tag handle": "quote a text that begins with '!'",
    "did not find expected alphabetic or numeric": "quote a text that begins with '*' or '&'",
    "sequence entries are not allowed": "begin the list on a line of its own",
    "expected comment or line break": "the text begins on the line below",
    "incompatible YAML document": "drop the line that begins with %YAML",
    "depth": "is it a manifest? None is nested so deeply",
}
_UNSAYABLE: Final = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)
"""What a YAML text cannot have (YAML 1.1, 5.1), without the lone surrogates."""


def remedy_for(problem: str, text: str, line: int, column: int) -> str:
    """What helps against a problem at a place of a text, from 1."""
    if "cannot start any token" in problem:
        sign = _sign_at(text, line, column)
        if sign == "\t":
            return "a tab cannot indent: use spaces"
        return f"quote a text that begins with {sign!r}"
    found = (remedy for words, remedy in _REMEDIES.items() if words in problem)
    return next(found, "look at how it is indented and quoted")


def unsayable(text: str) -> tuple[int, int, str] | None:
    """Line and column, from 1, of the first character that no YAML has, and what it is."""
    found = _UNSAYABLE.search(text)
    if found is None:
        return None
    at = found.start()
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    code = ord(found[0])
    if code == 0:
        return line, column, "a NUL character; save the file as UTF-8 text"
    return line, column, f"a control character (U+{code:04X}); remove it"


def _sign_at(text: str, line: int, column: int) -> str:
    lines = text.splitlines()
    return lines[line - 1][column - 1 : column] if line <= len(lines) else ""
