"""The part of CEL in which selectors of devices are written: read into a tree, nothing evaluated.

Source: the CEL specification (``doc/langdef.md``: syntax, literals) and the variables and functions
that Kubernetes gives selectors of devices (``dynamic-resource-allocation/cel``, 1.34).
"""

from __future__ import annotations

import json
import re
from typing import Final

from msgspec import Struct

MOST_DEPTH: Final = 64
ATTRIBUTES, CAPACITY = "attributes", "capacity"
DEVICE: Final = "device"
DRIVER: Final = "driver"
COMPARISONS: Final = ("==", "!=", "<=", ">=", "<", ">")

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>[0-9]+(?![A-Za-z0-9_.]))
    |(?P<text>"(?:[^"\\\n\r]|\\.)*"|'(?:[^'\\\n\r]|\\.)*')
    |(?P<sign>\|\||&&|==|!=|<=|>=|[<>!()\[\],.\-])
    |(?P<end>$))""",
    re.ASCII | re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\?\"'`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})"
    r"|([0-3][0-7]{2})|(.?))",
    re.DOTALL,
)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SURROGATES: Final = range(0xD800, 0xE000)
_RESERVED: Final = frozenset(
    {"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in"}
    | {"let", "loop", "package", "namespace", "null", "return", "true", "var", "void", "while"}
)


class CELError(ValueError):
    """An expression that is not understood; the message says what of it."""


class Literal(Struct, frozen=True):
    """A text, an integer, or true or false."""

    value: str | int | bool


class Known(Struct, frozen=True):
    """``device.driver``, or with ``part`` and ``domain`` ``device.attributes["domain"]``.

    ``identifier`` is None for the whole map of the domain.
    """

    part: str
    domain: str = ""
    identifier: str | None = None


class Call(Struct, frozen=True):
    """A function, or of ``target`` a method."""

    name: str
    arguments: tuple[Node, ...]
    target: Node | None = None


class Comparison(Struct, frozen=True):
    """``left operator right``, with one of :data:`COMPARISONS` or ``in``."""

    operator: str
    left: Node
    right: Node


class Items(Struct, frozen=True):
    """A list."""

    items: tuple[Node, ...]


class Not(Struct, frozen=True):
    """A negation."""

    of: Node


class Every(Struct, frozen=True):
    """A conjunction."""

    items: tuple[Node, ...]


class Some(Struct, frozen=True):
    """A disjunction."""

    items: tuple[Node, ...]


class _Path(Struct, frozen=True):
    """A way into ``device`` that has not come to anything yet."""

    names: tuple[str, ...]


Node = Literal | Known | Call | Comparison | Items | Not | Every | Some | _Path


def quoted(text: str) -> str:
    r"""A text as a literal.

    >>> print(quoted('say "a"'))
    "say \"a\""
    """
    return json.dumps(text, ensure_ascii=False)


def member(place: str, identifier: str) -> str:
    """An entry of a map: ``place.identifier``, where the language has no other use for the word."""
    if identifier in _RESERVED:
        return f"{place}[{quoted(identifier)}]"
    return f"{place}.{identifier}"


def parse(expression: str) -> Node:
    """Read an expression.

    Raises:
        CELError: syntax that is wrong, or that no selector of a class could be made of.
    """
    return _Parser(expression).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._next()

    def whole(self) -> Node:
        node = self._some()
        if self._kind != "end":
            raise self._unexpected()
        return node

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            shown = self._text[self._at :].strip()[:20]
            raise CELError(f"{shown!r} is not understood")
        self._kind, self._token = match.lastgroup, match[match.lastgroup]
        self._at = match.end()

    def _unexpected(self) -> CELError:
        if self._kind == "end":
            return CELError("it ends too early")
        return CELError(f"{self._token[:20]!r} is not understood here")

    def _takes(self, token: str) -> bool:
        if self._kind in ("sign", "name") and self._token == token:
            self._next()
            return True
        return False

    def _wants(self, token: str) -> None:
        if not self._takes(token):
            raise self._unexpected()

    def _some(self) -> Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise CELError(f"nested deeper than {MOST_DEPTH} levels")
        items = [self._every()]
        while self._takes("||"):
            items.append(self._every())
        self._depth -= 1
        return items[0] if len(items) == 1 else Some(tuple(items))

    def _every(self) -> Node:
        items = [self._comparison()]
        while self._takes("&&"):
            items.append(self._comparison())
        return items[0] if len(items) == 1 else Every(tuple(items))

    def _comparison(self) -> Node:
        left = self._negation()
        for operator in (*COMPARISONS, "in"):
            if self._takes(operator):
                return Comparison(operator, left, self._negation())
        return left

    def _negation(self) -> Node:
        count = 0
        while self._takes("!"):
            count += 1
        node = self._member()
        return Not(node) if count % 2 else node

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._takes("."):
                node = self._named(node)
            elif self._takes("["):
                key = self._some()
                self._wants("]")
                if not isinstance(key, Literal) or not isinstance(key.value, str):
                    raise CELError("only a text in quotes can be between [ and ]")
                node = _entry(node, key.value)
            else:
                break
        return _complete(node)

    def _named(self, node: Node) -> Node:
        if self._kind != "name":
            raise self._unexpected()
        name = self._token
        self._next()
        if self._takes("("):
            return Call(name, self._arguments(")"), _complete(node))
        return _entry(node, name)

    def _arguments(self, closing: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._takes(closing):
            if items:
                self._wants(",")
                if closing == "]" and self._takes(closing):
                    break
            items.append(self._some())
        return tuple(items)

    def _primary(self) -> Node:
        kind, said = self._kind, self._token
        if self._takes("("):
            node = self._some()
            self._wants(")")
            return node
        if self._takes("["):
            return Items(self._arguments("]"))
        if self._takes("-"):
            number = self._token
            if self._kind != "number":
                raise self._unexpected()
            self._next()
            return Literal(-_integer(number))
        if kind not in ("name", "number", "text"):
            raise self._unexpected()
        self._next()
        if kind == "number":
            return Literal(_integer(said))
        if kind == "text":
            return Literal(_unescaped(said[1:-1]))
        if said in ("true", "false"):
            return Literal(value=said == "true")
        if self._takes("("):
            return Call(said, self._arguments(")"))
        if said != DEVICE:
            raise CELError(f"{said[:40]!r} is not known; a selector is about {DEVICE}")
        return _Path(())


def _integer(token: str) -> int:
    if len(token) > len(str(2**63)):
        raise CELError(f"{token[:30]}... is too large a number")
    return int(token)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    simple, byte, short, long, octal, other = match.groups()
    if simple:
        return _ESCAPED.get(simple, simple)
    if other is not None:
        raise CELError(f"\\{other} is no escape")
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if code in _SURROGATES or code > 0x10FFFF:
        raise CELError(f"{match[0]} is no character")
    return chr(code)


def _entry(node: Node, key: str) -> Node:
    """What is at a key of something."""
    if isinstance(node, _Path):
        names = (*node.names, key)
        if len(names) == 1 and key not in (DRIVER, ATTRIBUTES, CAPACITY):
            raise CELError(f"{DEVICE} has no {key[:40]}")
        if names == (DRIVER,):
            return Known(DRIVER)
        return _Path(names) if len(names) == 1 else Known(names[0], names[1])
    if isinstance(node, Known) and node.part != DRIVER and node.identifier is None:
        return Known(node.part, node.domain, key)
    raise CELError(f"nothing is known at {key[:40]!r}")


def _complete(node: Node) -> Node:
    if isinstance(node, _Path):
        raise CELError(f"{'.'.join((DEVICE, *node.names))} alone says nothing")
    return node
