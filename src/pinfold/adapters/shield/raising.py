"""Raising and lowering a shield: everything else on the machine off some CPUs, and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pinfold.adapters.shield.cpusets import (
    confined_affinities,
    confined_threads,
    cut_others,
    cut_units,
    disable,
    make,
    name_others,
)
from pinfold.adapters.shield.kernel import (
    ONLINE,
    PRESENT,
    Method,
    Place,
    ShieldError,
    ShieldRequestError,
    find_place,
    read_cpus,
)
from pinfold.adapters.shield.moving import (
    TaskCounts,
    catch_strays,
    effective,
    gather,
    heed,
    release,
    settle,
    unsettle,
)
from pinfold.adapters.shield.record import (
    CGROUP,
    RECORD,
    Journal,
    Kind,
    Shield,
    lock,
    read_shield,
)
from pinfold.adapters.shield.values import (
    irqs_of,
    move_irqs,
    restore,
    restore_irqs,
    return_irqs,
    return_units,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.processes import boot_id
from pinfold.ports.errors import PortError

AGENT_TREE = "/pinfold"
"""The agent's cgroup, unless it is configured otherwise."""


class ShieldReport(Struct, frozen=True):
    """What was done.

    ``shield`` is the one that was raised or lowered (None: there was none); ``moved`` counts
    tasks (processes on v2, threads on v1); ``bound`` the kernel's threads that belong to a CPU
    and stay; ``left`` are sentences about what could not be moved; ``irqs_moved`` counts
    interrupts, ``irqs_fixed`` are the numbers of those that cannot be moved; ``notes`` say what
    else is to be known.
    """

    shield: Shield | None
    moved: int = 0
    bound: int = 0
    left: tuple[str, ...] = ()
    irqs_moved: int = 0
    irqs_fixed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


async def raise_shield(  # noqa: PLR0913 - the options, one each
    cpus: CPUSet,
    *,
    irqs: bool = False,
    keep: Sequence[str] = (AGENT_TREE,),
    record: Path = RECORD,
    name: str = CGROUP,
    place: Place | None = None,
) -> ShieldReport:
    """Move everything else on the machine off some CPUs; one that is up already is changed.

    Needs root.  What is about to be changed is written down first, so that after a crash
    :func:`lower_shield`, or this once more, mends it.  When it fails, nothing is left changed; of
    a shield that was up before, what is up is in the record.

    Args:
        cpus: the CPUs to be shielded.
        irqs: move interrupts as well.
        keep: cgroups, from the hierarchy's root, that keep their CPUs: those of who is to run
            there.
        record: the file that remembers it.
        name: our cgroup.
        place: where it is made; None: found.

    Raises:
        ShieldRequestError: these CPUs cannot be shielded; nothing was changed.
        ShieldError: no root, no cpuset controller, or the kernel refuses.
    """
    _check_root()
    online = _check(cpus)
    place = place or find_place()
    others = (online - cpus) & effective(place.root, place.method)
    if not others:
        raise ShieldRequestError(
            f"no CPUs are left for the others: partitions own {online - cpus}",
            "make them members (cpuset.cpus.partition), or shield fewer CPUs",
        )
    async with lock(record):
        old = read_shield(record)
        if old is not None and (old.method, Path(old.root), old.name) != (
            place.method,
            place.root,
            name,
        ):
            await _lower(old, record)
            old = None
        base = old or Shield(cpus, others, place.method, str(place.root), name, boot=boot_id())
        past = base.past if old is None else tuple(dict.fromkeys((*base.past, base.others)))
        journal = Journal(record, base)
        journal.change(
            cpus=cpus,
            others=others,
            past=past,
            keep=tuple(keep),
            irqs=irqs,
            complete=False,
        )
        try:
            return await _raise(journal)
        except PortError as error:
            if old is not None:
                raise _unfinished(error) from None
            try:
                await _lower(journal.shield, record)
            except PortError:
                raise _unfinished(error) from None
            raise


async def lower_shield(
    *, record: Path = RECORD, name: str = CGROUP, place: Place | None = None
) -> ShieldReport:
    """Undo a shield, whoever raised it; where there is none, nothing is done.

    Without a record, the tasks in a cgroup of our name are moved back to the root.

    Args:
        record: the file that remembers it.
        name: our cgroup, for the case that there is no record.
        place: where that is; None: found.

    Raises:
        ShieldError: no root, or the kernel refuses; the record stays, so that it can be repeated.
    """
    _check_root()
    async with lock(record):
        shield = read_shield(record)
        if shield is not None:
            return await _lower(shield, record)
        place = place or find_place()
        online = read_cpus(ONLINE)
        lost = Shield(CPUSet(), online, place.method, str(place.root), name, boot=boot_id())
        if not lost.cgroup.is_dir():
            return ShieldReport(None)
        others = read_cpus(lost.cgroup / "cpuset.cpus")
        report = await _lower(replace(lost, cpus=online - others, others=others), record)
        note = f"there was no record: interrupts and other cgroups than {name} were not looked at"
        return replace(report, notes=(*report.notes, note))


async def _raise(journal: Journal) -> ShieldReport:
    counts = TaskCounts()
    shield = journal.shield
    if shield.method is Method.SYSTEMD:
        await cut_units(journal, counts)
    else:
        make(journal)
        if shield.method is Method.CGROUP2:
            await cut_others(journal, counts)
        else:
            name_others(shield, counts)
    await gather(journal, counts)
    settle(journal.shield)
    strays = await catch_strays(lambda: confined_threads(journal.shield), shield.others)
    counts.left += [f"{one}: may still run elsewhere" for one in strays]
    moved, fixed = 0, list[str]()
    if shield.irqs:
        moved, fixed = move_irqs(journal)
    else:
        counts.notes += return_irqs(journal)
    journal.change(complete=True)
    return ShieldReport(
        shield=journal.shield,
        moved=counts.moved,
        bound=counts.bound,
        left=tuple(counts.left),
        irqs_moved=moved,
        irqs_fixed=tuple(fixed),
        notes=tuple(counts.notes),
    )


async def _lower(shield: Shield, record: Path) -> ShieldReport:
    journal = Journal(record, shield)
    heed(journal, confined_affinities(shield))
    irqs = irqs_of(shield)
    notes = restore_irqs(irqs)
    notes += await restore([v for v in shield.values if v.kind is Kind.CPUSET])
    units = [v for v in shield.values if v.kind is Kind.UNIT]
    notes += await return_units(units, Path(shield.root))
    moved = 0
    if shield.method is not Method.SYSTEMD:
        moved = await release(shield)
        notes += disable(shield)
    unsettle(journal.shield)
    journal.forget()
    return ShieldReport(shield=shield, moved=moved, irqs_moved=len(irqs), notes=notes)


def _check_root() -> None:
    if os.geteuid() != 0:
        raise ShieldError("a shield concerns the whole machine", "run as root")


def _check(cpus: CPUSet) -> CPUSet:
    """See that these CPUs can be shielded; returns those that are online."""
    online, present = read_cpus(ONLINE), read_cpus(PRESENT)
    if not cpus:
        raise ShieldRequestError("no CPUs to shield", "name some, such as 2-7")
    if cpus - present:
        raise ShieldRequestError(
            f"there is no CPU {cpus - present}", f"this machine has CPUs {present}"
        )
    if cpus - online:
        raise ShieldRequestError(f"CPU {cpus - online} is offline", f"online are {online}")
    if not online - cpus:
        raise ShieldRequestError(
            "all CPUs cannot be shielded: the rest of the machine needs at least one",
            f"online are {online}",
        )
    return online


def _unfinished(error: PortError) -> ShieldError:
    return ShieldError(
        f"{error.problem}; the shield is half done",
        "run pinfold shield again, or pinfold shield --off",
    )
