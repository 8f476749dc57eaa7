"""Prints a document by a template; raises TemplateError where the two do not suit."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from pinfold.render.jsonpath.parts import (
    Action,
    Descent,
    Every,
    Field,
    Filter,
    Literal,
    Part,
    Slice,
    Step,
    Template,
    TemplateError,
    Union,
)

JSON: TypeAlias = Any
"""A value of a document: an object, a list, a text, a number, a boolean or None."""

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EXPONENT_FROM: Final = 1e21
"""From where Go writes a number with an exponent."""
_ESCAPED: Final = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
"""What Go escapes in JSON besides."""


def printed(template: Template, document: JSON) -> str:
    """The document by the template; what is not there is nothing, as with kubectl.

    Args:
        template: as :func:`~pinfold.render.jsonpath.reading.read_template` has read it.
        document: as JSON has it, so that objects are dictionaries and lists are lists.

    Raises:
        TemplateError: a list is asked for and something else is there, an index is beyond its end,
            or things are compared that cannot be.
    """
    return "".join(_Printer(template.text).texts(template.parts, document))


class _Printer:
    def __init__(self, text: str) -> None:
        self._text = text

    def texts(self, parts: Iterable[Part], current: JSON) -> Iterator[str]:
        for part in parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, Action):
                yield " ".join(map(_as_text, self._walk([current], part.steps)))
            else:
                for value in self._walk([current], part.steps):
                    yield from self.texts(part.parts, value)

    def _walk(self, values: list[JSON], steps: Iterable[Step]) -> list[JSON]:
        for step in steps:
            values = self._taken(values, step)
        return values

    def _taken(self, values: list[JSON], step: Step) -> list[JSON]:
        match step:
            case Field():
                return [v[step.name] for v in values if isinstance(v, dict) and step.name in v]
            case Every():
                return [below for value in values for below in _held(value)]
            case Descent():
                return [below for value in values for below in _descended(value)]
            case Slice():
                return [one for value in values for one in self._sliced(value, step)]
            case Filter():
                return [one for value in values for one in self._filtered(value, step)]
            case Union():
                return [one for branch in step.branches for one in self._walk(values, branch)]
            case Literal():
                return [step.value] if step.alone else [step.value] * len(values)

    def _sliced(self, value: JSON, step: Slice) -> list[JSON]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._error(f"{_kind(value)} is not array or slice", step)
        length = len(value)
        start = 0 if step.start is None else step.start
        stop = length if step.stop is None else step.stop
        start += length if start < 0 else 0
        if stop < 0 or (stop == 0 and step.single):
            stop += length
        if step.step is not None and step.step <= 0:
            raise self._error("step must be > 0", step)
        if start != stop:
            if not 0 <= start < length or stop > length:
                index = stop - 1 if 0 <= start < length else start
                problem = f"array index out of bounds: index {index}, length {length}"
                raise self._error(problem, step)
            if start > stop:
                problem = f"starting index {start} is greater than ending index {stop}"
                raise self._error(problem, step)
        return value[start : stop : step.step or 1]

    def _filtered(self, value: JSON, step: Filter) -> Iterator[JSON]:
        if value is None:
            return
        if not isinstance(value, list):
            raise self._error(f"{_kind(value)} is not array or slice and cannot be filtered", step)
        for one in value:
            left = self._walk([one], step.left)
            if not step.operator:
                if left:
                    yield one
                continue
            right = self._walk([one], step.right)
            if len(left) > 1 or len(right) > 1:
                raise self._error("can only compare one element at a time", step)
            if left and right and self._holds(left[0], right[0], step):
                yield one

    def _holds(self, left: JSON, right: JSON, step: Filter) -> bool:
        kinds = {_kind(left), _kind(right)}
        ordered = step.operator not in {"==", "!="}
        if kinds & {"object", "array", "null"} or (ordered and "bool" in kinds):
            raise self._error("invalid type for comparison", step)
        if len(kinds) > 1:
            raise self._error("incompatible types for comparison", step)
        return _COMPARISONS[step.operator](left, right)

    def _error(self, problem: str, step: Step) -> TemplateError:
        return TemplateError(problem, self._text, step.at)


def _held(value: JSON) -> Iterable[JSON]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _descended(value: JSON) -> Iterator[JSON]:
    """A value that holds something, and all such below it; a text holds characters."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list | str) and one:
            yield one
            waiting += reversed([*_held(one)])


def _kind(value: JSON) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case str():
            return "string"
        case dict():
            return "object"
        case list():
            return "array"
    return "number"


def _as_text(value: JSON) -> str:
    """A text as it is, anything else as Go writes it in JSON: compact, with sorted keys."""
    if isinstance(value, str):
        return value
    text = json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED)


def _plain(value: JSON) -> JSON:
    """With whole numbers as Go has them: 12.0 is 12."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXPONENT_FROM
    return int(value) if is_whole else value
