"""Kinds of cores on a hybrid machine, found and ranked as hwloc does.

Sources of a difference: base and maximum frequency, ``cpu_capacity``, the PMU devices of Intel's
hybrid processors, and on Arm the identification register.  Each source splits the kinds found so
far.  Ranked by capacity where that tells all kinds apart, else by core type and frequency, else
left in the order of discovery (hwloc 2.15, ``topology-linux.c`` and ``cpukinds.c``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from pinfold.adapters.machines.reader import Reader
from pinfold.adapters.machines.tree import CPU_DIRECTORY
from pinfold.core.machine.machine import CpuKind
from pinfold.core.values.cpuset import CPUSet

_CAPACITY: Final = "LinuxCapacity"
_MAX_FREQUENCY: Final = "FrequencyMaxMHz"
_BASE_FREQUENCY: Final = "FrequencyBaseMHz"
_CORE_TYPE: Final = "CoreType"

_CORE_TYPES: Final = {"IntelAtom": 1, "IntelCore": 2}
_PMU_DEVICES: Final = (
    ("cpu_atom", "IntelAtom"),
    ("cpu_core", "IntelCore"),
    ("cpu_lowpower", "IntelLowPower"),
)

_TURBO_PERCENT: Final = 10
"""Maximum frequencies that differ by less are one: some cores of a kind turbo higher."""

_MIDR_ARCHITECTURES: Final[dict[int, str]] = {
    1: "4",
    2: "4T",
    3: "5",
    4: "5T",
    5: "5TE",
    6: "5TEJ",
    7: "6",
    15: "8",
}
_MIDR_FIELDS: Final[tuple[tuple[str, Callable[[int], int], Callable[[int], str]], ...]] = (
    ("CPUImplementer", lambda midr: midr >> 24 & 0xFF, lambda value: f"0x{value:02x}"),
    (
        "CPUArchitecture",
        lambda midr: midr >> 16 & 0xF,
        lambda value: _MIDR_ARCHITECTURES.get(value, "unknown"),
    ),
    ("CPUVariant", lambda midr: midr >> 20 & 0xF, lambda value: f"0x{value:x}"),
    ("CPUPart", lambda midr: midr >> 4 & 0xFFF, lambda value: f"0x{value:03x}"),
    ("CPURevision", lambda midr: midr & 0xF, str),
)


class _Kind(Struct):
    cpus: CPUSet
    info: dict[str, str] = field(default_factory=dict)
    capacity: int | None = None


class _Frequencies(Struct):
    """Of one CPU, in kHz; 0 where unknown."""

    cpu: int
    maximum: int = 0
    base: int = 0
    capacity: int = 0


def read_kinds(reader: Reader, online: CPUSet, architecture: str | None) -> tuple[CpuKind, ...]:
    """The kinds of the online CPUs, ascending; empty if there are not several.

    Raises:
        MachineError: a file is not what it should be.
    """
    arm = architecture is not None and architecture.startswith(("arm", "aarch64"))
    if arm and reader.tree.is_file(_midr_path(0)):
        found = _by_identification(reader, online)
    else:
        found = _by_frequency(reader, online)
        for device, core_type in _PMU_DEVICES:
            cpus = reader.cpu_list(f"sys/devices/{device}/cpus")
            if cpus:
                _register(found, cpus & online, {_CORE_TYPE: core_type}, None)
    if len(found) < 2:
        return ()
    return tuple(
        CpuKind(kind=rank, cpus=kind.cpus, info=MappingProxyType(kind.info))
        for rank, kind in enumerate(_ranked(found))
    )


def _by_frequency(reader: Reader, online: CPUSet) -> list[_Kind]:
    rows, base_known = _frequencies(reader, online)
    if base_known:
        level_turbo(rows)
    found: list[_Kind] = []
    values: tuple[tuple[str, Callable[[_Frequencies], int]], ...] = (
        (_MAX_FREQUENCY, lambda row: row.maximum // 1000),
        (_BASE_FREQUENCY, lambda row: row.base // 1000),
        (_CAPACITY, lambda row: row.capacity),
    )
    for name, value in values:
        for number, cpus in _by_value((row.cpu, value(row)) for row in rows).items():
            _register(found, cpus, {name: str(number)}, number if name == _CAPACITY else None)
    return found


def _frequencies(reader: Reader, online: CPUSet) -> tuple[list[_Frequencies], bool]:
    """The rows, and whether a base frequency is known wherever a maximum is."""
    rows = []
    base_known = True
    # intel_pstate's file is right where it exists; ACPI's nominal frequency is the way out of a
    # machine without it, and either holds for the whole machine.
    use_nominal: bool | None = None
    for cpu in online:
        folder = f"{CPU_DIRECTORY}/cpu{cpu}"
        row = _Frequencies(cpu, maximum=reader.number(f"{folder}/cpufreq/cpuinfo_max_freq") or 0)
        if use_nominal is not True:
            base = reader.number(f"{folder}/cpufreq/base_frequency")
            if base is not None:
                row.base = base
                use_nominal = False
        if use_nominal is not False:
            nominal = reader.number(f"{folder}/acpi_cppc/nominal_freq") or 0
            use_nominal = nominal > 0
            if use_nominal:
                row.base = nominal * 1000
        row.capacity = reader.number(f"{folder}/cpu_capacity") or 0
        base_known = base_known and not (row.maximum and not row.base)
        rows.append(row)
    return rows, base_known


def level_turbo(rows: list[_Frequencies]) -> None:
    """Give CPUs of one base frequency one maximum (the lowest) where they differ little."""
    groups: dict[int, list[_Frequencies]] = {}
    for row in rows:
        groups.setdefault(row.base, []).append(row)
    for group in groups.values():
        low = min(row.maximum for row in group)
        high = max(row.maximum for row in group)
        if low < high and low and (high - low) * 100 < _TURBO_PERCENT * low:
            capacity = min(row.capacity for row in group)
            for row in group:
                row.maximum, row.capacity = low, capacity


def _by_identification(reader: Reader, online: CPUSet) -> list[_Kind]:
    """Arm: CPUs of one MIDR are a kind; told apart by the fields that differ."""
    registers = {cpu: _midr(reader, cpu) for cpu in online}
    kinds = _by_value(registers.items(), ordered=False)
    differing = [
        (name, part, shown)
        for name, part, shown in _MIDR_FIELDS
        if len({part(midr) for midr in kinds}) > 1
    ]
    found: list[_Kind] = []
    for midr, cpus in kinds.items():
        capacity = min(reader.number(f"{CPU_DIRECTORY}/cpu{c}/cpu_capacity") or 0 for c in cpus)
        info = {_CAPACITY: str(capacity)}
        info |= {name: shown(part(midr)) for name, part, shown in differing}
        _register(found, cpus, info, capacity)
    return found


def _midr_path(cpu: int) -> str:
    return f"{CPU_DIRECTORY}/cpu{cpu}/regs/identification/midr_el1"


def _midr(reader: Reader, cpu: int) -> int:
    path = _midr_path(cpu)
    text = reader.text(path)
    if text is None:
        return 0
    try:
        return int(text[:40], 16)
    except ValueError:
        raise reader.error(path, f"{text[:40]!r} is no hexadecimal number") from None


def _by_value(pairs: Iterable[tuple[int, int]], *, ordered: bool = True) -> dict[int, CPUSet]:
    """CPUs by value, 0 left out; lower values likely mean lower performance."""
    masks: dict[int, int] = {}
    for cpu, value in pairs:
        if value > 0:
            masks[value] = masks.get(value, 0) | 1 << cpu
    return {
        value: CPUSet.from_mask(masks[value]) for value in (sorted(masks) if ordered else masks)
    }


def _register(found: list[_Kind], cpus: CPUSet, info: dict[str, str], capacity: int | None) -> None:
    """Split the kinds by whether they are in ``cpus``; those that are get the information."""
    for kind in tuple(found):
        common = kind.cpus & cpus
        if not common:
            continue
        if common == kind.cpus:
            kind.info |= info
            if kind.capacity is None:
                kind.capacity = capacity
        else:
            found.append(_Kind(common, kind.info | info, capacity))
            kind.cpus -= common
        cpus -= common
    if cpus:
        found.append(_Kind(cpus, dict(info), capacity))


def _ranked(found: list[_Kind]) -> list[_Kind]:
    capacities = [kind.capacity for kind in found if kind.capacity is not None]
    if len(set(capacities)) == len(found):
        return sorted(found, key=lambda kind: kind.capacity or 0)
    types = [_CORE_TYPES.get(kind.info.get(_CORE_TYPE, ""), 0) for kind in found]
    frequencies: list[int] = []
    for name in (_BASE_FREQUENCY, _MAX_FREQUENCY):
        frequencies = [int(kind.info.get(name, "0")) for kind in found]
        if all(frequencies):
            break
    if not all(types) and not all(frequencies):
        return found
    values = list(zip(types, frequencies, strict=True))
    if len(set(values)) < len(found):
        return found
    return [found[at] for at in sorted(range(len(found)), key=values.__getitem__)]
