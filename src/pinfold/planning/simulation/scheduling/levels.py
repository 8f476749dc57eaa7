"""Nodes in the order of their use of memory, and parts of that order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence


class Level:
    """Entries in order, in parts that are short enough to insert into.

    An entry is a use of memory with the number of the node in its last bits.
    """

    __slots__ = ("longest", "parts")

    def __init__(self, entries: Sequence[int], longest: int) -> None:
        self.longest = longest
        half = longest // 2
        self.parts = [list(entries[start : start + half]) for start in range(0, len(entries), half)]

    def add(self, entry: int) -> None:
        """Put an entry in its place."""
        parts = self.parts
        place = 0 if len(parts) == 1 else max(0, bisect_left(parts, [entry]) - 1)
        part = parts[place]
        insort(part, entry)
        if len(part) > self.longest:
            half = self.longest // 2
            parts.insert(place + 1, part[half:])
            del part[half:]

    def remove(self, entry: int) -> bool:
        """Take an entry out; whether any is left."""
        parts = self.parts
        place = 0 if len(parts) == 1 else bisect_left(parts, [entry + 1]) - 1
        part = parts[place]
        del part[bisect_left(part, entry)]
        if not part:
            del parts[place]
        return bool(parts)

    def below(self, bound: int) -> int:
        """How many entries are less."""
        parts = self.parts
        if len(parts) == 1:
            return bisect_left(parts[0], bound)
        place = max(0, bisect_left(parts, [bound]) - 1)
        return sum(map(len, parts[:place])) + bisect_left(parts[place], bound)

    def at(self, place: int) -> int:
        """The nth entry."""
        for part in self.parts:
            if place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(place)

    def between(self, start: int, end: int) -> Iterator[int]:
        """Yield the entries from the nth up to another one."""
        for part in self.parts:
            yield from part[max(0, start) : max(0, end)]
            start, end = start - len(part), end - len(part)

    def __len__(self) -> int:
        return sum(map(len, self.parts))
