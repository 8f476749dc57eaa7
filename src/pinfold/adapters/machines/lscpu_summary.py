"""A machine from plain ``lscpu -J``, which counts instead of listing.

It is taken where the counts leave one answer, and refused where they do not: a wrong guess at
sibling threads, or at the sockets of NUMA nodes, would give every plan wrong CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.adapters.machines.json_document import convert, cpu_set
from pinfold.adapters.machines.lscpu import COMMAND, WHAT, build_machine, named
from pinfold.core.machine.machine import Machine, MachineError, NUMANode
from pinfold.core.machine.rows import CacheFacts, CpuRow
from pinfold.core.values.cpuset import CPUSet

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_NODE_CPUS = re.compile(r"NUMA node(\d{1,9}) CPU\(s\)", re.ASCII)
_INSTANCES = re.compile(r"\((\d{1,9}) instances?\)", re.ASCII)
_SIZE = re.compile(r"(\d{1,15}) ?([KMG]?)(?:iB)?(?![\d.])", re.ASCII)
_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30}


class _Field(Struct):
    field: str
    data: str | int | float | None = None
    children: list[_Field] | None = None


class _Summary(Struct):
    lscpu: list[_Field]


def machine_from_lscpu_summary(value: object, *, name: str, file: str | None = None) -> Machine:
    """Read the decoded JSON of plain ``lscpu -J``; ``file``: its name for messages, else ``name``.

    Taken are machines with one thread per core and all CPUs online, in one socket or with one
    NUMA node per socket, whose level 3 caches are one per socket, node or CPU.

    Raises:
        MachineError: no such JSON, or counts that do not say where the CPUs are; the message has
            the lscpu command that does.
    """
    file = file or name
    summary = convert(value, _Summary, name=file, what=WHAT)
    try:
        return _from_summary(_flatten(summary.lscpu), name)
    except MachineError as error:
        raise named(file, error) from error


def _flatten(fields: Iterable[_Field]) -> dict[str, str]:
    """Newer versions nest the fields; the first of a name counts."""
    found: dict[str, str] = {}
    open_fields = list(fields)[::-1]
    while open_fields:
        field = open_fields.pop()
        if field.data is not None:
            found.setdefault(field.field.strip().removesuffix(":"), str(field.data).strip())
        open_fields += (field.children or ())[::-1]
    return found


def _from_summary(fields: Mapping[str, str], name: str) -> Machine:
    online = cpu_set(_field(fields, "On-line CPU(s) list"), name=name, place="On-line CPU(s) list")
    off_text = fields.get("Off-line CPU(s) list", "")
    offline = cpu_set(off_text, name=name, place="Off-line CPU(s) list")
    nodes = {
        int(match[1]): cpu_set(data, name=name, place=field)
        for field, data in fields.items()
        if (match := _NODE_CPUS.fullmatch(field))
    } or {0: online}
    sockets = _count(fields, "Socket(s)")
    threads = _count(fields, "Thread(s) per core")
    if threads != 1:
        raise _undetermined(f"which of {len(online)} CPUs are siblings ({threads} per core)")
    if sockets * _count(fields, "Core(s) per socket") != len(online):
        raise _undetermined("where the CPUs are: some are offline, or sockets are uneven")
    with_cpus = {node: cpus & online for node, cpus in nodes.items() if cpus & online}
    if sockets not in (1, len(with_cpus)):
        raise _undetermined(f"which of {len(nodes)} NUMA nodes are in which of {sockets} sockets")
    node_of = {cpu: node for node, cpus in sorted(with_cpus.items()) for cpu in cpus}
    place = {node: position for position, node in enumerate(sorted(with_cpus))}
    l3, size = _summary_l3(fields, sockets, len(with_cpus), len(online))
    rows: list[CpuRow] = []
    for cpu in online:
        if cpu not in node_of:
            raise MachineError(f"CPU {cpu} is in no NUMA node; capture with: {COMMAND}")
        socket = 0 if sockets == 1 else place[node_of[cpu]]
        cache = {"socket": socket, "node": node_of[cpu], "cpu": cpu}.get(l3)
        rows.append(
            CpuRow(
                cpu,
                core=cpu,
                package=socket,
                l3=cache,
                core_id=cpu,
                socket=socket,
                numa=(node_of[cpu],),
            )
        )
    caches = {row.l3: CacheFacts(size=size) for row in rows if row.l3 is not None}
    machine = build_machine(rows, offline, caches, name)
    empty = (NUMANode(node, CPUSet()) for node in nodes if node not in with_cpus)
    return replace(
        machine,
        numa_nodes=tuple(sorted((*machine.numa_nodes, *empty), key=lambda node: node.id)),
        architecture=fields.get("Architecture"),
        cpu_model=fields.get("Model name"),
    )


def _summary_l3(
    fields: Mapping[str, str], sockets: int, nodes: int, cpus: int
) -> tuple[str, int | None]:
    """What has a level 3 cache of its own (``socket``, ``node``, ``cpu`` or ``""``), its size."""
    text = fields.get("L3 cache") or fields.get("L3")
    if not text:
        return "", None
    match = _INSTANCES.search(text)
    if match is None:
        if cpus == 1:
            return "cpu", None
        raise _undetermined("which CPUs share a level 3 cache")
    instances = int(match[1])
    # The coarsest first: equal counts are the same CPUs, as every node is in one socket.
    for holder, count in (("socket", sockets), ("node", nodes), ("cpu", cpus)):
        if instances == count:
            return holder, _size(text, instances)
    raise _undetermined(f"which CPUs share one of {instances} level 3 caches")


def _size(text: str, instances: int) -> int | None:
    """Bytes of one instance; lscpu prints the sum, None where it is rounded ("1.5 MiB")."""
    match = _SIZE.match(text)
    return None if match is None else (int(match[1]) << _UNITS[match[2]]) // instances


def _undetermined(what: str) -> MachineError:
    return MachineError(f"plain lscpu -J does not say {what}; capture with: {COMMAND}")


def _field(fields: Mapping[str, str], field: str) -> str:
    if field not in fields:
        raise MachineError(
            f"field {field!r} is missing (it must be lscpu's English output); "
            f"capture with: LC_ALL=C {COMMAND}"
        )
    return fields[field]


def _count(fields: Mapping[str, str], field: str) -> int:
    text = _field(fields, field)
    if _NUMBER.fullmatch(text) is None or int(text) == 0:
        raise MachineError(f"{field} is {text[:20]!r}, no count; capture with: {COMMAND}")
    return int(text)
