"""JSON as Go's ``encoding/json`` reads and writes it.

The kubelet's state files are written and read by that package, so which texts are refused, with
which words, and which bytes come out is Go's: unknown keys are passed over, a key may come
twice, keys match without regard to case, invalid UTF-8 becomes U+FFFD, and ``<``, ``>``, ``&``,
U+2028 and U+2029 are escaped on the way out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MAX_DEPTH: Final = 10_000
"""Nesting above which Go refuses a text."""

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+"')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ESCAPE = re.compile(rb'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_SURROGATE = re.compile("[\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_TO_ESCAPE = re.compile('["\\\\<>&\x00-\x1f\u2028\u2029\ud800-\udfff]')
_LITERALS: Final = {b"t": (b"true", True), b"f": (b"false", False), b"n": (b"null", None)}
_SHORT_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_UNESCAPES: Final = {
    b"b": "\b",
    b"f": "\f",
    b"n": "\n",
    b"r": "\r",
    b"t": "\t",
}


class GoJSONError(ValueError):
    """A text that Go refuses; the message is Go's."""


class Number(str):
    """A JSON number, as it stands in the text."""

    __slots__ = ()


class Object:
    """A JSON object: its members in the order of the text, doubles included."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        self.members: list[tuple[str, Node]] = []


class Array:
    """A JSON array."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[Node] = []


Node = str | Number | bool | None | Object | Array


def parse(data: bytes) -> Node:
    """Read one JSON text.

    Raises:
        GoJSONError: no valid JSON, in the words of Go 1.24.
    """
    parser = _Parser(data)
    value = parser.value()
    parser.skip_space()
    if parser.at < len(data):
        raise parser.unexpected("after top-level value")
    return value


class _Parser:
    """Keeps its own stack: a text nested 10,000 deep must not meet Python's recursion limit."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.last: Node = None

    def skip_space(self) -> None:
        match = _SPACE.match(self.data, self.at)
        if match is not None:
            self.at = match.end()

    def unexpected(self, where: str) -> GoJSONError:
        if self.at >= len(self.data):
            return GoJSONError("unexpected end of JSON input")
        return GoJSONError(f"invalid character {_quote_char(self.data[self.at])} {where}")

    def value(self) -> Node:
        stack: list[tuple[Object | Array, str]] = []
        while True:
            self.skip_space()
            node, opened = self.open_value()
            if isinstance(node, Object | Array) and len(stack) >= MAX_DEPTH:
                raise GoJSONError("exceeded max depth")
            if opened:
                if isinstance(node, Object):
                    stack.append((node, self.key()))
                elif isinstance(node, Array):
                    stack.append((node, ""))
                continue
            if not self.close_values(node, stack):
                return self.last

    def open_value(self) -> tuple[Node, bool]:
        """Read a scalar or an empty container, or only open one that has members."""
        lead = self.data[self.at : self.at + 1]
        if lead in (b"{", b"["):
            self.at += 1
            self.skip_space()
            end = b"}" if lead == b"{" else b"]"
            node: Object | Array = Object() if lead == b"{" else Array()
            if self.data[self.at : self.at + 1] == end:
                self.at += 1
                return node, False
            return node, True
        return self.scalar(lead), False

    def close_values(self, node: Node, stack: list[tuple[Object | Array, str]]) -> bool:
        """Hand a finished value to its container; whether another value follows."""
        while stack:
            container, key = stack[-1]
            self.skip_space()
            following = self.data[self.at : self.at + 1]
            if isinstance(container, Object):
                container.members.append((key, node))
                if following == b",":
                    self.at += 1
                    stack[-1] = (container, self.key())
                    return True
                if following != b"}":
                    raise self.unexpected("after object key:value pair")
            else:
                container.items.append(node)
                if following == b",":
                    self.at += 1
                    return True
                if following != b"]":
                    raise self.unexpected("after array element")
            self.at += 1
            stack.pop()
            node = container
        self.last = node
        return False

    def key(self) -> str:
        self.skip_space()
        if self.data[self.at : self.at + 1] != b'"':
            raise self.unexpected("looking for beginning of object key string")
        key = self.string()
        self.skip_space()
        if self.data[self.at : self.at + 1] != b":":
            raise self.unexpected("after object key")
        self.at += 1
        return key

    def scalar(self, lead: bytes) -> Node:
        if lead == b'"':
            return self.string()
        if lead in _LITERALS:
            return self.literal(*_LITERALS[lead])
        if lead == b"-" or lead.isdigit():
            return self.number()
        raise self.unexpected("looking for beginning of value")

    def literal(self, word: bytes, value: bool | None) -> Node:  # noqa: FBT001 - true and false are two of the three literals
        if self.data.startswith(word, self.at):
            self.at += len(word)
            return value
        for expected in word:
            if self.data[self.at : self.at + 1] != bytes([expected]):
                raise self.unexpected(f"in literal {word.decode()} (expecting '{chr(expected)}')")
            self.at += 1
        return value

    def number(self) -> Number:
        match = _NUMBER.match(self.data, self.at)
        if match is None:
            self.at += 1  # past the minus sign
            raise self.unexpected("in numeric literal")
        self.at = match.end()
        following = self.data[self.at : self.at + 1]
        text = match[0]
        if following == b"." and not re.search(rb"[.eE]", text):
            self.at += 1
            raise self.unexpected("after decimal point in numeric literal")
        if following in (b"e", b"E") and not re.search(rb"[eE]", text):
            self.at += 1
            if self.data[self.at : self.at + 1] in (b"+", b"-"):
                self.at += 1
            raise self.unexpected("in exponent of numeric literal")
        return Number(text.decode())

    def string(self) -> str:
        match = _STRING.match(self.data, self.at)
        if match is None:
            raise self.string_error()
        self.at = match.end()
        return _unescape(match[0][1:-1])

    def string_error(self) -> GoJSONError:
        self.at += 1
        while self.at < len(self.data):
            byte = self.data[self.at]
            if byte < 0x20:
                return self.unexpected("in string literal")
            self.at += 1
            if byte != 0x5C:
                continue
            escape = self.data[self.at : self.at + 1]
            if escape == b"u":
                for _ in range(4):
                    self.at += 1
                    if not re.fullmatch(rb"[0-9a-fA-F]", self.data[self.at : self.at + 1]):
                        return self.unexpected("in \\u hexadecimal character escape")
            elif not escape or escape not in b'"\\/bfnrt':
                return self.unexpected("in string escape code")
            self.at += 1
        return self.unexpected("")


def _quote_char(byte: int) -> str:
    if byte == 0x27:
        return "'\\''"
    if byte == 0x22:
        return "'\"'"
    return "'" + quote(chr(byte))[1:-1] + "'"


def quote(text: str) -> str:
    """``text`` as Go's ``%q`` prints it: in double quotes, unprintable characters escaped."""
    out = ['"']
    for char in text:
        code = ord(char)
        if char in '"\\':
            out.append("\\" + char)
        elif char.isprintable():
            out.append(char)
        elif char in "\a\b\f\n\r\t\v":
            out.append("\\" + "abtnvfr"[code - 7])
        elif code < 0x20 or code == 0x7F:
            out.append(f"\\x{code:02x}")
        elif code < 0x10000:
            out.append(f"\\u{code:04x}")
        else:
            out.append(f"\\U{code:08x}")
    return "".join([*out, '"'])


def _unescape(raw: bytes) -> str:
    if b"\\" not in raw:
        return _decode_utf8(raw)
    return _join_surrogates("".join(_pieces(raw)))


def _pieces(raw: bytes) -> Iterator[str]:
    at = 0
    for match in _ESCAPE.finditer(raw):
        yield _decode_utf8(raw[at : match.start()])
        if match[1] is not None:
            yield chr(int(match[1], 16))
        else:
            yield _UNESCAPES.get(match[2], match[2].decode())
        at = match.end()
    yield _decode_utf8(raw[at:])


def _decode_utf8(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        # Go puts one U+FFFD for every byte that is wrong, Python one for a run of them.
        return _SURROGATE.sub("\ufffd", raw.decode(errors="surrogateescape"))


def _join_surrogates(text: str) -> str:
    if _SURROGATE.search(text) is None:
        return text
    joined = _PAIR.sub(
        lambda match: match[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
    )
    return _SURROGATE.sub("\ufffd", joined)


def encode_string(text: str) -> str:
    """``text`` as a JSON string with Go's escapes, quotes included."""
    return '"' + _TO_ESCAPE.sub(_escape, text) + '"'


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[char]
    if _SURROGATE.match(char):
        return "\\ufffd"
    return f"\\u{ord(char):04x}"
