"""YAML documents as Kubernetes tools read them.

Built from the parser's events, because that is half the time of the ready-made loader, because
duplicate keys are errors here as in ``kubectl``, and because every document keeps its line.
Scalars follow YAML 1.1, as the API machinery does (``yes`` is a boolean, ``012`` is octal).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

MAX_DEPTH: Final = 100
_LONGEST_NUMBER: Final = 64
"""Longer scalars are texts; no number of a manifest comes near it."""

_BOOLEANS: Final = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE"), True),
    **dict.fromkeys(("on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE"), False),
    **dict.fromkeys(("off", "Off", "OFF"), False),
}
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]{0,30})", re.ASCII)
_OTHER_BASE = re.compile(
    r"([-+]?)0(?:x([0-9a-fA-F_]{1,16})|b([01_]{1,64})|o?([0-7_]{1,24}))", re.ASCII
)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)


class YAMLError(ValueError):
    """A text that is no YAML; ``line`` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """One document and the line it starts on."""

    line: int
    content: Any


def yaml_documents(text: str) -> Iterator[Document]:
    """Yield the documents of a text; empty ones are left out.

    Raises:
        YAMLError: broken syntax, a duplicate key, an alias into itself, or too deep a nesting.
    """
    import yaml  # noqa: PLC0415 - not needed where manifests are JSON, and slow to import

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        events = yaml.parse(text, Loader=loader)
        for event in events:
            if type(event) is yaml.DocumentStartEvent:
                first = next(events)
                content = _Composer(events).node(first, 0)
                if content is not None:
                    yield Document(_line(first.start_mark), content)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise YAMLError(_line(mark), problem) from None
    except yaml.YAMLError as error:
        raise YAMLError(1, str(error).splitlines()[0]) from None


def _line(mark: Any) -> int:  # noqa: ANN401 - the parser's mark, or nothing
    return 1 if mark is None else int(mark.line) + 1


class _Composer:
    """Builds one document; anchors do not outlive it."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._next = events.__next__
        self._anchors: dict[str, Any] = {}

    def node(self, event: Any, depth: int) -> Any:  # noqa: ANN401 - any YAML value
        kind = type(event).__name__
        if kind == "ScalarEvent":
            value = _scalar(event.value) if event.implicit[0] else _tagged(event)
            if event.anchor:
                self._anchors[event.anchor] = value
            return value
        if kind == "AliasEvent":
            if event.anchor not in self._anchors:
                raise _error(event, f"alias *{event.anchor} has no anchor before it")
            return self._anchors[event.anchor]
        if depth > MAX_DEPTH:
            raise _error(event, f"nested deeper than {MAX_DEPTH} levels")
        value = self._mapping(depth) if kind == "MappingStartEvent" else self._sequence(depth)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        event = self._next()
        while type(event).__name__ != "SequenceEndEvent":
            items.append(self.node(event, depth + 1))
            event = self._next()
        return items

    def _mapping(self, depth: int) -> dict[Any, Any]:
        fields: dict[Any, Any] = {}
        merged: list[Any] = []
        event = self._next()
        while type(event).__name__ != "MappingEndEvent":
            key = self.node(event, depth + 1)
            value = self.node(self._next(), depth + 1)
            if key == "<<" and event.implicit[0]:
                merged += value if isinstance(value, list) else [value]
            elif isinstance(key, dict | list):
                raise _error(event, "a key must be a scalar")
            elif key in fields:
                raise _error(event, f"key {key!r} is already set in this mapping")
            else:
                fields[key] = value
            event = self._next()
        for other in merged:
            if not isinstance(other, dict):
                raise _error(event, "'<<' merges mappings only")
            fields = {**other, **fields}
        return fields


def _error(event: Any, problem: str) -> YAMLError:  # noqa: ANN401 - any event
    return YAMLError(event.start_mark.line + 1, problem)


def _tagged(event: Any) -> Any:  # noqa: ANN401 - any YAML value
    if event.tag in (None, "!", "tag:yaml.org,2002:str"):
        return event.value
    return _scalar(event.value)


@lru_cache(maxsize=8192)
def _scalar(text: str) -> Any:  # noqa: ANN401 - any YAML value
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if len(text) > _LONGEST_NUMBER or (not text[0].isdigit() and text[0] not in "+-."):
        return text
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    other = _OTHER_BASE.fullmatch(text)
    if other is not None:
        return _other_base(text, other)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _other_base(text: str, match: re.Match[str]) -> int | str:
    for digits, base in ((match[2], 16), (match[3], 2), (match[4], 8)):
        if digits and digits.strip("_"):
            number = int(digits.replace("_", ""), base)
            return -number if match[1] == "-" else number
    return text
