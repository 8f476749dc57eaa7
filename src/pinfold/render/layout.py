"""What laying out boxes has in common in columns and in pixels."""

from __future__ import annotations

from typing import Final

from pinfold.render.boxes import Box

_DIGITS: Final = str.maketrans("123456789", "000000000")


def shapes(root: Box) -> dict[int, int]:
    """A number for each box (by ``id``), equal for boxes that take the same room.

    Large machines are made of like parts; measuring one of each is enough.
    """
    known: dict[object, int] = {}
    found: dict[int, int] = {}

    def walk(box: Box) -> int:
        threads = max((len(core.cells) for core in box.cores), default=0)
        digits = max((len(str(core.cells[-1].cpu)) for core in box.cores), default=0)
        # Digits are all of one width, other characters need not be.
        titles = tuple(label.text().translate(_DIGITS) for label in box.labels)
        inside = tuple(walk(child) for child in box.children)
        key = (inside, len(box.cores), threads, digits, titles, box.offline)
        found[id(box)] = known.setdefault(key, len(known))
        return found[id(box)]

    walk(root)
    return found


def cores_per_row(count: int, most: int) -> int:
    """How to break ``count`` cores into rows of at most ``most``: evenly, or at a round number."""
    share = -(-count // -(-count // most))
    if count % share == 0:
        return share
    for even in range(most, max(most // 2, 1), -1):
        if count % even == 0:
            return even
    for step in (8, 4, 2):
        even = -(-share // step) * step
        if even <= most:
            return even
    return share
