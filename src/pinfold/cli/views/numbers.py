"""How numbers are written, on the terminal and on the page of a report alike."""

from __future__ import annotations


def cut_off(percent: float, digits: int) -> float:
    """A percentage that is not rounded to 100 where there is less, nor to 0 where there is some.

    ``digits``: those after the point, with which it is written.
    """
    least = 10.0**-digits
    if 0 < percent < 100:
        return min(max(percent, least), 100 - least)
    return percent
