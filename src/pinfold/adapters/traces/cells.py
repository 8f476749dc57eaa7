"""Values as tables of arrivals have them: numbers, times, and rows below a header."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final

from pinfold.adapters.traces.files import damaged, numbered_lines, shown
from pinfold.core.values.duration import LONG_UNITS

MAX_SECONDS: Final = 1e12
MAX_NUMBER: Final = 2**63 - 1
"""The most that the API has of any resource."""
_DECIMAL: Final = re.compile(r"[0-9]{1,400}(?:\.[0-9]{0,400})?(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)
_TIME: Final = re.compile(rf"({_DECIMAL.pattern})({'|'.join(LONG_UNITS)}|)", re.ASCII)
_WHOLE: Final = re.compile(r"[0-9]{1,20}", re.ASCII)


class CellError(ValueError):
    """A text that is no such value; the message says what to write."""


def seconds(text: str, column: str = "") -> float:
    """Read seconds, or a number and its unit: ``90``, ``0.5``, ``1.5h``, ``7d``.

    Raises:
        CellError: anything else, below zero or beyond :data:`MAX_SECONDS`.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        what = "is no time; write seconds, or a number and ms, s, m, h or d"
        raise CellError(f"{column} {shown(text)} {what}".strip())
    value = float(found[1]) * LONG_UNITS[found[2] or "s"]
    if value > MAX_SECONDS:
        raise CellError(f"{column} {shown(text)} is longer than {MAX_SECONDS:g} s".strip())
    return value


def whole(text: str, column: str, most: int = MAX_NUMBER) -> int:
    """Read a whole number from 0 to ``most``; raises CellError."""
    if not _WHOLE.fullmatch(text) or int(text) > most:
        raise CellError(f"{column} {shown(text)} is no whole number from 0 to {most}")
    return int(text)


def rows(
    path: Path, columns: Sequence[str], optional: Sequence[str] = (), *, others: bool
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the rows of a CSV below its header, with their lines; a missing optional cell is "".

    The order of the columns is the header's own.  ``others`` says whether it may have more.

    Raises:
        TraceError: the file cannot be read, a column is missing, unknown or there twice, or a row
            is torn.
    """
    wanted = (*columns, *optional)
    reader = csv.reader((f"{text}\n" for _, text in numbered_lines(path)), strict=True)
    try:
        header = [name.strip() for name in next(reader, ())]
        _check_header(path, header, columns, optional, others=others)
        empty = len(header)
        pick = itemgetter(*(header.index(one) if one in header else empty for one in wanted))
        for row in reader:
            if len(row) == len(header):
                row.append("")
                yield reader.line_num, pick(row)
            elif row:
                what = f"{len(row)} cells, the header has {len(header)}; is the line torn?"
                raise damaged(path, reader.line_num, what)
    except csv.Error as error:
        raise damaged(path, max(reader.line_num, 1), f"no row of a CSV: {error}") from None


def _check_header(
    path: Path, header: list[str], columns: Sequence[str], optional: Sequence[str], *, others: bool
) -> None:
    known = (*columns, *optional)
    listed = ",".join(columns) + "".join(f"[,{name}]" for name in optional)
    if missing := [name for name in columns if name not in header]:
        what = f"no column {missing[0]}; the first line is a header such as {listed}"
        raise damaged(path, 1, what)
    for name in header:
        if name in known and header.count(name) > 1:
            raise damaged(path, 1, f"column {name} is there twice")
        if name not in known and not others:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the columns are {listed}"
            raise damaged(path, 1, f"unknown column {shown(name)}; {hint}")
