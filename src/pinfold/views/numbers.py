"""How numbers are written, on the terminal and on the page of a report alike."""

from __future__ import annotations

from typing import Final

SPACE: Final = "\N{NO-BREAK SPACE}"
"""Between a number and its unit."""
_MANY: Final = 100
"""From here on nobody reads what is after the point."""


def cut_off(percent: float, digits: int) -> float:
    """A percentage that is not rounded to 100 where there is less, nor to 0 where there is some.

    ``digits``: those after the point, with which it is written.
    """
    least = 10.0**-digits
    if 0 < percent < 100:
        return min(max(percent, least), 100 - least)
    return percent


def plain(text: str) -> str:
    """The same for a terminal, whose lines are broken by hand."""
    return text.replace(SPACE, " ")


def count_cell(value: float) -> str:
    """``1,234``: a mean of counts in a column of a table."""
    return f"{value:,.0f}"


def mean_cell(value: float) -> str:
    """``12.5``, ``1,234``: the same of what is no whole number, such as CPUs over time."""
    return f"{value:,.0f}" if value >= _MANY else f"{value:.1f}"


def share_cell(value: float, of: float) -> str:
    """``12.50%``: a share in a column, with as many digits as all others."""
    return f"{cut_off(100 * value / of if of else 0.0, 2):.2f}%"


def number(value: float) -> str:
    """``1,234``, ``12.5``, ``0.04``."""
    if value == round(value):
        return f"{round(value):,}"
    size = abs(value)
    return f"{value:,.0f}" if size >= _MANY else f"{value:.1f}" if size >= 10 else f"{value:.2g}"


def percent(share: float) -> str:
    """``12.5 %``; with more digits where it would be 0 or 100 otherwise, and is not."""
    value = share * 100
    size = abs(value)
    left = abs(100 - size)
    digits = 0 if size in (0, 100) else 1 if size >= 1 else 2 if size >= 0.1 else 3
    if 0 < left < 0.05:
        digits = 2 if left >= 0.005 else 3
    return f"{cut_off(value, digits):.{digits}f}{SPACE}%"


def duration(seconds: float) -> str:
    """``36 h``, ``12.5 days``."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{number(round(seconds / size, 1))}{SPACE}{unit}"
    return f"{number(round(seconds, 1))}{SPACE}s"


def counted(count: int, one: str, many: str = "") -> str:
    """``1 node``, ``1,000 nodes``."""
    return f"{count:,}{SPACE}{one if count == 1 else many or one + 's'}"


def memory(value: float) -> str:
    """``1.5 GiB`` of bytes."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if value >= size:
            return f"{number(round(value / size, 1))}{SPACE}{unit}"
    return f"{number(value)}{SPACE}B"
