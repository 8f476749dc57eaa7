"""Moving tasks into our cgroup and back, and minding the affinities they had."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from pinfold.adapters.shield.kernel import (
    ONLINE,
    Method,
    ShieldError,
    exists,
    failure,
    innermost_first,
    read_cpus,
    write,
)
from pinfold.adapters.shield.record import Journal, SavedAffinity, Shield
from pinfold.adapters.shield.threads import Thread, outside, thread
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.affinity import allowed, set_affinity
from pinfold.linux.kernel_files import read_ids
from pinfold.linux.processes import threads

_ROUNDS: Final = 300
_PAUSE: Final = 0.002


class TaskCounts(Struct):
    """What became of the tasks: how many were moved, are bound by the kernel, were left, and why.

    ``left`` are sentences; ``notes`` say what else is to be known.
    """

    moved: int = 0
    bound: int = 0
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def tasks_file(method: Method) -> str:
    """What holds the tasks to be moved: threads on v1, where they may be apart; processes on v2."""
    return "tasks" if method is Method.CGROUP1 else "cgroup.procs"


def effective(folder: Path, method: Method) -> CPUSet:
    """The CPUs that the kernel lets a cgroup use; without a cpuset of its own, those of its parent.

    Raises:
        ShieldError: they cannot be read.
    """
    name = "cpuset.effective_cpus" if method is Method.CGROUP1 else "cpuset.cpus.effective"
    files = (above / name for above in (folder, *folder.parents))
    return read_cpus(next((file for file in files if exists(file)), ONLINE))


async def gather(journal: Journal, counts: TaskCounts) -> None:
    """Move everything that is in the root cgroup into ours, until nothing new turns up there.

    What the kernel does not move is confined by its affinity.  Under systemd, which owns the
    cgroups, all of it is: only the kernel's own threads are in the root there.

    Raises:
        ShieldError: they multiply faster than they are moved, or the record cannot be written.
    """
    shield = journal.shield
    file = tasks_file(shield.method)
    source, target = Path(shield.root, file), shield.cgroup / file
    done: set[tuple[int, int]] = set()
    clean = 0
    for _ in range(_ROUNDS):
        found = [one for number in read_ids(source) if (one := _task(number, shield.method))]
        todo = [one for one in found if not one.is_bound and (one.tid, one.start_time) not in done]
        if not todo:
            clean += 1
            if clean == 2:
                counts.bound = sum(one.is_bound for one in found)
                return
            await asyncio.sleep(_PAUSE)
            continue
        clean = 0
        if shield.method is Method.SYSTEMD:
            refused = todo
        else:
            wide = effective(Path(shield.root), shield.method)
            journal.about_to_move(
                saved for one in todo for saved in narrow(_threads(one, shield.method), wide)
            )
            refused = [one for one in todo if not _move(one.tid, target)]
            counts.moved += len(todo) - len(refused)
        done.update((one.tid, one.start_time) for one in refused)
        _confine(journal, refused, counts)
        await asyncio.sleep(0)
    raise ShieldError(
        f"{source}: new tasks turn up faster than they can be moved", "find what forks so fast"
    )


async def release(shield: Shield) -> int:
    """Move everything that is in our cgroup, or below it, back into the root, and remove it.

    Returns:
        How many tasks were moved.

    Raises:
        ShieldError: the kernel does not move one, or holds on to the cgroup.
    """
    file = tasks_file(shield.method)
    target, moved = Path(shield.root, file), 0
    for folder in innermost_first(shield.cgroup):
        for attempt in range(_ROUNDS):
            for number in read_ids(folder / file):
                write_or_gone(target, number)
                moved += 1
            try:
                folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError as error:
                # Tasks that were just born, or have just died, hold it for a moment.
                if error.errno != errno.EBUSY or attempt == _ROUNDS - 1:
                    raise failure(folder, error, "removing the cgroup: ") from None
            await asyncio.sleep(_PAUSE)
    return moved


def write_or_gone(target: Path, number: int) -> None:
    """Move one task; one that has ended is no error; raises ShieldError."""
    try:
        write(target, str(number))
    except ShieldError as error:
        one = thread(number)
        if one is not None:
            raise ShieldError(f"{one}: {error.problem}", error.remedy) from None


def narrow(tids: Iterable[int], wide: CPUSet) -> list[SavedAffinity]:
    """The affinities of those threads that may not use all that their cgroup may."""
    found = []
    for tid in tids:
        mask = allowed(tid)
        if mask is None or mask == wide:
            continue
        one = thread(tid)
        if one is not None and not one.is_bound:
            found.append(SavedAffinity(tid, one.start_time, mask))
    return found


def settle(shield: Shield) -> None:
    """Give threads that had an affinity what is left of it; older kernels (6.1) drop it."""
    for saved, now in _living(shield):
        target = (saved.before & shield.others) or shield.others
        if now != target:
            set_affinity(saved.tid, target)


def heed(journal: Journal, held: Iterable[SavedAffinity]) -> None:
    """Before tasks are moved back, note the affinities that were set while the shield was up.

    They replace what the record has; older kernels (6.1) drop them as well.
    """
    held = tuple(held)
    now = {(one.tid, one.start_time): one for one in held}
    known = []
    for saved in journal.shield.affinities:
        other = now.get((saved.tid, saved.start_time))
        ours = other is None or other.before in _given(journal.shield, saved)
        known.append(saved if ours or other is None else other)
    if tuple(known) != journal.shield.affinities:
        journal.change(affinities=tuple(known))
    journal.about_to_move(held)


def unsettle(shield: Shield) -> None:
    """Give threads back the affinity they had, unless somebody has set another meanwhile."""
    wide = {read_cpus(ONLINE), effective(Path(shield.root), shield.method)}
    for saved, now in _living(shield):
        if now != saved.before and now in wide | _given(shield, saved):
            set_affinity(saved.tid, saved.before)


def _given(shield: Shield, saved: SavedAffinity) -> set[CPUSet]:
    """What a thread with an affinity of its own has had from the shield."""
    every = (shield.others, *shield.past)
    return {*every, *(saved.before & others for others in every)}


async def catch_strays(tids: Callable[[], list[int]], others: CPUSet) -> list[Thread]:
    """See that no thread may run elsewhere; return those that still may.

    A child that is being born takes its parent's mask, and that may still be the old one.
    """
    online = read_cpus(ONLINE)
    strays: list[Thread] = []
    for _ in range(20):
        strays = outside(tids(), others)
        if not strays:
            break
        for one in strays:
            # Asked for more than its cpuset has, the kernel cuts it to the cpuset.
            set_affinity(one.tid, online)
        await asyncio.sleep(_PAUSE)
    return strays


def _task(number: int, method: Method) -> Thread | None:
    """A thread, or a process, which lives on when only its main thread has ended."""
    one = thread(number)
    if one is None and method is not Method.CGROUP1:
        others = threads(number)
        living = next((found for tid in others if (found := thread(tid))), None)
        return (
            None
            if living is None
            else Thread(number, living.comm, living.start_time, living.is_kernel, living.is_bound)
        )
    return one


def _threads(one: Thread, method: Method) -> list[int]:
    return [one.tid] if method is Method.CGROUP1 else threads(one.tid)


def _move(number: int, target: Path) -> bool:
    """Move one task; False where the kernel does not."""
    with contextlib.suppress(ShieldError):
        write_or_gone(target, number)
        return True
    return False


def _confine(journal: Journal, tasks: list[Thread], counts: TaskCounts) -> None:
    """Move tasks off by their affinity."""
    shield = journal.shield
    threads = [tid for one in tasks for tid in _threads(one, shield.method)]
    # Those that a shield has confined before are in the record with what they had at first.
    journal.about_to_move(narrow(threads, CPUSet()))
    known = {(saved.tid, saved.start_time): saved.before for saved in journal.shield.affinities}
    for tid in threads:
        one = thread(tid)
        if one is None or one.is_bound:
            continue
        mask = known.get((tid, one.start_time), shield.others)
        error = set_affinity(tid, (mask & shield.others) or shield.others)
        if error is None:
            counts.moved += 1
        elif thread(tid) is not None:
            counts.left.append(f"{one}: {error.strerror}")


def _living(shield: Shield) -> Iterable[tuple[SavedAffinity, CPUSet]]:
    for saved in shield.affinities:
        one, now = thread(saved.tid), allowed(saved.tid)
        if one is not None and now is not None and one.start_time == saved.start_time:
            yield saved, now
