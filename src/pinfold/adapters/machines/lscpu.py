"""A machine from lscpu's tables (util-linux): ``lscpu -J -e`` and ``lscpu -p``.

They have one row for each CPU.  lscpu knows neither memory nor distances, and numbers cores and
caches itself, so there are no ids of uncore caches.  Plain ``lscpu -J`` is read by
:mod:`pinfold.adapters.machines.lscpu_summary`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.adapters.machines.json_document import convert, decode
from pinfold.core.machine.machine import Machine, MachineError, NUMANode
from pinfold.core.machine.rows import CacheFacts, CpuRow, group_rows
from pinfold.core.values.cpuset import MAX_CPU, CPUSet
from pinfold.documents.machine import MAX_ITEMS

SOURCE: Final = "lscpu"
COMMAND: Final = "lscpu -J -e=CPU,NODE,DRAWER,BOOK,SOCKET,CORE,CACHE,ONLINE"

WHAT: Final = f"lscpu's JSON; write it again with: {COMMAND}"
_UNKNOWN: Final = ("", "-")
_YES: Final = ("yes", "y", "true", "1")
_NO: Final = ("no", "n", "false", "0")
# lscpu up to 2.38 writes a bare '-' for an unknown number, which is no JSON.
_BARE_DASH = re.compile(rb'("[^"\n]{1,64}": )-(?=\s*[,}\n])')
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

_Row = dict[str, str | int | float | bool | None]


class _Table(Struct):
    cpus: list[_Row]


def decode_lscpu(data: bytes, *, name: str) -> Any:  # noqa: ANN401 - any JSON value
    """Decode lscpu's JSON; the bare ``-`` of older versions is null; raises MachineError."""
    return decode(_BARE_DASH.sub(rb"\1null", data), name=name)


def machine_from_lscpu(value: object, *, name: str, file: str | None = None) -> Machine:
    """Read the decoded JSON of ``lscpu -J -e``; ``file`` is its name for messages, else ``name``.

    Raises:
        MachineError: no such JSON, or columns that are missing; the message has the lscpu
            command that writes them.
    """
    file = file or name
    try:
        table = convert(value, _Table, name=file, what=WHAT)
        return _from_rows([_lower(row) for row in table.cpus], name)
    except MachineError as error:
        raise named(file, error) from error


def is_parsable(text: str) -> bool:
    """Whether a text is of ``lscpu -p``: it has a comment line with the names of the columns."""
    return any(_column_names(line) for line in text[:4096].splitlines())


def machine_from_parsable(text: str, *, name: str, file: str | None = None) -> Machine:
    """Read ``lscpu -p``: comma separated rows under a ``# CPU,Core,Socket,...`` line.

    Raises:
        MachineError: as :func:`machine_from_lscpu`.
    """
    file = file or name
    columns: list[str] = []
    rows: list[_Row] = []
    try:
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("#"):
                columns = _column_names(line) or columns
            elif line.strip():
                cells = line.strip().split(",")
                rows.append(_parsable_row(columns, cells, number))
        return _from_rows(rows, name)
    except MachineError as error:
        raise named(file, error) from error


def _column_names(line: str) -> list[str]:
    words = line[1:].strip().lower().split(",")
    return words if line.startswith("#") and "cpu" in words else []


def _parsable_row(columns: list[str], cells: list[str], line: int) -> _Row:
    # Trailing cells are left out where a CPU has no such cache.
    if not columns or len(cells) > len(columns):
        raise MachineError(f"line {line} does not fit the column names above it")
    return dict(zip(columns, cells, strict=False))


def named(file: str, error: MachineError) -> MachineError:
    """The error with the file's name in front, once."""
    text = str(error)
    return error if text.startswith(f"{file}: ") else MachineError(f"{file}: {text}")


def _lower(row: _Row) -> _Row:
    return {key.lower(): value for key, value in row.items()}


def _from_rows(rows: list[_Row], name: str) -> Machine:
    if not rows or len(rows) > MAX_ITEMS:
        raise MachineError(f"{len(rows)} rows of CPUs; capture it again with: {COMMAND}")
    for column in ("cpu", "core", "socket"):
        if not any(column in row for row in rows):
            raise MachineError(f"column {column.upper()} is missing; capture with: {COMMAND}")
    some_node = any(_number(row, "node") is not None for row in rows)
    placed: list[CpuRow] = []
    offline: list[int] = []
    caches: dict[Hashable, CacheFacts] = {}
    for row in rows:
        cpu = _number(row, "cpu")
        if cpu is None or cpu > MAX_CPU:
            raise MachineError(f"a row has the CPU {str(row.get('cpu'))[:20]!r}")
        core = _number(row, "core")
        if not _online(row, cpu, known=core is not None):
            offline.append(cpu)
            continue
        if core is None:
            raise MachineError(f"CPU {cpu} is online but has no CORE; capture with: {COMMAND}")
        socket = _number(row, "socket")
        # Old versions count cores within a socket, and s390x sockets within book and drawer.
        package = (_number(row, "drawer"), _number(row, "book"), socket)
        node = _number(row, "node")
        l3 = _l3(row, cpu)
        if l3 is not None:
            caches[l3] = CacheFacts()
        placed.append(
            CpuRow(
                cpu,
                core=(package, core),
                package=package,
                l3=l3,
                core_id=core,
                socket=socket,
                # A kernel without NUMA has one node; else the node of this CPU is offline.
                numa=(node,) if node is not None else () if some_node else (0,),
            )
        )
    packages = sorted({row.package for row in placed}, key=str)
    if len(packages) > 1 and not any("node" in row for row in rows):
        raise MachineError(f"column NODE is missing; capture with: {COMMAND}")
    if len({row.socket for row in placed}) < len(packages):
        # Socket numbers repeat in every book: they are no ids of the machine's.
        numbers = {package: number for number, package in enumerate(packages)}
        placed = [replace(row, socket=numbers[row.package]) for row in placed]
    return build_machine(placed, CPUSet(offline), caches, name)


def build_machine(
    rows: Iterable[CpuRow],
    offline: CPUSet,
    caches: Mapping[Hashable, CacheFacts],
    name: str,
) -> Machine:
    """The machine of the rows; lscpu names no node that has no CPU in them; raises MachineError."""
    groups = group_rows(rows, offline=offline, caches=caches)
    cpus_of: dict[int, list[int]] = {}
    for cpu in groups.cpus:
        if cpu.numa is not None:
            cpus_of.setdefault(cpu.numa, []).append(cpu.cpu)
    return Machine(
        name=name,
        source=SOURCE,
        cpus=groups.cpus,
        numa_nodes=tuple(NUMANode(node, CPUSet(cpus)) for node, cpus in sorted(cpus_of.items())),
        sockets=groups.sockets,
        cores=groups.cores,
        l3=groups.l3,
    )


def _number(row: _Row, column: str) -> int | None:
    value = row.get(column)
    if value is None or value in _UNKNOWN:
        return None
    if isinstance(value, bool) or _NUMBER.fullmatch(str(value)) is None:
        raise MachineError(f"{column.upper()} of a row is {str(value)[:20]!r}, no number")
    return int(value)


def _online(row: _Row, cpu: int, *, known: bool) -> bool:
    value = row.get("online")
    if value is None or value in _UNKNOWN:
        # -p prints online CPUs only; -e leaves the places of offline ones empty.
        return known
    word = str(value).lower()
    if word not in _YES + _NO:
        raise MachineError(
            f"ONLINE of CPU {cpu} is {word[:20]!r}, not yes or no; capture with: LC_ALL=C {COMMAND}"
        )
    return word in _YES


def _l3(row: _Row, cpu: int) -> Hashable | None:
    """The number of the level 3 cache: a column of its own (-p) or a part of L1d:L1i:L2:L3."""
    if "l3" in row:
        number = _number(row, "l3")
        return None if number is None else ("l3", number)
    for column, value in row.items():
        levels = column.split(":")
        if "l3" not in levels or value is None:
            continue
        parts = str(value).split(":")
        position = levels.index("l3")
        if position >= len(parts) or parts[position] in _UNKNOWN:
            return None
        if _NUMBER.fullmatch(parts[position]) is None:
            raise MachineError(f"{column.upper()} of CPU {cpu} is {str(value)[:40]!r}")
        return ("l3", int(parts[position]))
    return None
