"""Mutations of bytes, lines and tokens, with a dictionary for each format."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

MAX_BYTES: Final = 200_000

INTERESTING: Final = (
    b"0", b"-0", b"-1", b"1", b"7", b"64", b"255", b"1024", b"65535", b"4294967295", b"4294967296",
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"18446744073709551616", b"9" * 40, b"9" * 5000, b"1e9", b"1e999", b"0.1", b".5", b"5.", b"NaN",
    b"Infinity", b"0x10", b"1_000", b"null", b"true", b"", b" ", b"\x00", b"\xff", b"\xef\xbb\xbf",
    "\u0663".encode(), "\u00b2".encode(), "\U0001f600".encode(), b"\xed\xa0\x80", b"\r\n", b"\t",
    b"..", b"/", b"%s", b"{}", b"[]", b'""',
)  # fmt: skip
"""What numbers and texts go wrong with: limits, other scripts' digits, broken UTF-8."""

_NUMBER = re.compile(rb"-?\d+")
_TOKEN = re.compile(rb"[\w.\-]+|[^\w\s]")
_PAIRS: Final = ((b"{", b"}"), (b"[", b"]"), (b"<", b">"), (b'"', b'"'), (b"(", b")"))


class Mutator:
    """Makes new inputs of old ones; the same seed gives the same inputs."""

    def __init__(self, rng: random.Random, dictionary: Sequence[bytes] = ()) -> None:
        self._rng = rng
        self._words = (*INTERESTING, *dictionary)
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._flip,
            self._insert,
            self._remove,
            self._repeat,
            self._lines,
            self._number,
            self._token,
            self._token,
            self._nest,
            self._truncate,
        )

    def mutate(self, data: bytes, other: bytes) -> bytes:
        """One to eight mutations of ``data``; ``other`` is there to be spliced with."""
        if self._rng.random() < 0.1:
            data = self._splice(data, other)
        for _ in range(1 << self._rng.randrange(4)):
            data = self._rng.choice(self._ways)(data)
        return data[:MAX_BYTES]

    def _at(self, data: bytes) -> int:
        return self._rng.randrange(len(data) + 1)

    def _span(self, data: bytes) -> tuple[int, int]:
        start = self._at(data)
        return start, min(len(data), start + 1 + int(self._rng.expovariate(0.1)))

    def _splice(self, data: bytes, other: bytes) -> bytes:
        return data[: self._at(data)] + other[self._at(other) :]

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        changed = bytearray(data)
        changed[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        return bytes(changed)

    def _insert(self, data: bytes) -> bytes:
        at = self._at(data)
        return data[:at] + self._rng.choice(self._words) + data[at:]

    def _remove(self, data: bytes) -> bytes:
        start, end = self._span(data)
        return data[:start] + data[end:]

    def _repeat(self, data: bytes) -> bytes:
        start, end = self._span(data)
        times = self._rng.choice((2, 3, 50, 3000))
        return data[:start] + data[start:end] * times + data[end:]

    def _lines(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        start = self._rng.randrange(len(lines))
        end = min(len(lines), start + self._rng.randrange(1, 5))
        chosen = lines[start:end]
        way = self._rng.randrange(3)
        if way == 0:
            del lines[start:end]
        else:
            at = self._rng.randrange(len(lines) + 1)
            lines[at:at] = chosen
            if way == 1:
                self._rng.shuffle(lines[start:end])
        return b"\n".join(lines)

    def _replace_match(self, data: bytes, pattern: re.Pattern[bytes]) -> bytes:
        start = self._at(data)
        match = pattern.search(data, start) or pattern.search(data)
        if match is None:
            return self._insert(data)
        word = self._rng.choice(self._words)
        if self._rng.random() < 0.3:
            found = pattern.findall(data, 0, 20_000)
            word = self._rng.choice(found) if found else word
        return data[: match.start()] + word + data[match.end() :]

    def _number(self, data: bytes) -> bytes:
        return self._replace_match(data, _NUMBER)

    def _token(self, data: bytes) -> bytes:
        return self._replace_match(data, _TOKEN)

    def _nest(self, data: bytes) -> bytes:
        opening, closing = self._rng.choice(_PAIRS)
        depth = self._rng.choice((1, 2, 100, 20_000))
        start, end = self._span(data)
        return data[:start] + opening * depth + data[start:end] + closing * depth + data[end:]

    def _truncate(self, data: bytes) -> bytes:
        return data[: self._at(data)]
