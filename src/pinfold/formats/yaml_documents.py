"""YAML documents as Kubernetes tools read them.

Built from the parser's events, because that is half the time of the ready-made loader, because
duplicate keys are errors here as in ``kubectl``, and because every document keeps its line.
Scalars follow YAML 1.1, as the API machinery does (``yes`` is a boolean, ``012`` is octal).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from pinfold.formats.yaml_remedies import remedy_for, unsayable

MAX_DEPTH: Final = 100
MAX_EXPANDED: Final = 1_000_000
"""So many values may aliases stand for in a document, so that a short text stays a small one."""
_TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels; is it a manifest? None is so deep"
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
    """A text that is no YAML; ``line`` and ``column`` count from 1."""

    def __init__(self, line: int, column: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.column = column


class Document(Struct, frozen=True):
    """One document and the line it starts on."""

    line: int
    content: Any


def yaml_documents(text: str) -> Iterator[Document]:
    """Yield the documents of a text; empty ones are left out.

    Raises:
        YAMLError: broken syntax, a duplicate key, an alias into itself, or too deep a nesting.
    """
    import yaml  # noqa: PLC0415 - 13 ms: not needed where manifests are JSON, and slow to import

    kinds = _EventKinds(
        yaml.ScalarEvent,
        yaml.AliasEvent,
        yaml.MappingStartEvent,
        yaml.MappingEndEvent,
        yaml.SequenceEndEvent,
    )
    try:
        # Straight from the parser: the generator around it costs a sixth of the time.
        advance = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text).get_event
        event = advance()
        while type(event) is not yaml.StreamEndEvent:
            if type(event) is yaml.DocumentStartEvent:
                first = advance()
                content = _Composer(advance, kinds).node(first, 0)
                if content is not None:
                    yield Document(_line(first.start_mark), content)
            event = advance()
    except yaml.MarkedYAMLError as error:
        raise _told(text, error) from None
    except yaml.YAMLError as error:
        problem = unsayable(text) or (1, 1, str(error).splitlines()[0])
        raise YAMLError(*problem) from None
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        column = error.start - text.rfind("\n", 0, error.start)
        raise YAMLError(
            line, column, "a character that no text has (a lone surrogate); remove it"
        ) from None


def _told(text: str, error: Any) -> YAMLError:  # noqa: ANN401 - the parser is imported late
    """The parser's error with its place and what helps.

    A quote that is not closed is told where it opens: the parser looks for its end in all that
    follows.
    """
    mark = error.problem_mark or error.context_mark
    if "end of stream" in str(error.problem) and "quoted scalar" in str(error.context):
        mark = error.context_mark
    line, column = _line(mark), 1 if mark is None else mark.column + 1
    problem = ", ".join(filter(None, (error.context, error.problem)))
    remedy = remedy_for(problem, text, line, column)
    return YAMLError(line, column, f"{problem}; {remedy}")


class _EventKinds(Struct, frozen=True):
    """The parser's classes, which are known only when it has been imported."""

    scalar: type
    alias: type
    mapping_start: type
    mapping_end: type
    sequence_end: type


def _line(mark: Any) -> int:  # noqa: ANN401 - the parser's mark, or nothing
    return 1 if mark is None else int(mark.line) + 1


class _Composer:
    """Builds one document; anchors do not outlive it."""

    __slots__ = ("_anchors", "_events", "_expanded", "_next", "_open", "_sizes")

    def __init__(self, advance: Callable[[], Any], kinds: _EventKinds) -> None:
        self._next = advance
        self._events = kinds
        self._anchors: dict[str, Any] = {}
        self._open: set[str] = set()
        self._sizes: dict[int, int] = {}
        self._expanded = 0

    def node(self, event: Any, depth: int) -> Any:  # noqa: ANN401 - any YAML value
        kind = type(event)
        if kind is self._events.scalar:
            value = plain_value(event.value) if event.implicit[0] else _tagged(event)
        elif kind is self._events.alias:
            return self._alias(event)
        elif depth > MAX_DEPTH:
            raise _error(event, _TOO_DEEP)
        elif event.anchor:
            # While it is read, it stands for nothing.
            self._open.add(event.anchor)
            value = self._collection(event, depth)
            self._open.discard(event.anchor)
        else:
            value = self._collection(event, depth)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _collection(self, event: Any, depth: int) -> Any:  # noqa: ANN401 - any YAML value
        if type(event) is self._events.mapping_start:
            return self._mapping(depth + 1)
        return self._sequence(depth + 1)

    def _alias(self, event: Any) -> Any:  # noqa: ANN401 - any YAML value
        if event.anchor in self._open:
            problem = f"alias *{event.anchor} stands for what it is a part of; write out what it is"
            raise _error(event, problem)
        if event.anchor not in self._anchors:
            raise _error(
                event,
                f"alias *{event.anchor} has no anchor before it in this document; set it with "
                f"&{event.anchor}, or quote a text that begins with '*'",
            )
        value = self._anchors[event.anchor]
        self._expanded += self._size(value)
        if self._expanded > MAX_EXPANDED:
            raise _error(
                event, f"aliases stand for more than {MAX_EXPANDED} values; write out what is meant"
            )
        return value

    def _size(self, value: Any) -> int:  # noqa: ANN401 - any YAML value
        """How many values a value holds when its aliases are written out."""
        if not isinstance(value, dict | list):
            return 1
        size = self._sizes.get(id(value))
        if size is None:
            held = value.values() if isinstance(value, dict) else value
            size = self._sizes[id(value)] = 1 + sum(self._size(item) for item in held)
        return size

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        advance, end = self._next, self._events.sequence_end
        event = advance()
        while type(event) is not end:
            items.append(self.node(event, depth))
            event = advance()
        return items

    def _mapping(self, depth: int) -> dict[Any, Any]:
        fields: dict[Any, Any] = {}
        merged: list[Any] = []
        advance, node = self._next, self.node
        end = self._events.mapping_end
        event = advance()
        while type(event) is not end:
            key = node(event, depth)
            value = node(advance(), depth)
            if key == "<<" and _is_merge(event):
                merged += value if isinstance(value, list) else [value]
            elif isinstance(key, dict | list):
                raise _error(
                    event, "a key must be a scalar; quote a text that begins with '{' or '['"
                )
            elif key in fields:
                raise _error(
                    event, f"key {key!r} is already set in this mapping; drop one of the two"
                )
            else:
                fields[key] = value
            event = advance()
        for other in merged:
            if not isinstance(other, dict):
                raise _error(event, "'<<' merges mappings only; name an anchor of one")
            for key, value in other.items():
                fields.setdefault(key, value)
        return fields


def _error(event: Any, problem: str) -> YAMLError:  # noqa: ANN401 - any event
    mark = event.start_mark
    return YAMLError(mark.line + 1, mark.column + 1, problem)


def _is_merge(event: Any) -> bool:  # noqa: ANN401 - any event
    """Whether a key ``<<`` is the plain one, neither quoted nor an alias."""
    return bool(getattr(event, "implicit", (False,))[0])


def _tagged(event: Any) -> Any:  # noqa: ANN401 - any YAML value
    if event.tag in (None, "!", "tag:yaml.org,2002:str"):
        return event.value
    return plain_value(event.value)


@lru_cache(maxsize=8192)
def plain_value(text: str) -> Any:  # noqa: ANN401 - any YAML value
    """What a text that is not quoted stands for."""
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
