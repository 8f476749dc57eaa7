"""What is to be said of many things: that of one kind once, with a count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

_ONE_BY_ONE: Final = 2
"""So many of one kind are said each by itself: as short, and nothing is hidden."""


class Note(Struct, frozen=True):
    """Something that is said of a place or a name, such as ``x.yaml: nothing in it``.

    ``at`` is the place, "" for what is said of all; ``what`` is the same for all notes of a kind;
    ``joined`` stands between the two.
    """

    at: str
    what: str
    joined: str = ": "

    @property
    def text(self) -> str:
        """What it says where it is the only one."""
        return f"{self.at}{self.joined}{self.what}" if self.at else self.what


def said_once(notes: Iterable[Note]) -> Iterator[str]:
    """Yield the notes as text: those of one kind once, with their count and the first two places.

    Each kind stands where the first of it is; what is said of one place again is dropped.

    >>> list(said_once(Note(f"a.yaml: document {at}", "nothing in it") for at in range(1, 4)))
    ['nothing in it (3 times: a.yaml: document 1, a.yaml: document 2, ...)']
    """
    kinds: dict[str, dict[Note, None]] = {}
    for note in notes:
        kinds.setdefault(note.what, {})[note] = None
    for what, alike in kinds.items():
        if len(alike) <= _ONE_BY_ONE:
            yield from (note.text for note in alike)
            continue
        first, second = [note.at for note, _ in zip(alike, range(2), strict=False)]
        yield f"{what} ({len(alike):,} times: {first}, {second}, ...)"
