"""What parts of the agent count by themselves, as metrics name it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class Figure(Struct, frozen=True):
    """One number that a part of the agent counts by itself, as metrics name it.

    Attributes:
        name: without the ``_total`` of a counter.
        meaning: in a sentence.
        value: None only makes the name known.
        labels: by name.
        kind: ``counter`` or ``gauge``.
    """

    name: str
    meaning: str
    value: float | None
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: str = "counter"
