"""Which part of the caches a container is to have, before anybody knows what is left."""

from __future__ import annotations

from collections.abc import Mapping

from pinfold.core.cache.options import NO_CLASS, CacheClass, CacheOptions
from pinfold.core.pod.annotations import CACHE


def class_of(
    annotations: Mapping[str, str], container: str, options: CacheOptions, *, owns: bool
) -> str:
    """The class of a container, of which it is known whether it owns CPUs; "" where it has none."""
    said = CACHE.of(annotations, container)
    if said is None:
        return options.exclusive if owns else ""
    return "" if said == NO_CLASS else said


def in_words(name: str, asks: CacheClass) -> str:
    """A class and what it asks for: ``fast (l3 4, memoryBandwidth 50%)``."""
    said = (
        (one, getattr(asks, field))
        for one, field in zip(asks.__struct_encode_fields__, asks.__struct_fields__, strict=True)
    )
    parts = ", ".join(
        f"{one} {amount}" for one, amount in said if isinstance(amount, str) and amount
    )
    return f"{name} ({parts or 'nothing of its own'})"
