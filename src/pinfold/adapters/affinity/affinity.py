"""The cgroups port for users without root or without a writable cgroup tree."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, field

from pinfold.adapters.affinity.family import Family, reunite
from pinfold.adapters.affinity.killing import kill_all
from pinfold.adapters.affinity.pinning import NOTHING, Move, living, own_choice, union
from pinfold.adapters.affinity.processes import (
    Refusal,
    Snapshot,
    cpuset,
    is_alive,
    lineage,
    look,
    offline_cpus,
    own_cpuset,
    pid_space,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved
from pinfold.linux.processes import Stat, stat_of
from pinfold.ports.cgroups import (
    Limits,
    NoIdleSide,
    ObservedCgroups,
    ObservedContainer,
    Partition,
    Placement,
)
from pinfold.ports.errors import CgroupError, ContainerKey, ProcessGoneError

_LEAST_ROUNDS: Final = 8
"""A machine with too much to do gives no reason for blame, however long its rounds take."""


class _Container(Struct):
    """A container; ``cpus`` None is the shared pool, which it uses besides where it is mixed.

    ``granted`` is what its threads were last seen to have got: nothing after a failure, None
    before the first time.  ``told`` holds the wishes that were refused and reported.
    """

    key: ContainerKey
    cpus: CPUSet | None
    family: Family = field(default_factory=Family)
    granted: frozenset[int] | None = None
    told: set[str] = field(default_factory=set)
    mixed: bool = False

    @property
    def shares(self) -> bool:
        return self.cpus is None or self.mixed


class Affinity(NoIdleSide):
    """Keeps containers on their CPUs with sched_setaffinity(2), thread by thread.

    It fulfils :class:`pinfold.ports.cgroups.Cgroups`, and needs no privilege for the processes
    of its own user.  What it cannot do is in :meth:`limitations`.  It remembers nothing: after a
    restart it knows the containers that are placed and entered anew.

    Args:
        patience: seconds after which threads that do not keep still are an error.
    """

    no_idle_side = (
        "without cgroups nobody can be ranked below the owner of a CPU, so none can be lent"
    )

    def __init__(self, *, patience: float = 2.0) -> None:
        self._patience = patience
        self._containers: dict[ContainerKey, _Container] = {}
        self._shared = CPUSet()
        self._is_shared_confirmed = False
        self._reuse = 0
        # One move at a time: a container must not enter a pool that is being left.
        self._moving = asyncio.Lock()

    def limitations(self) -> tuple[str, ...]:
        """What is weaker here than with cgroups, a sentence each."""
        return limitations()

    def usable(self) -> CPUSet:
        """The online CPUs of the cpuset that this process is in; no container gets any other.

        Its own affinity does not count: an agent keeps out of its containers' way.
        """
        return own_cpuset()

    async def open(self, shared: CPUSet) -> None:
        """Set the shared pool.

        Raises:
            CgroupError: there is no ``/proc``, the kernel has no pidfds (before Linux 5.3), or
                the pool has CPUs that this process may not use.
        """
        try:
            # Half: numbers that are in use are passed over.
            self._reuse = pid_space() // 2
            os.close(os.pidfd_open(os.getpid()))
        except (OSError, ValueError) as error:
            raise CgroupError(
                f"processes cannot be told apart: {error}", "mount /proc; Linux 5.3 is needed"
            ) from None
        if shared:
            await self.set_shared(shared)

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        async with self._moving:
            self._check("the shared pool", cpus)
            self._shared = cpus
            self._is_shared_confirmed = False
            await self._move([c for c in self._containers.values() if c.shares])
            self._is_shared_confirmed = True

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.ports.cgroups.Cgroups`; a wish not granted is told once."""
        self.expect_none(placement)
        async with self._moving:
            if placement.cpus is not None:
                self._check(f"container {key}", placement.cpus)
            container = self._containers.setdefault(key, _Container(key, placement.cpus))
            container.cpus, container.mixed = placement.cpus, placement.mixed
            if container.family.members:
                await self._move([container])
            refused = [w for w in not_granted(placement) if w not in container.told]
            container.told.update(refused)
            return f"not without cgroups: {', '.join(refused)}" if refused else ""

    async def weigh(self, key: ContainerKey, mems: CPUSet) -> int:
        """See :class:`pinfold.ports.cgroups.Cgroups`; refused, as :meth:`migrate` is."""
        raise _no_memory(key, mems)

    async def migrate(self, key: ContainerKey, mems: CPUSet) -> MemoryMoved:
        """See :class:`pinfold.ports.cgroups.Cgroups`; without cpusets no memory is bound."""
        raise _no_memory(key, mems)

    async def enter(self, key: ContainerKey, pid: int, *, start: int | None = None) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        async with self._moving:
            container = self._containers.get(key)
            if container is None:
                raise CgroupError(f"container {key} was not placed")
            main = stat_of(pid)
            if main is None or not is_alive(main) or start not in (None, main.start):
                raise ProcessGoneError(f"container {key}: there is no process {pid}")
            if pid in lineage():
                raise CgroupError(
                    f"container {key}: process {pid} is this one or one that it comes from",
                    "start the agent outside of the container",
                )
            if not main.is_same(container.family.members.get(pid)):
                for other in self._containers.values():
                    other.family.disown(main)
                container.family.adopt(main)
            await self._move([container])

    def lives(self, pid: int) -> bool:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        process = stat_of(pid)
        return process is not None and is_alive(process)

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`; without a place nobody is known."""
        container = self._containers.get(key)
        if container is None:
            return
        left = await kill_all(container.family, lambda: self._alive(container), wait)
        if left:
            raise _error(f"container {key}", left)

    async def remove(self, key: ContainerKey) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        container = self._containers.get(key)
        if container is None:
            return
        if alive := self._alive(container):
            raise CgroupError(
                f"container {key} is not empty: process {alive[0].pid} is alive", "kill it first"
            )
        del self._containers[key]

    async def observe(self) -> ObservedCgroups:
        """What the threads may use now.

        Threads that have narrowed themselves show what their container was given, those that
        have widened themselves what they took.
        """
        self._look()
        usable = frozenset(self.usable())
        containers = {}
        taken: set[int] = set()
        for container in self._containers.values():
            observed = self._observe(container, usable)
            containers[container.key] = observed
            if container.cpus is None and observed.populated:
                taken.update(observed.effective)
        pool = frozenset(self._shared) & usable
        effective = CPUSet(pool if self._is_shared_confirmed else taken or pool)
        return ObservedCgroups(effective, self._shared, containers)

    async def close(self, *, remove: bool) -> None:
        """Let go; what runs stays where it is.  With ``remove``, forget everything."""
        if remove:
            self._containers.clear()
            self._shared = CPUSet()

    # --------------------------------------------------------------------------- looking

    def _look(self) -> Snapshot:
        now = look()
        reunite([c.family for c in self._containers.values()], now, self._reuse)
        return now

    def _alive(self, container: _Container) -> Sequence[Stat]:
        self._look()
        return living(container.family.members.values())

    def _observe(self, container: _Container, usable: frozenset[int]) -> ObservedContainer:
        alive = living(container.family.members.values())
        if container.granted is not None:
            # A CPU that went offline and comes back is not there again by itself.
            container.granted &= usable
        effective = self._target(container) & usable
        if alive:
            effective = union(alive) | (container.granted or NOTHING)
        return ObservedContainer(
            container.key,
            exclusive=container.cpus is not None,
            configured=None if container.cpus is None else CPUSet(self._target(container)),
            effective=CPUSet(effective),
            populated=bool(alive),
        )

    # ---------------------------------------------------------------------------- moving

    async def _move(self, containers: Sequence[_Container]) -> None:
        """Move containers to their CPUs, until a look finds nothing to do."""
        before: dict[ContainerKey, frozenset[int]] = {}
        deadline = time.monotonic() + self._patience
        usable = frozenset(self.usable())
        move = Move()
        while True:
            move.begin_round()
            now = self._look()
            for container in containers:
                target = self._target(container) & usable
                members = container.family.members
                if container.key not in before:
                    granted = container.granted
                    before[container.key] = (
                        own_choice(members.values(), target) if granted is None else granted
                    )
                    container.granted = NOTHING
                move.sweep(members, before[container.key], target, now.allowed)
            if move.end_round():
                break
            if move.restless and move.rounds >= _LEAST_ROUNDS and time.monotonic() >= deadline:
                raise CgroupError(
                    f"{_names(containers)}: {move.restless} thread(s) were again on other CPUs, "
                    f"or gone, after {self._patience:g} s",
                    "a program that sets its own affinity, or forks, without end needs cgroups",
                )
            await move.pause()
        if move.refused:
            raise _error(_names(containers), move.refused)
        for container in containers:
            container.granted = self._target(container) & usable

    def _target(self, container: _Container) -> frozenset[int]:
        own = container.cpus or CPUSet()
        return frozenset(own | self._shared if container.shares else own)

    def _check(self, name: str, cpus: CPUSet) -> None:
        usable = self.usable()
        beyond = cpus - usable - offline_cpus()
        if beyond or not cpus & usable:
            raise CgroupError(
                f"{name}: CPUs {beyond or cpus or 'none'} cannot be used, this process may use "
                f"{usable}, in the cpuset {cpuset('self')}",
                "choose CPUs of these, or start Pinfold in a cgroup with more",
            )


def _names(containers: Sequence[_Container]) -> str:
    if len(containers) == 1:
        return f"container {containers[0].key}"
    return "the shared pool"


def _error(name: str, refused: Sequence[Refusal]) -> CgroupError:
    more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
    return CgroupError(f"{name}: {refused[0].problem}{more}", refused[0].remedy)


def _no_memory(key: ContainerKey, mems: CPUSet) -> CgroupError:
    return CgroupError(
        f"container {key}: its memory cannot be moved to NUMA node {mems} without cgroups",
        "start the agent as root, or move the container without its memory",
    )


def limitations() -> tuple[str, ...]:
    """What is weaker here than with cgroups, a sentence each."""
    return (
        "other processes are not moved away: they may run on exclusive CPUs",
        (
            "a process can change its own CPU affinity: that is undone at the next reconciliation, "
            "but not prevented"
        ),
        (
            "CPU shares, CPU quotas, limits of memory, hugepages and processes, memory protection "
            "and I/O weights are not enforced"
        ),
        "memory is not bound to NUMA nodes",
        "CPUs cannot be made a partition: the kernel goes on balancing load over them",
        (
            "while programs fork without pause, a child may keep the CPUs that are taken away "
            "until the next reconciliation"
        ),
        (
            "a process that leaves its parent and its session between two looks is lost: it is "
            "neither moved nor ended with its container"
        ),
        "a program that changes its user (sudo, setuid) can be neither moved nor ended",
        (
            "after a restart of the agent, processes that had left the session of the main process "
            "are not found again, nor any of a container whose main process ended meanwhile"
        ),
        "only the CPUs that the agent itself may use can be given out",
    )


def not_granted(placement: Placement) -> Iterator[str]:
    """The wishes of a placement that cannot be granted."""
    if placement.frozen:
        yield "to be frozen while its CPUs are offline"
    if placement.partition is not Partition.MEMBER:
        yield f"partition {placement.partition.value}"
    if placement.mems is not None:
        yield f"memory nodes {placement.mems}"
    for owner, limits in (("container", placement.limits), ("pod", placement.pod_limits)):
        for limit in _limits(limits):
            yield f"{limit} of the {owner}"


def _limits(limits: Limits) -> Iterator[str]:
    if limits.cpu_shares is not None:
        yield f"{limits.cpu_shares} CPU shares"
    if limits.cpu_quota is not None and limits.cpu_quota > 0:
        yield f"CPU quota of {limits.cpu_quota} us"
    if limits.cpu_burst:
        yield f"CPU burst of {limits.cpu_burst} us"
    if limits.pids is not None:
        yield f"limit of {limits.pids} processes"
    if limits.io_weight is not None:
        yield f"I/O weight {limits.io_weight}"
    for file, value in limits.protection.unified.items():
        if value != "0":
            yield f"{file} {value}"
    if limits.memory is not None:
        yield f"memory limit of {limits.memory} bytes"
    for size, limit in sorted(limits.hugepages.items()):
        if limit:
            yield f"limit of {limit} bytes on {size}-byte hugepages"
