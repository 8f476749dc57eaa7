"""The documents of a text that is JSON or YAML, as Kubernetes tools read them.

JSON first where the text looks like it: it is read ten times as fast, and what it says is not
up to YAML 1.1.  Several JSON values may follow each other, as ``jq '.items[]'`` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pinfold.formats.yaml_documents import Document, YAMLError, yaml_documents

__all__ = ["Document", "DocumentError", "read_documents"]

_BLANK = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class DocumentError(ValueError):
    """A text that is neither JSON nor YAML; the message starts with line and column, from 1."""

    def __init__(self, line: int, column: int, form: str, problem: str) -> None:
        super().__init__(f"line {line}, column {column}: not {form}: {problem}")
        self.line = line


class _NotJSON(Exception):  # noqa: N818 - no error: YAML may read it
    """Where the reader of JSON gave up, and where the value started.

    No problem is told where the reader of YAML finds the same one and knows where: a key that is
    there twice, a tower of brackets.
    """

    def __init__(self, value_at: int, position: int, problem: str) -> None:
        super().__init__(problem)
        self.value_at = value_at
        self.position = position


def read_documents(text: str) -> Iterator[Document]:
    """Yield the documents of a text; empty ones are left out.

    Raises:
        DocumentError: broken syntax, a duplicate key, or too deep a nesting.
    """
    failed: _NotJSON | None = None
    if text.lstrip()[:1] in ("{", "["):
        try:
            documents = list(_json_documents(text))
        except _NotJSON as gave_up:
            failed = gave_up
        else:
            yield from documents
            return
    try:
        yield from yaml_documents(text)
    except YAMLError as error:
        # YAML's flow style does not begin with a quoted key; who wrote one meant JSON.
        if failed is not None and '"' in text[: failed.position]:
            raise _json_error(text, failed) from None
        raise DocumentError(error.line, error.column, "YAML", str(error)) from None


def _json_error(text: str, failed: _NotJSON) -> DocumentError:
    line, column, problem = *_place(text, failed.position), str(failed)
    if not problem:
        problem = "a number that JSON does not have"
        try:
            list(yaml_documents(text[failed.value_at :]))
        except YAMLError as error:
            before = text.count("\n", 0, failed.value_at)
            line, column, problem = before + error.line, error.column, str(error)
    return DocumentError(line, column, "JSON", problem)


def _json_documents(text: str) -> Iterator[Document]:
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
    position, line, counted = 0, 1, 0
    while True:
        position = _end_of_blank(text, position)
        if position == len(text):
            return
        line, counted = line + text.count("\n", counted, position), position
        try:
            content, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            problem = error.msg[:1].lower() + error.msg[1:]
            raise _NotJSON(position, error.pos, problem) from None
        except (ValueError, RecursionError):
            raise _NotJSON(position, len(text), "") from None
        if _SURROGATE.search(text, position, end):
            _check_encodable(content, position, end)
        yield Document(line, content)
        position = end


def _end_of_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return position if match is None else match.end()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key is there twice")
    return fields


def _no_constant(name: str) -> Any:  # noqa: ANN401 - the decoder's signature; never returns
    raise ValueError(f"{name} is no JSON")


def _check_encodable(content: object, start: int, end: int) -> None:
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # The reader of YAML knows where.
        raise _NotJSON(start, end, "") from None


def _place(text: str, position: int) -> tuple[int, int]:
    """Line and column of a position, from 1."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
