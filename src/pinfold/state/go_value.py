"""The Go types that a checkpoint is made of: how each is decoded, encoded and dumped.

A type of a checkpoint is described once, as a tree of the classes here; decoding (with Go's
rules for what is missing, ``null``, doubled or of the wrong type), the exact JSON bytes and the
dump that the checksum is taken over all follow from it.  Values are plain: ``dict`` for structs
(by Go field name) and maps, ``list`` for slices, ``bytes``, ``str`` and ``int``; ``None`` is nil.
"""

# ruff: noqa: D102 - what the methods do is said once, by GoType

from __future__ import annotations

import base64
import binascii
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from pinfold.state.go_json import Array, GoJSONError, Node, Number, Object, encode_string

_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*")


Value: TypeAlias = Any
"""A plain value; which one is decided by the :class:`GoType` at run time, not by a type checker."""


class Decoding:
    """What one decoding run has met: where it is, and the first value of a wrong type."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.struct: str = ""
        self.error: str | None = None
        self.is_over = False
        """An error of a type's own decoder: Go goes on no more, what it has read stays."""

    def mismatch(self, found: str, type_name: str) -> None:
        """Remember that ``found`` cannot be a ``type_name``; Go goes on and reports the first."""
        place = (
            f"Go struct field {self.struct}.{'.'.join(self.path)}" if self.struct else "Go value"
        )
        self.fail(f"json: cannot unmarshal {found} into {place} of type {type_name}")

    def fail(self, message: str) -> None:
        """Remember an error, unless there is one already."""
        if self.error is None:
            self.error = message

    def stop(self, message: str) -> None:
        """End the run with the error of a type's own decoder, which is the one that is told."""
        if not self.is_over:
            self.error = message
        self.is_over = True


class GoType(ABC):
    """A Go type; ``name`` is what ``%T`` prints."""

    name: str

    @abstractmethod
    def zero(self) -> Value:
        """The zero value."""

    @abstractmethod
    def decode(self, node: Node, current: Value, run: Decoding) -> Value:
        """The value after decoding ``node`` over ``current``."""

    @abstractmethod
    def encode(self, value: Value) -> str:
        """``value`` as JSON."""

    @abstractmethod
    def dump(self, value: Value) -> str:
        """``value`` in the dump, without its type."""

    def is_empty(self, value: Value) -> bool:
        """Whether ``omitempty`` leaves it out."""
        return not value


class GoString(GoType):
    """A string, or a named type of one."""

    def __init__(self, name: str = "string") -> None:
        self.name = name

    def zero(self) -> str:
        return ""

    def decode(self, node: Node, current: Value, run: Decoding) -> Value:
        if isinstance(node, str) and not isinstance(node, Number):
            return node
        if node is not None:
            run.mismatch(_kind(node), self.name)
        return current

    def encode(self, value: Value) -> str:
        return encode_string(value)

    def dump(self, value: Value) -> str:
        return str(value)


class GoInteger(GoType):
    """An integer of 64 bits."""

    def __init__(self, name: str, *, signed: bool) -> None:
        self.name = name
        self.low, self.high = (-(1 << 63), (1 << 63) - 1) if signed else (0, (1 << 64) - 1)

    def zero(self) -> int:
        return 0

    def parse(self, text: str) -> int | None:
        """The number, or ``None`` where it is none of this type."""
        # 20 digits hold every 64-bit number; Python refuses to convert the very long.
        digits = text.lstrip("-").lstrip("0") or "0"
        if _INTEGER.fullmatch(text) is None or len(digits) > 20:
            return None
        value = -int(digits) if text.startswith("-") else int(digits)
        fits = self.low <= value <= self.high and not (self.low == 0 and text.startswith("-"))
        return value if fits else None

    def decode(self, node: Node, current: Value, run: Decoding) -> Value:
        if isinstance(node, Number):
            value = self.parse(node)
            if value is not None:
                return value
            run.mismatch(f"number {node}", self.name)
        elif node is not None:
            run.mismatch(_kind(node), self.name)
        return current

    def encode(self, value: Value) -> str:
        return str(value)

    def dump(self, value: Value) -> str:
        return str(value)


class GoSlice(GoType):
    """A slice."""

    def __init__(self, element: GoType, name: str | None = None) -> None:
        self.element = element
        self.name = name or f"[]{element.name}"

    def zero(self) -> list[Any] | None:
        return None

    def decode(self, node: Node, current: Value, run: Decoding) -> Value:
        if node is None:
            return None
        if not isinstance(node, Array):
            run.mismatch(_kind(node), self.name)
            return current
        # Go decodes over the elements that a doubled key has left there.
        old: Sequence[Any] = current or ()
        return [
            self.element.decode(item, old[i] if i < len(old) else self.element.zero(), run)
            for i, item in enumerate(node.items)
        ]

    def encode(self, value: Value) -> str:
        if value is None:
            return "null"
        return "[" + ",".join(self.element.encode(item) for item in value) + "]"

    def dump(self, value: Value) -> str:
        if value is None:
            return "<nil>"
        return "[" + " ".join(self.element.dump(item) for item in value) + "]"


class GoBytes(GoSlice):
    """A slice of bytes: base64 in JSON, decimal numbers in the dump."""

    def __init__(self) -> None:
        super().__init__(GoInteger("uint8", signed=False))

    def decode(self, node: Node, current: Value, run: Decoding) -> Value:
        if not isinstance(node, str) or isinstance(node, Number):
            if isinstance(node, Array):
                # Allowed by Go, written by nobody.
                return bytes(int(n) & 0xFF for n in node.items if isinstance(n, Number))
            return super().decode(node, current, run)
        text = node.replace("\r", "").replace("\n", "")
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            match = _BASE64.match(text)
            run.fail(f"illegal base64 data at input byte {match.end() if match else 0}")
            return current

    def encode(self, value: Value) -> str:
        return "null" if value is None else f'"{base64.b64encode(value).decode()}"'


class GoMap(GoType):
    """A map; JSON sorts its keys as texts, the dump in the order of their type."""

    def __init__(self, key: GoType, value: GoType, name: str | None = None) -> None:
        self.key = key
        self.value = value
        self.name = name or f"map[{key.name}]{value.name}"

    def zero(self) -> dict[Any, Any] | None:
        return None

    def decode(self, node: Node, current: Value, run: Decoding) -> Value:
        if node is None:
            return None
        if not isinstance(node, Object):
            run.mismatch(_kind(node), self.name)
            return current
        entries: dict[Any, Any] = dict(current or {})
        for text, member in node.members:
            value = self.value.decode(member, self.value.zero(), run)
            if run.is_over:
                break
            if isinstance(self.key, GoInteger):
                number = self.key.parse(text)
                if number is None:
                    run.mismatch(f"number {text}", self.key.name)
                    continue
                entries[number] = value
            else:
                entries[text] = value
        return entries

    def encode(self, value: Value) -> str:
        if value is None:
            return "null"
        members = sorted((str(key), entry) for key, entry in _items(value))
        return (
            "{"
            + ",".join(f"{encode_string(key)}:{self.value.encode(entry)}" for key, entry in members)
            + "}"
        )

    def dump(self, value: Value) -> str:
        if value is None:
            return "<nil>"
        return "map[" + " ".join(f"{k}:{self.value.dump(v)}" for k, v in _items(value)) + "]"


class GoField(Struct, frozen=True):
    """A field of a struct: its Go name, its JSON name and its type."""

    name: str
    json_name: str
    type: GoType
    omitempty: bool = False


class GoStruct(GoType):
    """A struct; ``name`` carries the package, as in ``state.CPUManagerCheckpoint``."""

    def __init__(self, name: str, fields: Sequence[GoField]) -> None:
        self.name = name
        self.fields = tuple(fields)
        self._exact = {field.json_name: field for field in fields}
        self._folded = {_fold(field.json_name): field for field in reversed(self.fields)}

    def zero(self) -> dict[str, Any]:
        return {field.name: field.type.zero() for field in self.fields}

    def decode(self, node: Node, current: Value, run: Decoding) -> Value:
        if node is None:
            return current
        if not isinstance(node, Object):
            run.mismatch(_kind(node), self.name)
            return current
        value = dict(current)
        outer = run.struct
        for key, member in node.members:
            field = self._exact.get(key) or self._folded.get(_fold(key))
            if field is None:
                continue
            run.struct = self.name.rpartition(".")[2]
            run.path.append(field.json_name)
            value[field.name] = field.type.decode(member, value[field.name], run)
            run.path.pop()
            run.struct = outer
            if run.is_over:
                break
        return value

    def encode(self, value: Value) -> str:
        return (
            "{"
            + ",".join(
                f"{encode_string(field.json_name)}:{field.type.encode(value[field.name])}"
                for field in self.fields
                if not (field.omitempty and field.type.is_empty(value[field.name]))
            )
            + "}"
        )

    def dump(self, value: Value) -> str:
        return (
            "{"
            + " ".join(
                f"{field.name}:({field.type.name}){field.type.dump(value[field.name])}"
                for field in self.fields
            )
            + "}"
        )


class GoPointer(GoType):
    """A pointer, as a map holds it."""

    def __init__(self, target: GoType) -> None:
        self.target = target
        self.name = f"*{target.name}"

    def zero(self) -> None:
        return None

    def decode(self, node: Node, current: Value, run: Decoding) -> Value:
        if node is None:
            return None
        return self.target.decode(node, self.target.zero() if current is None else current, run)

    def encode(self, value: Value) -> str:
        return "null" if value is None else self.target.encode(value)

    def dump(self, value: Value) -> str:
        return "<nil>" if value is None else "<*>" + self.target.dump(value)


def unmarshal(type_: GoType, node: Node, initial: Value) -> Value:
    """Decode a parsed text over ``initial``, as ``json.Unmarshal`` into a filled variable.

    Raises:
        GoJSONError: a value of the wrong type, in Go's words.
    """
    value, error = unmarshal_all(type_, node, initial)
    if error is not None:
        raise GoJSONError(error)
    return value


def unmarshal_all(type_: GoType, node: Node, initial: Value) -> tuple[Value, str | None]:
    """The same, and what the variable holds after an error: all that could be decoded."""
    run = Decoding()
    return type_.decode(node, initial, run), run.error


def _kind(node: Node) -> str:
    if isinstance(node, Number):
        return "number"
    if isinstance(node, str):
        return "string"
    if isinstance(node, Object):
        return "object"
    return "array" if isinstance(node, Array) else "bool"


def _items(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(value.items(), key=lambda item: item[0])


def _fold(key: str) -> str:
    return key.replace("\u017f", "s").replace("\u212a", "k").lower()
