"""The fields of a state file as Go's decoder has them after an attempt, with an error or without.

The newest layouts have their content once more as a text, in the field ``Data``.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from pinfold.state.go_json import GoJSONError, parse
from pinfold.state.go_value import GoStruct, Value, unmarshal, unmarshal_all
from pinfold.state.layouts import Layout


class Fields(Struct, frozen=True):
    """What could be read: the file's own fields, those that count, and why not all of them."""

    outer: dict[str, Value]
    content: dict[str, Value]
    error: str = ""


class FieldsOfFile(Struct, frozen=True):
    """One of the files: its type in each layout, that of ``Data``, and what nothing is read as."""

    manager: str
    types: Mapping[Layout, GoStruct]
    data: GoStruct
    blank: Mapping[str, Value]

    def read(self, file: bytes, layout: Layout) -> Fields:
        """Read as much of ``file`` as can be read as one layout."""
        zero: dict[str, Value] = self.types[layout].zero()
        blank = {key: self.blank.get(key, value) for key, value in zero.items()}
        try:
            node = parse(file)
        except GoJSONError as error:
            return Fields(blank, {}, str(error))
        outer, problem = unmarshal_all(self.types[layout], node, blank)
        if "Data" not in zero:
            return Fields(outer, outer, problem or "")
        said = f"failed to deserialize {self.manager} manager checkpoint"
        if problem is not None:
            return Fields(outer, {}, f"{said}: {problem}")
        try:
            data = parse(outer["Data"].encode("utf-8", "surrogatepass"))
            return Fields(outer, unmarshal(self.data, data, dict(self.blank)))
        except GoJSONError as error:
            return Fields(outer, {}, f"{said} data: {error}")
