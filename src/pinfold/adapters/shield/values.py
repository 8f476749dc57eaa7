"""Values that are sets of CPUs: of cgroups, interrupts and systemd's units; changed and restored.

Source: ``cpuset(7)``, the kernel's ``core-api/irq/irq-affinity``, ``systemd.resource-control(5)``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pinfold.adapters.shield.kernel import (
    ONLINE,
    PRESENT,
    ShieldError,
    exists,
    failure,
    read_cpus,
    write,
)
from pinfold.adapters.shield.record import Journal, Kind, SavedValue, Shield
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.linux import interrupts

_OURS: Final = "the shield"
_SYSTEMCTL_WAIT: Final = 60.0
_LOOKS: Final = 25
_LOOK_PAUSE: Final = 0.02


async def get(kind: Kind, place: str) -> CPUSet:
    """Read a cgroup's or a unit's; raises ShieldError."""
    if kind is not Kind.UNIT:
        return read_cpus(Path(place))
    text = await _systemctl("show", "--property=AllowedCPUs", "--value", place)
    try:
        return CPUSet.parse(",".join(text.split()))
    except CPUSetError as error:
        raise ShieldError(f"{place}: {error}") from None


async def put(kind: Kind, place: str, cpus: CPUSet) -> None:
    """Write a cgroup's or a unit's; raises ShieldError."""
    if kind is Kind.UNIT:
        await _systemctl("set-property", "--runtime", place, f"AllowedCPUs={cpus}")
    else:
        write(Path(place), str(cpus))


async def change(journal: Journal, kind: Kind, place: str, cpus: CPUSet) -> None:
    """Note what a value is, then write another; raises ShieldError."""
    now = await get(kind, place)
    journal.about_to_write([SavedValue(kind=kind, place=place, before=now, written=(cpus,))])
    await put(kind, place, cpus)


def before(journal: Journal, kind: Kind, place: str) -> CPUSet | None:
    """What a value was before the shield, where the record knows it."""
    for value in journal.shield.values:
        if (value.kind, value.place) == (kind, place):
            return value.before
    return None


async def restore(values: Iterable[SavedValue]) -> tuple[str, ...]:
    """Give cgroups and units back what they had; sentences about those where that is not so.

    What is gone is passed over, and so is what somebody else has changed.  A cgroup that had no
    CPUs of its own gets all of the machine's while it has tasks: the kernel takes the empty list
    only without (ENOSPC), and both mean the same.

    Raises:
        ShieldError: one is not taken back.
    """
    notes = []
    for value in values:
        if value.kind is not Kind.UNIT and not exists(value.place):
            continue
        now = await get(value.kind, value.place)
        if now == value.before or is_all(value, now):
            continue
        if not value.is_ours(now):
            notes.append(value.left(now, _OURS))
            continue
        try:
            await put(value.kind, value.place, value.before)
        except ShieldError:
            if value.kind is Kind.CPUSET and not value.before and exists(value.place):
                await put(value.kind, value.place, read_cpus(PRESENT))
            elif value.kind is Kind.UNIT or exists(value.place):
                raise
    return tuple(notes)


def is_all(value: SavedValue, now: CPUSet) -> bool:
    """Whether a value is what stands for the empty list that it was."""
    return not value.before and now == read_cpus(PRESENT)


async def return_units(units: Sequence[SavedValue], root: Path) -> tuple[str, ...]:
    """Restore systemd's units, and see that the kernel gives them more again.

    Raises:
        ShieldError: systemd does not do it.
    """
    notes = await restore(units)
    for unit in units:
        lost = read_cpus(ONLINE) - unit.written[-1]
        file = root / unit.place / "cpuset.cpus.effective"
        if unit.before or not exists(file) or await get(Kind.UNIT, unit.place):
            continue
        for _ in range(_LOOKS):
            if not exists(file) or read_cpus(file) & lost:
                break
            await asyncio.sleep(_LOOK_PAUSE)
        else:
            # The kernel has refused systemd the empty list; all CPUs mean the same.
            await put(Kind.UNIT, unit.place, read_cpus(PRESENT))
    return notes


def move_irqs(journal: Journal) -> tuple[int, list[str]]:
    """Move interrupts to the others' CPUs.

    Returns:
        How many now avoid the shielded CPUs because of it, and the numbers of those that the
        kernel (or the hardware) does not let move.

    Raises:
        ShieldError: the record could not be written, or there is no list of interrupts.
    """
    shield = journal.shield
    saved = {value.place: value for value in irqs_of(shield)}
    try:
        wanted = interrupts.wanted(saved, shield.cpus, shield.others)
    except OSError as error:
        raise failure(interrupts.PROC_IRQ, error) from None
    journal.about_to_write(
        SavedValue(
            kind=Kind.IRQ_DEFAULT if one.place == interrupts.DEFAULT else Kind.IRQ,
            place=one.place,
            before=one.before,
            written=one.written,
        )
        for one in wanted
    )
    written = interrupts.write_all(wanted)
    moved = sum(place != interrupts.DEFAULT for place in written.done)
    return moved, [interrupts.number_of(place) for place in written.refused]


def return_irqs(journal: Journal) -> tuple[str, ...]:
    """Restore the interrupts, and forget that they were moved; raises ShieldError."""
    irqs = irqs_of(journal.shield)
    notes = restore_irqs(irqs)
    if irqs:
        journal.change(values=tuple(v for v in journal.shield.values if v not in irqs))
    return notes


def restore_irqs(irqs: Iterable[SavedValue]) -> tuple[str, ...]:
    """Restore interrupts; sentences about those where that is not so."""
    return interrupts.restore(irqs, _OURS)


def irqs_of(shield: Shield) -> list[SavedValue]:
    """The interrupts that were moved, and the default."""
    return [v for v in shield.values if v.kind in (Kind.IRQ, Kind.IRQ_DEFAULT)]


async def _systemctl(*arguments: str) -> str:
    command = f"systemctl {' '.join(arguments)}"
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ShieldError(f"{command}: {error.strerror or error}") from None
    try:
        async with asyncio.timeout(_SYSTEMCTL_WAIT):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ShieldError(f"{command}: no answer in {_SYSTEMCTL_WAIT:.0f} s") from None
    if process.returncode != 0:
        said = err.decode(errors="replace").strip().splitlines()
        raise ShieldError(f"{command}: {said[-1] if said else f'status {process.returncode}'}")
    return out.decode(errors="replace").strip()
