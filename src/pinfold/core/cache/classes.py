"""What a class asks for, in the units of a machine."""

from __future__ import annotations

from typing import Final

from pinfold.core.cache.offers import CODE, DATA, Bandwidth, Cache, Offer
from pinfold.core.cache.options import CacheClass

_EIGHTH: Final = 125
"""MB/s in an eighth of a GB/s."""


class NotOfferedError(ValueError):
    """The machine, or the way in which resctrl is mounted, does not have what a class asks for."""


def ways_of(cache: Cache, text: str) -> int:
    """How many ways an amount is: ``4``, or ``25%`` of all, rounded up to what the kernel takes."""
    every = cache.mask.bit_count()
    count = -(-every * int(text[:-1]) // 100) if text.endswith("%") else int(text)
    return max(count, cache.min_bits, 1)


def asked(offer: Offer, asks: CacheClass) -> dict[int, tuple[int, ...]]:
    """How many ways a class asks for, by level of cache; two numbers are for code and for data.

    Raises:
        NotOfferedError: there is no such cache, or its code and data are not apart.
    """
    caches = {cache.level: cache for cache in offer.caches}
    found: dict[int, tuple[int, ...]] = {}
    for level, both, code, data in (
        (3, asks.l3, asks.l3_code, asks.l3_data),
        (2, asks.l2, asks.l2_code, asks.l2_data),
    ):
        if not (both or code or data):
            continue
        if level not in caches:
            raise NotOfferedError(f"resctrl does not divide the L{level} caches here")
        cache = caches[level]
        if both and (code or data):
            raise NotOfferedError(f"l{level} is for code and data: it cannot be given with either")
        if both:
            found[level] = (ways_of(cache, both),)
        elif not (code and data):
            raise NotOfferedError(f"l{level}Code and l{level}Data are given together, or neither")
        elif cache.lines != (cache.name + CODE, cache.name + DATA):
            option = "cdp" if level == 3 else "cdpl2"
            raise NotOfferedError(f"resctrl is not mounted with {option}")
        else:
            found[level] = (ways_of(cache, code), ways_of(cache, data))
    return found


def limit(bandwidth: Bandwidth | None, text: str) -> int | None:
    """A limit of memory bandwidth as the kernel takes it; None: there is none.

    Raises:
        NotOfferedError: there are no limits here, or they are in another unit.
    """
    if not text:
        return None
    if bandwidth is None:
        raise NotOfferedError("resctrl does not limit memory bandwidth here")
    is_share = text.endswith("%")
    if is_share != (bandwidth.unit == "%"):
        said = "a share of it" if is_share else "MBps"
        counted = "shares" if bandwidth.unit == "%" else "MBps"
        raise NotOfferedError(
            f"memory bandwidth is limited in {counted} here (give the class {counted}), not {said}"
        )
    amount = int(text.removesuffix("%").removesuffix("MBps"))
    if bandwidth.unit == "GBps/8":
        amount = -(-amount // _EIGHTH)
    step = max(bandwidth.step, 1)
    return max(-(-max(amount, bandwidth.minimum) // step) * step, 1)
