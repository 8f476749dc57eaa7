"""The cgroups beside ours: on v2 their CPUs are cut, on v1 they are only named.

Under systemd it is the slices of services and users whose CPUs are cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pinfold.adapters.shield.kernel import (
    PRESENT,
    Method,
    ShieldError,
    exists,
    folders,
    innermost_first,
    read,
    read_cpus,
    write,
)
from pinfold.adapters.shield.moving import TaskCounts, effective, narrow
from pinfold.adapters.shield.record import Journal, Kind, SavedAffinity, Shield
from pinfold.adapters.shield.values import before, change, get
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.kernel_files import read_ids

UNITS: Final = ("system.slice", "user.slice", "init.scope")
_SUBTREE: Final = "cgroup.subtree_control"
_SYSTEMD_LOOKS: Final = 100
_SYSTEMD_PAUSE: Final = 0.02


def make(journal: Journal) -> None:
    """Make our cgroup, or give it other CPUs; raises ShieldError."""
    shield = journal.shield
    root = Path(shield.root)
    if shield.method is Method.CGROUP2 and "cpuset" not in read(root / _SUBTREE).split():
        journal.change(enabled=True)
        write(root / _SUBTREE, "+cpuset")
    try:
        shield.cgroup.mkdir(exist_ok=True)
    except OSError as error:
        raise ShieldError(f"{shield.cgroup}: making the cgroup: {error.strerror}") from None
    if shield.method is Method.CGROUP1:
        write(shield.cgroup / "cpuset.mems", read(root / "cpuset.effective_mems"))
    write(shield.cgroup / "cpuset.cpus", str(shield.others))
    given = effective(shield.cgroup, shield.method)
    if not given or given - shield.others:
        raise ShieldError(
            f"{shield.cgroup}: asked for CPUs {shield.others}, the kernel gives {given or 'none'}",
            "a partition (cpuset.cpus.partition) of another cgroup may own them",
        )


async def cut_others(journal: Journal, counts: TaskCounts) -> None:
    """Take the shielded CPUs from the cgroups beside ours (v2).

    A cgroup whose own CPUs are all shielded ones is left: it would be left with none.

    Raises:
        ShieldError: the kernel does not do it.
    """
    shield = journal.shield
    for folder in folders(Path(shield.root)):
        if folder == shield.cgroup or _is_kept(shield, folder, counts):
            continue
        file = str(folder / "cpuset.cpus")
        now = await get(Kind.CPUSET, file)
        first = before(journal, Kind.CPUSET, file)
        first = now if first is None else first
        partition = read(folder / "cpuset.cpus.partition")
        target = first & shield.others if first else shield.others
        if partition != "member":
            counts.left.append(f"cgroup {folder}: a partition ({partition})")
            target = now
        elif not target:
            counts.left.append(f"cgroup {folder}: all its CPUs ({first}) are shielded ones")
            target = first
        if target != now:
            for inner in innermost_first(folder):
                tids = read_ids(inner / "cgroup.threads")
                journal.about_to_move(narrow(tids, effective(inner, shield.method)))
            await change(journal, Kind.CPUSET, file, target)


def name_others(shield: Shield, counts: TaskCounts) -> None:
    """Name the cpusets that may use shielded CPUs and have tasks (v1)."""
    for folder in folders(Path(shield.root)):
        if folder == shield.cgroup or shield.keeps(folder):
            continue
        for inner in innermost_first(folder):
            count = len(read_ids(inner / "tasks"))
            shared = effective(inner, shield.method) & shield.cpus
            if count and shared:
                counts.left.append(f"cpuset {inner}: {count} task(s) that may run on CPUs {shared}")


async def cut_units(journal: Journal, counts: TaskCounts) -> None:
    """Take the shielded CPUs from systemd's slices of services and users, and from itself.

    Raises:
        ShieldError: systemd does not do it, or a cgroup that is to be kept lies in one of them.
    """
    shield = journal.shield
    root = Path(shield.root)
    inside = [kept for kept in shield.keep if kept.lstrip("/").partition("/")[0] in UNITS]
    for kept in inside:
        if exists(root / kept.lstrip("/")):
            raise ShieldError(
                f"{kept} is to keep its CPUs and lies in a slice that is to lose them",
                "run it in a slice of its own (Slice=pinfold.slice)",
            )
    cut = [unit for unit in UNITS if exists(root / unit)]
    for unit in cut:
        now = await get(Kind.UNIT, unit)
        first = before(journal, Kind.UNIT, unit)
        first = now if first is None else first
        target = (first & shield.others) if first else shield.others
        if not target:
            counts.left.append(f"{unit}: all its CPUs ({first}) are shielded ones")
            target = first
        if target != now:
            await change(journal, Kind.UNIT, unit, target)
        if first is not target:
            await _until_cut(root / unit, shield.cpus)
    for folder in folders(root):
        if folder.name in cut or shield.keeps(folder):
            continue
        shared = effective(folder, shield.method) & shield.cpus
        if shared and "populated 1" in read(folder / "cgroup.events").splitlines():
            counts.left.append(
                f"{folder.name}: may run on CPUs {shared} "
                f"(systemctl set-property --runtime {folder.name} AllowedCPUs={shield.others})"
            )


async def _until_cut(folder: Path, cpus: CPUSet) -> None:
    """Systemd writes a cgroup's files a moment after it has answered."""
    for _ in range(_SYSTEMD_LOOKS):
        if not effective(folder, Method.SYSTEMD) & cpus:
            return
        await asyncio.sleep(_SYSTEMD_PAUSE)
    raise ShieldError(f"{folder}: systemd has set AllowedCPUs=, but the kernel still gives {cpus}")


def confined_threads(shield: Shield) -> list[int]:
    """Every thread in our cgroup, or in one whose CPUs were cut."""
    return [tid for _, tids in _confined(shield) for tid in tids]


def confined_affinities(shield: Shield) -> list[SavedAffinity]:
    """The affinities of those of them that may not use all that their cgroup may."""
    return [
        saved
        for folder, tids in _confined(shield)
        for saved in narrow(tids, effective(folder, shield.method))
    ]


def _confined(shield: Shield) -> Iterator[tuple[Path, list[int]]]:
    cut = {
        Path(value.place).parent
        for value in shield.values
        if value.kind is Kind.CPUSET and not value.written[-1] & shield.cpus
    }
    name = "tasks" if shield.method is Method.CGROUP1 else "cgroup.threads"
    for folder in (shield.cgroup, *cut):
        for inner in innermost_first(folder):
            yield inner, read_ids(inner / name)


def disable(shield: Shield) -> tuple[str, ...]:
    """Switch the cpuset controller off again, if it was off and nobody uses it now (v2)."""
    root = Path(shield.root)
    if not shield.enabled or "cpuset" not in read(root / _SUBTREE).split():
        return ()
    ours = {value.place for value in shield.values if not value.before}
    for folder in folders(root):
        for name in ("cpuset.cpus", "cpuset.mems"):
            # The others' CPUs, which are put back as a list of all of them, go with the controller.
            if str(folder / name) in ours and read_cpus(folder / name) == read_cpus(PRESENT):
                continue
            if (folder / name).exists() and read_cpus(folder / name):
                return (f"the cpuset controller stays on: {folder} uses it",)
    try:
        write(root / _SUBTREE, "-cpuset")
    except ShieldError:
        return ("the cpuset controller stays on: a cgroup below uses it",)
    return ()


def _is_kept(shield: Shield, folder: Path, counts: TaskCounts) -> bool:
    if not shield.keeps(folder):
        return False
    names = {kept.strip("/") for kept in shield.keep}
    if folder.name not in names:
        counts.left.append(f"cgroup {folder}: holds one that is to keep its CPUs")
    return True
