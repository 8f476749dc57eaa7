"""Durations as Go writes them: ``10s``, ``1m30s``, ``1.5h``.

Source: ``time.ParseDuration`` of Go, whose words its errors have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
DAY: Final = 86_400
"""Seconds; Go knows no days."""
LONG_UNITS: Final[Mapping[str, float]] = {
    **{unit: _UNITS[unit] for unit in ("ms", "s", "m", "h")},
    "d": DAY,
}
"""Seconds of the units in which experiments and traces tell times."""
_NUMBER_AND_UNIT: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([^0-9.]*)", re.ASCII)
_LONGEST: Final = (2**63 - 1) / 1e9
_SHOWN: Final = 80


class DurationError(ValueError):
    """No duration; the message says what to write."""


def parse_duration(text: str) -> float:
    """Read a duration; its seconds, which may be negative.

    Raises:
        DurationError: anything else.

    >>> parse_duration("1m30s")
    90.0
    """
    shown = text[:_SHOWN]
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0.0
    seconds, end = 0.0, 0
    while rest and end < len(rest):
        part = _NUMBER_AND_UNIT.match(rest, end)
        if part is None:
            end = 0
            break
        if not part[2]:
            raise DurationError(f'time: missing unit in duration "{shown}"; write {shown}s')
        unit = _UNITS.get(part[2].replace("μ", "µ"))
        if unit is None:
            raise DurationError(
                f'time: unknown unit "{part[2][:_SHOWN]}" in duration "{shown}"; '
                "units are ns, us, ms, s, m and h"
            )
        seconds, end = seconds + float(part[1]) * unit, part.end()
    if end == 0 or seconds > _LONGEST:
        raise DurationError(f'time: invalid duration "{shown}"; write one such as 10s or 1m30s')
    return -seconds if text[0] == "-" else seconds
