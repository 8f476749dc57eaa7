"""Does the kernel agree?  What it has is compared with the record, and repaired.

The kubelet compares its record with its own memory of what it wrote; a cpuset that was changed
behind its back stays so.  Here nothing is taken on trust: every cpuset is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import NO_CPUS, CPUSet
from pinfold.documents.history import Drifted
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.node_containers import HELD, may_live
from pinfold.node.view import Whereabouts
from pinfold.ports.cgroups import (
    Cgroups,
    Limiting,
    ObservedCgroups,
    ObservedContainer,
    OtherLimit,
    Stray,
)
from pinfold.ports.errors import ContainerKey, PortError, ProcessGoneError
from pinfold.ports.runtime import ContainerState, ContainerStatus

PATIENCE: Final = 10.0
"""Seconds in which a runtime should have noticed that a container has ended."""

_ROUNDED: Final = 0.01
"""CPUs' worth of time by which a cap may differ for being rounded: the least that there is."""


class Drift(Struct, frozen=True):
    """One place where the kernel has something else than the record.

    ``key`` is None for the shared pool, or (``idle``) the idle side; ``found`` is the kernel's
    side, in words; ``is_empty`` tells that no process of the container was found where it should
    be; ``strays`` are those that were found elsewhere; ``is_cap`` tells that it is about the cap of
    the idle side.
    """

    key: ContainerKey | None
    expected: str
    found: str
    repaired: bool = False
    problem: str = ""
    is_empty: bool = False
    strays: tuple[Stray, ...] = ()
    idle: bool = False
    is_cap: bool = False

    @property
    def subject(self) -> str:
        """Whom it is about, in words."""
        if self.key is not None:
            return f"container {self.key.name}"
        return "the idle side" if self.idle else "the shared pool"


def find_drift(
    observed: ObservedCgroups,
    pool: CPUSet,
    expected: Mapping[ContainerKey, Whereabouts],
    offline: CPUSet,
    lent: CPUSet | None = NO_CPUS,
) -> Iterator[Drift]:
    """Compare; pure.

    ``offline`` CPUs are missing in every cpuset by nature.  What is ``lent`` may not be known
    (None): it has changed since the kernel was looked at.
    """
    if pool and observed.shared != pool:
        yield Drift(None, str(pool), str(observed.shared))
    elif pool and observed.shared_configured - offline != pool - offline:
        yield Drift(None, str(pool), f"configured {observed.shared_configured}")
    if lent is not None and (idle := observed.idle) is not None and pool:
        wanted = f"{pool | lent} and cpu.idle 1"
        if not idle.is_idle:
            yield Drift(None, wanted, "cpu.idle 0", idle=True)
        elif idle.effective != (pool | lent) - offline:
            yield Drift(None, wanted, str(idle.effective), idle=True)
    for key, where in expected.items():
        container, cpus = observed.containers.get(key), where.cpus
        wanted = "the shared pool" if cpus is None else str(cpus)
        wanted += " and the shared pool" if where.mixed else ""
        wanted += " and what is lent" if where.idle else ""
        if container is None:
            yield Drift(key, wanted, "no cgroup", is_empty=True)
        elif container.frozen and where.frozen:
            continue  # it runs nowhere
        elif found := _deviation(container, where, pool, offline, lent):
            yield Drift(key, wanted, found, is_empty=not container.populated)
        if container is not None and container.strays:
            yield _outside(key, container.strays)
    for key in observed.containers.keys() - expected.keys():
        if not observed.containers[key].populated:
            continue
        yield Drift(key, "nothing", f"processes on {observed.containers[key].effective}")


def _outside(key: ContainerKey, strays: tuple[Stray, ...]) -> Drift:
    more = f", and {len(strays) - 1} more" if len(strays) > 1 else ""
    found = f"process {strays[0].pid} outside of it, in {strays[0].where}{more}"
    return Drift(key, "every process in its cgroup", found, strays=strays)


def _deviation(
    container: ObservedContainer,
    where: Whereabouts,
    pool: CPUSet,
    offline: CPUSet,
    lent: CPUSet | None,
) -> str:
    owns = where.cpus is not None
    if container.exclusive != owns or container.idle != where.idle:
        return _side(container)
    if not container.populated:
        return "no process in its cgroup"
    if where.idle and lent is None:
        return "frozen" if container.frozen else ""
    cpus = where.within(pool, lent or NO_CPUS) - offline
    if container.effective != cpus:
        return f"effective {container.effective}"
    if owns and (container.configured or cpus) - offline != cpus:
        return f"configured {container.configured}"
    return "frozen" if container.frozen else ""


def _side(container: ObservedContainer) -> str:
    if container.exclusive:
        return "in the exclusive part"
    return "on the idle side" if container.idle else "in the shared pool"


def find_other_cap(observed: ObservedCgroups, cap: float | None) -> Iterator[Drift]:
    """A cap of the idle side that somebody else has written; pure."""
    if (idle := observed.idle) is None or not idle.is_idle:
        return  # a rank that is put back has its cap with it
    if (cap is None) != (idle.quota is None) or abs((cap or 0) - (idle.quota or 0)) > _ROUNDED:
        yield Drift(None, _cap(cap), _cap(idle.quota), idle=True, is_cap=True)


def _cap(quota: float | None) -> str:
    return "no cap" if quota is None else f"a cap of {quota:g} CPUs"


def find_other_limits(
    changed: Mapping[ContainerKey, Sequence[OtherLimit]],
    expected: Mapping[ContainerKey, Whereabouts],
    known: Iterable[Drift],
) -> Iterator[Drift]:
    """Limits that somebody else has written; pure.

    ``known`` is what is found already: who is placed again gets his limits with it.
    """
    placed = {drift.key for drift in known if not drift.strays}
    for key, others in changed.items():
        if key in expected and key not in placed:
            wanted = ", ".join(f"{one.file} {one.expected}" for one in others)
            yield Drift(key, wanted, ", ".join(one.found for one in others))


async def reconcile(books: Books) -> list[Drift]:
    """Look once, repair what drifted, write it into the history.

    A container that has just ended is no drift: between its end and the word of it, the runtime
    says that it runs, and the kernel has nothing of it.  It counts when it stays so.

    Returns:
        What was found; each says whether it was repaired.

    Raises:
        CgroupError: the kernel's side cannot be read.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with books.change() as draft:
        await draft.look_at_cpus()
        before = {key: books.statuses[key].id for key in _settled(books)}
        lent, was_changing = books.view.lent, books.loans.are_changing
        cap = books.lease.quota
        observed = await books.containers.cgroups.observe()
        held = _look_at_held(books, observed)
        # Asked after the cgroups were read: what has ended meanwhile is no drift.
        alive = held | {
            status.id
            for status in await books.containers.statuses()
            if status.state is ContainerState.RUNNING
        }
        # Nor is what was started, ended or started again since they were read.
        running = {
            key: one
            for key, one in _settled(books).items()
            if before.get(key) == books.statuses[key].id and books.statuses[key].id in alive
        }
        expected = {key: books.view.where(*one) for key, one in running.items()}
        busy = books.view.pods.containers().keys() - running.keys()
        view, is_changing = books.view, was_changing or books.loans.are_changing
        known = None if is_changing or view.lent != lent else lent
        drifts = [
            drift
            for drift in find_drift(observed, view.pool, expected, view.state.offline, known)
            if drift.key not in busy
        ]
        drifts += find_other_cap(observed, cap) if cap == books.lease.quota else ()
        cgroups = books.containers.cgroups
        if isinstance(cgroups, Limiting):
            drifts += find_other_limits(cgroups.limits.look(), expected, drifts)
        done = [await _repair(books, draft, drift, running) for drift in drifts]
        repaired = [drift for drift in done if drift is not None]
        await _write_down(books, draft, repaired)
    well = sum(drift.repaired for drift in repaired)
    books.drifts.look({drift.key for drift in repaired})
    books.counters.count_reconcile(loop.time() - began, well, len(repaired) - well)
    books.counters.escapes += sum(len(drift.strays) for drift in repaired if drift.repaired)
    await books.announcements.announce(books)
    return repaired


def _look_at_held(books: Books, observed: ObservedCgroups) -> set[str]:
    """The ids of those containers that only their cgroups tell of, and that run; tell who ended."""
    running = set()
    for status in books.statuses.values():
        if not status.id.startswith(HELD):
            continue
        seen = observed.containers.get(status.key)
        if seen is not None and seen.populated:
            running.add(status.id)
        else:
            books.containers.exits.tell(
                replace(status, state=ContainerState.EXITED, exit_code=None)
            )
    return running


def _settled(books: Books) -> dict[ContainerKey, tuple[AdmittedPod, Container]]:
    """The containers that run, and that nobody is starting or ending."""
    return {
        key: one
        for key, one in books.view.pods.containers().items()
        if (status := books.statuses.get(key)) is not None
        and status.state is ContainerState.RUNNING
        and key not in books.containers.seen.busy
    }


async def return_unranked(books: Books) -> None:
    """Take all back that is lent where somebody took the rank of the idle side; wait for nobody.

    Owners are not pushed in front of it then.  The rank is put back with that, and it is in the
    history like what :func:`reconcile` repairs, which has the rest.

    Raises:
        StoreError: the agent is stopping.
    """
    if not (lent := books.view.lent) or books.containers.cgroups.is_ranked:
        return
    drift = Drift(None, f"cpu.idle 1, with {lent} lent", "cpu.idle 0", idle=True, repaired=True)
    try:
        await books.give_back(lent)
    except PortError as error:
        drift = replace(drift, repaired=False, problem=str(error))
    books.counters.repairs += drift.repaired
    books.counters.cgroup_failures += not drift.repaired
    async with books.change() as draft:
        await _write_down(books, draft, [drift])


async def _repair(
    books: Books,
    draft: Draft,
    drift: Drift,
    running: Mapping[ContainerKey, tuple[AdmittedPod, Container]],
) -> Drift | None:
    """Make it so; None where there is nothing to repair, for the container has just ended."""
    try:
        if drift.is_cap:
            await books.lease.cap(books.lease.quota)
        elif drift.idle:
            # Whoever had his hands in it: what is lent is lent anew by who decides that.
            await books.give_back(books.view.lent)
        elif drift.key is None:
            await draft.apply_pool()
        elif drift.key not in running:
            await books.containers.end(drift.key)
        elif not await _put_back(books, drift, drift.key):
            return None
    except PortError as error:
        return replace(drift, problem=str(error))
    return replace(drift, repaired=True)


async def _put_back(books: Books, drift: Drift, key: ContainerKey) -> bool:
    """See a container placed; False when it has just ended.

    Raises:
        PortError: it cannot be placed.
    """
    cgroups, seen = books.containers.cgroups, books.containers.seen
    status = seen.statuses.get(key)
    if status is None or key in seen.busy:
        return False  # somebody has begun to end it
    if drift.strays:
        return await _bring_back(cgroups, key, drift.strays)
    try:
        if not drift.is_empty or _lives(cgroups, status):
            await cgroups.place(key, books.placement(key))
        if _lives(cgroups, status):
            await cgroups.enter(key, status.pid or 0)
        elif drift.is_empty:
            raise ProcessGoneError(
                f"container {key}: its process has ended, and its runtime says that it runs",
                "see what the container runtime does",
            )
    except PortError as error:
        has_ended = isinstance(error, ProcessGoneError) or not may_live(cgroups, status)
        # It may have ended so short a time ago that its runtime does not know.
        now = asyncio.get_running_loop().time()
        if has_ended and seen.silent_for(status, now) < PATIENCE:
            return False
        raise
    return True


async def _bring_back(cgroups: Cgroups, key: ContainerKey, strays: tuple[Stray, ...]) -> bool:
    """Move processes into their container's cgroup; False when all have ended.

    Raises:
        CgroupError: one cannot be moved; it is ended with its container.
    """
    there = False
    for stray in strays:
        try:
            # What was repaired before has taken its time, and another may have the pid now.
            await cgroups.enter(key, stray.pid, start=stray.start)
        except ProcessGoneError:
            continue
        there = True
    return there


def _lives(cgroups: Cgroups, status: ContainerStatus) -> bool:
    return status.pid is not None and cgroups.lives(status.pid)


async def _write_down(books: Books, draft: Draft, drifts: list[Drift]) -> None:
    entries = []
    for drift in drifts:
        pod = None if drift.key is None else books.view.pods.active.get(drift.key.pod_uid)
        document = Drifted(
            container=None if drift.key is None else drift.key.name,
            expected=drift.expected,
            found=drift.found,
            repaired=drift.repaired,
            problem=drift.problem,
        )
        uid = None if drift.key is None else drift.key.pod_uid
        name = None if pod is None else pod.name
        kind = "repaired" if drift.repaired else "drifted"
        entries.append(draft.entry(kind, (uid, name), document))
        outcome = "repaired" if drift.repaired else f"not repaired: {drift.problem}"
        books.observers.report(
            name, f"{drift.subject} should have {drift.expected}, has {drift.found}; {outcome}"
        )
    await draft.tell(*entries)
