"""Arrivals of a table: a CSV with the columns that docs/reference/traces.md lists."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise, repeat
from math import inf
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.adapters.traces.cells import MAX_NUMBER, CellError, rows, seconds, whole
from pinfold.adapters.traces.files import damaged, shown
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.quantity import Quantity, QuantityError
from pinfold.core.values.resource_names import is_extended
from pinfold.ports.arrivals import Arrival, PodSize, TraceError

COLUMNS: Final = ("at", "lifetime", "cpu", "memory")
OPTIONAL: Final = ("qos", "devices", "count")
FOR_EVER: Final = "inf"
MAX_ROWS: Final = 20_000_000
MAX_COUNT: Final = 1_000_000
"""Pods of one row."""
_MAX_DEVICES: Final = 2**31 - 1
_QOS: Final = {"": None, **{one.value: one for one in QOSClass}}


class ArrivalTable(Struct, frozen=True):
    """The arrivals of a CSV file, which may be packed with gzip or xz; nothing of it is drawn."""

    file: str

    def files(self) -> tuple[Path]:
        """The table."""
        return (Path(self.file),)

    def tells_a_class(self) -> bool:
        """Whether a row has one; True where that cannot be read, which :meth:`arrivals` tells."""
        path = Path(self.file)
        if not path.is_file():
            return True
        try:
            return any(cells[-1] for _, cells in rows(path, COLUMNS, ("qos",), others=True))
        except TraceError:
            return True

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """Read the whole table, then yield its pods in the order of their time; the first at 0.

        Raises:
            TraceError: the file is missing or damaged.
        """
        del seed
        return _Table(Path(self.file)).in_order()


class _Table:
    """The rows of a file, in a few bytes each; raises TraceError."""

    def __init__(self, path: Path) -> None:
        self._at = array("d")
        self._lifetimes = array("d")
        self._counts = array("L")
        self._sizes = array("L")
        self._known: dict[PodSize, int] = {}
        numbers: dict[tuple[str, ...], int] = {}
        for line, (at, lifetime, *asked, count) in rows(path, COLUMNS, OPTIONAL, others=False):
            if len(self._at) == MAX_ROWS:
                raise damaged(path, line, f"more than {MAX_ROWS} rows; simulate a part of them")
            try:
                self._at.append(seconds(at, "at"))
                self._lifetimes.append(
                    inf if lifetime == FOR_EVER else seconds(lifetime, "lifetime")
                )
                self._counts.append(_count(count))
                number = numbers.get(texts := tuple(asked))
                if number is None:
                    # Some say the same in other words; they share one size.
                    number = self._known.setdefault(_size(*asked), len(self._known))
                    numbers[texts] = number
            except CellError as error:
                raise damaged(path, line, str(error)) from None
            self._sizes.append(number)

    def in_order(self) -> Iterator[Arrival]:
        """The pods by their time; of one time in the order of the rows."""
        at = self._at
        places: range | list[int] = range(len(at))
        if any(later < sooner for sooner, later in pairwise(at)):
            places = sorted(places, key=at.__getitem__)
        first = at[places[0]] if at else 0.0
        sizes = list(self._known)
        for place in places:
            one = Arrival(at[place] - first, self._lifetimes[place], sizes[self._sizes[place]])
            yield from repeat(one, self._counts[place])


def _count(text: str) -> int:
    return whole(text, "count", MAX_COUNT) if text else 1


def _size(cpu: str, memory: str, qos: str, devices: str) -> PodSize:
    if qos not in _QOS:
        listed = ", ".join(one.value for one in QOSClass)
        raise CellError(f"qos {shown(qos)} is no class of a pod; it is {listed} or left empty")
    return PodSize(
        _quantity("cpu", cpu).milli_value(),
        _quantity("memory", memory).value(),
        tuple(sorted(_devices(devices))),
        _QOS[qos],
    )


def _quantity(column: str, text: str) -> Quantity:
    try:
        found = Quantity.parse(text)
    except QuantityError:
        raise CellError(f"{column} {shown(text)} is no quantity such as 2, 500m or 4Gi") from None
    if found.sign < 0 or found.milli_value() > MAX_NUMBER:
        raise CellError(f"{column} {shown(text)} is below zero or more than there is of anything")
    return found


def _devices(text: str) -> Iterator[tuple[str, int]]:
    """Read ``name=n;name=n``; none of it is none."""
    names: set[str] = set()
    for part in text.split(";") if text else ():
        name, _, count = part.partition("=")
        if not is_extended(name):
            raise CellError(
                f"devices {shown(part)}: write name=n;name=n, each name that of an extended "
                "resource such as example.com/gpu"
            )
        if name in names:
            raise CellError(f"devices: {name} is there twice")
        names.add(name)
        yield name, whole(count, f"devices: {name}", _MAX_DEVICES)
