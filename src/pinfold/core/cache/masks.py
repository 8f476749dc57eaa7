"""Arithmetic of the masks of ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinfold.core.cache.offers import Cache


def is_valid(cache: Cache, mask: int) -> bool:
    """Whether the kernel takes a mask: within the cache, long enough, in one piece if need be.

    Where holes are allowed, it still wants so many ways in a row at the lowest one.
    """
    if not mask or mask & ~cache.mask:
        return False
    first = run_at_lowest(mask)
    return first.bit_count() >= cache.min_bits and (cache.sparse or first == mask)


def run_at_lowest(mask: int) -> int:
    """The ways in a row from the lowest one on."""
    lowest = mask & -mask
    return mask & ~(mask + lowest)


def runs(mask: int) -> Iterator[int]:
    """Each piece of a mask, from the low end."""
    while mask:
        run = run_at_lowest(mask)
        yield run
        mask &= ~run


def rest_of(cache: Cache, mask: int) -> int:
    """The largest valid mask within these ways, nearest to those that I/O shares; 0: there is none.

    With holes allowed that is all of them, but for what is too short at the low end.
    """
    if cache.sparse:
        while mask and not is_valid(cache, mask):
            mask &= ~run_at_lowest(mask)
        return mask
    found = [run for run in runs(mask) if run.bit_count() >= cache.min_bits]
    # Without a shareable way, the classes grow from the low end, so the rest is at the high one.
    return max(found, key=lambda run: (run.bit_count(), run & cache.shareable, run), default=0)


def grows_up(cache: Cache) -> bool:
    """Whether ways are given out from the low end: I/O shares those at the other one, if any."""
    return cache.shareable.bit_count() == 0 or cache.shareable > cache.mask >> 1


def place(cache: Cache, free: int, counts: Sequence[int]) -> tuple[int, ...] | None:
    """Ways for each count among the free ones, none twice, as far as can be from the rest's end.

    Each is valid; None where there is no room.
    """
    placed: list[int] = []
    for count in counts:
        spots = list(_spots(cache, free, max(count, cache.min_bits)))
        if not spots:
            return None
        mask = spots[0] if grows_up(cache) else spots[-1]
        placed.append(mask)
        free &= ~mask
    return tuple(placed)


def _spots(cache: Cache, free: int, count: int) -> Iterator[int]:
    """Every valid mask of so many of these ways in a row, and with holes one besides."""
    run, found = (1 << count) - 1, False
    for shift in range(free.bit_length() - count + 1):
        if run << shift & ~free == 0:
            found = True
            yield run << shift
    if not found and cache.sparse and free.bit_count() >= count:
        for begin in runs(free):
            if begin.bit_count() >= cache.min_bits:
                spread = _spread(free & -(begin & -begin), count)
                if spread:
                    yield spread


def _spread(free: int, count: int) -> int:
    """So many of these ways from the lowest one on; 0 where there are fewer."""
    found = 0
    for _ in range(count):
        found |= (free & ~found) & -(free & ~found)
    return found if found.bit_count() == count else 0
