"""Reads a template; raises TemplateError with the place of what is wrong."""

from __future__ import annotations

import math
import re
from typing import Final

from pinfold.render.jsonpath.parts import (
    Action,
    Descent,
    Every,
    Field,
    Filter,
    Literal,
    Part,
    Range,
    Slice,
    Step,
    Template,
    TemplateError,
    Union,
)

_MOST_RANGES: Final = 32
"""Ranges inside each other; nobody can read more, and each is a call when it is printed."""

_NAME: Final = re.compile(r"(?:\\.|[^\\ \t\r\n.,\[\]$@{}])*", re.DOTALL)
"""A name, up to what ends it; a backslash before that makes it a part of the name."""
_BACKSLASH: Final = re.compile(r"\\(.?)", re.DOTALL)
_NUMBER: Final = re.compile(r"[+-]?[0-9.]*")
_BOUNDS: Final = re.compile(r"(-?[0-9]*)(?::(-?[0-9]*))?(?::(-?[0-9]*))?")
_COMPARED: Final = re.compile(r"([^!<>=]+)([!<>=]+)(.+)", re.DOTALL)
_OPERATORS: Final = ("==", "!=", "<", "<=", ">", ">=")
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_ESCAPED: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
}
_LARGEST: Final = 2**63
_DIGITS: Final = 18
"""Of an index: more do not fit in 64 bits, and no list is as long."""


def read_template(text: str) -> Template:
    """Read a template.

    Raises:
        TemplateError: it is none.
    """
    # The parts of the whole, and of the ranges that are open: their steps stand beside them.
    open_parts: list[list[Part]] = [[]]
    open_steps: list[tuple[Step, ...]] = []
    at = 0
    while (brace := text.find("{", at)) >= 0:
        if brace > at:
            open_parts[-1].append(text[at:brace])
        action = _Reader(text, brace + 1, len(text))
        steps = action.steps(closed_by_brace=True)
        at = action.at
        if action.ends:
            if not open_steps:
                raise TemplateError("not in range, nothing to end", text, brace)
            _close(open_parts, open_steps)
        elif action.ranges:
            if len(open_steps) == _MOST_RANGES:
                raise TemplateError(f"more than {_MOST_RANGES} ranges in each other", text, brace)
            open_steps.append(steps)
            open_parts.append([])
        else:
            open_parts[-1].append(Action(steps))
    if at < len(text):
        open_parts[-1].append(text[at:])
    while open_steps:
        # As kubectl has it: what is left open ends with the template.
        _close(open_parts, open_steps)
    return Template(text, tuple(open_parts[0]))


def _close(parts: list[list[Part]], steps: list[tuple[Step, ...]]) -> None:
    body = tuple(parts.pop())
    parts[-1].append(Range(steps.pop(), body))


class _Reader:
    """Reads the inside of an action, or a part of it: of ``text`` from ``at`` to before ``end``."""

    def __init__(self, text: str, at: int, end: int) -> None:
        self._text = text
        self._end = end
        self.at = at
        self.ranges = False
        self.ends = False

    def steps(self, *, closed_by_brace: bool = False) -> tuple[Step, ...]:
        """The steps; of an action up to its closing brace, else up to the end."""
        found: list[Step] = []
        begin = self.at
        while self.at < self._end:
            start = self.at
            one = self._text[start]
            if one == "}" and closed_by_brace:
                self.at += 1
                return tuple(found)
            if one in "\r\n":
                break
            if one in " @$":
                self.at += 1
            elif self._is_next("[?("):
                found.append(self._filter())
            elif self._is_next(".."):
                if found and isinstance(found[-1], Descent):
                    raise self._error("invalid multiple recursive descent", start)
                self.at += 2
                found.append(Descent(start))
                if self.at < self._end and _is_word(self._text[self.at]):
                    found.append(self._field())
            elif one == "[":
                found += self._brackets()
            elif one in "\"'":
                found.append(Literal(start, self._quoted(), alone=True))
            elif one == ".":
                self.at += 1
                found.append(self._field())
            elif one in "+-" or one in "0123456789":
                found.append(Literal(start, self._number(), alone=False))
            elif _is_word(one):
                found += self._word()
            else:
                raise self._error(f"unrecognized character in action: {one!r}", start)
        if closed_by_brace or self.at < self._end:
            raise self._error("unclosed action", begin - 1)
        return tuple(found)

    def _is_next(self, text: str) -> bool:
        return self._text.startswith(text, self.at) and self.at + len(text) <= self._end

    def _field(self) -> Field | Every:
        """The name that begins here."""
        start = self.at
        name = self._name()
        return Every(start) if name == "*" else Field(start, _BACKSLASH.sub(r"\1", name))

    def _name(self) -> str:
        found = _NAME.match(self._text, self.at, self._end)
        name = found[0] if found is not None else ""
        self.at += len(name)
        if self.at < self._end and self._text[self.at] == "\\":
            # It is the last character, and escapes nothing.
            self.at += 1
        return name

    def _word(self) -> tuple[Step, ...]:
        start = self.at
        word = self._name()
        if word in ("true", "false"):
            return (Literal(start, word == "true", alone=False),)
        if word == "range":
            self.ranges = True
        elif word == "end":
            self.ends = True
        else:
            raise self._error(f"unrecognized identifier {word}", start)
        return ()

    def _number(self) -> float:
        start = self.at
        found = _NUMBER.match(self._text, start, self._end)
        word = found[0] if found is not None else ""
        self.at += len(word)
        try:
            value = float(word)
        except ValueError:
            value = math.inf
        if math.isinf(value):
            raise self._error(f"cannot parse number {word}", start)
        if "." not in word and abs(value) < _LARGEST:
            return int(word)
        return value

    def _quoted(self) -> str:
        start = self.at
        quote = self._text[start]
        at = start + 1
        while at < self._end and self._text[at] != quote:
            if self._text[at] == "\n":
                break
            at += 2 if self._text[at] == "\\" else 1
        if at >= self._end or self._text[at] != quote:
            raise self._error("unterminated quoted string", start)
        self.at = at + 1
        written = self._text[start : self.at]

        def meant(escape: re.Match[str]) -> str:
            code = next(filter(None, escape.groups()[:3]), None)
            number = int(code, 16) if code else int(escape[4], 8) if escape[4] else None
            if number is not None and number <= 0x10FFFF and not 0xD800 <= number < 0xE000:
                return chr(number)
            if escape[5] == quote:
                return quote
            if escape[5] in _ESCAPED:
                return _ESCAPED[escape[5]]
            place = start + 1 + escape.start()
            raise self._error(f"unquote string {written} error invalid syntax", place)

        return _ESCAPE.sub(meant, written[1:-1])

    def _filter(self) -> Filter:
        start = self.at
        close = self._closing_of_filter()
        self.at = close + 2
        inner = start + len("[?(")
        compared = _COMPARED.fullmatch(self._text, inner, close)
        if compared is None:
            return Filter(start, self._path(inner, close), "", ())
        if compared[2] not in _OPERATORS:
            problem = f"unrecognized filter operator {compared[2]}"
            raise self._error(problem, compared.start(2))
        left = self._path(compared.start(1), compared.end(1))
        right = self._path(compared.start(3), compared.end(3))
        return Filter(start, left, compared[2], right)

    def _closing_of_filter(self) -> int:
        at = self.at + len("[?(")
        quote = ""
        while at < self._end and self._text[at] != "\n":
            one = self._text[at]
            if quote:
                if one == "\\":
                    at += 1
                elif one == quote:
                    quote = ""
            elif one in "\"'":
                quote = one
            elif one == ")":
                if at + 1 < self._end and self._text[at + 1] == "]":
                    return at
                raise self._error("unclosed array expect ]", at + 1)
            at += 1
        raise self._error("unterminated filter", self.at)

    def _path(self, at: int, end: int) -> tuple[Step, ...]:
        """A path within this one."""
        below = _Reader(self._text, at, end)
        steps = below.steps()
        if below.ranges or below.ends:
            raise self._error("range and end stand in braces of their own", at)
        return steps

    def _brackets(self) -> tuple[Step, ...]:
        start = self.at
        close = self._text.find("]", start, self._end)
        if close < 0 or "\n" in self._text[start:close]:
            raise self._error("unterminated array", start)
        self.at = close + 1
        words = self._text[start + 1 : close].split(",")
        if len(words) == 1:
            return self._selected(start + 1, close)
        branches, at = [], start + 1
        for word in words:
            begin = at + len(word) - len(word.lstrip(" "))
            branches.append(self._selected(begin, begin + len(word.strip(" "))))
            at += len(word) + 1
        return (Union(start, tuple(branches)),)

    def _selected(self, at: int, end: int) -> tuple[Step, ...]:
        """What stands between brackets, or between two commas there."""
        word = self._text[at:end]
        if len(word) > 1 and word[0] == word[-1] == "'" and "'" not in word[1:-1]:
            # As kubectl has it: a path, in which the dots of a name are escaped.
            below = _Reader(self._text, at + 1, end - 1)
            first = below._field()
            return (first, *self._path(below.at, end - 1))
        bounds = _BOUNDS.fullmatch(":" if word == "*" else word)
        if bounds is None:
            raise self._error(f"invalid array index {word}", at)
        start, stop, step = (self._index(text, at) for text in bounds.groups())
        single = bounds[2] is None
        if single:
            start = start or 0
            stop = start + 1
        return (Slice(at, start, stop, step, single),)

    def _index(self, text: str | None, at: int) -> int | None:
        if not text:
            return None
        if text == "-" or len(text) > _DIGITS:
            raise self._error(f"array index {text} is not a number", at)
        return int(text)

    def _error(self, problem: str, at: int) -> TemplateError:
        return TemplateError(problem, self._text, at)


def _is_word(character: str) -> bool:
    return character == "_" or character.isalpha() or character.isdigit()
