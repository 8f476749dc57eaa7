"""The newest events, as they are sent: where a reader goes on who was away for a while."""

from __future__ import annotations

from collections import deque
from typing import Final

MOST: Final = 1000
"""Events that are kept at most."""

MOST_BYTES: Final = 2 << 20
"""Bytes of these events at most; the newest one is kept, whatever its size."""


class Ring:
    """Numbered messages, bounded in number and in bytes; ``number`` is the newest one's.

    Of those that take the place of their like only the newest is kept.
    """

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self.number = 0
        self._most, self._most_bytes = most, most_bytes
        self._kept: deque[bytes] = deque()
        self._bytes = 0
        self._replaceable = 0

    def add(self, text: bytes, *, replaceable: bool = False) -> None:
        """One more, whose number was :attr:`next`.

        ``replaceable``: it has no meaning once there is another such one.
        """
        if replaceable:
            self._forget(self._replaceable)
            self._replaceable = self.next
        self.number += 1
        self._kept.append(text)
        self._bytes += len(text)
        while len(self._kept) > 1 and (
            self._bytes > self._most_bytes or len(self._kept) > self._most
        ):
            self._bytes -= len(self._kept.popleft())

    @property
    def next(self) -> int:
        """The number of the next one."""
        return self.number + 1

    def has_all_after(self, number: int) -> bool:
        """Whether whoever knows this one can go on."""
        return self.number - len(self._kept) <= number <= self.number

    def after(self, number: int) -> tuple[int, bytes]:
        """The next one after this number that is of any meaning, and its number.

        Empty where there is none; the number is then the newest.  For those of whom it
        :meth:`has_all_after`.
        """
        first = self.number - len(self._kept) + 1
        for one in range(number + 1, self.number + 1):
            if text := self._kept[one - first]:
                return one, text
        return self.number, b""

    def _forget(self, number: int) -> None:
        at = number - (self.number - len(self._kept) + 1)
        if 0 <= at < len(self._kept):
            self._bytes -= len(self._kept[at])
            self._kept[at] = b""
