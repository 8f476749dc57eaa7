"""Lets an agent follow the CPUs that go offline and come back."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable

import structlog

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.pods.manager import Manager
from pinfold.node.reconciler import reconcile

log = structlog.get_logger("pinfold")


def stay_off_exclusive_cpus(reserved: CPUSet, pool: CPUSet) -> None:
    """Pin this process, and so every supervisor that it starts, to CPUs that nobody will own.

    Where no reserved CPU is online, the kernel has let it loose on all: the shared pool's do then.
    """
    for tid in map(int, os.listdir("/proc/self/task")):  # noqa: PTH208 - names only
        for cpus in (reserved, pool):
            try:
                os.sched_setaffinity(tid, cpus)
            except (OSError, ValueError):
                continue  # the thread has ended, or there is no such CPU for this process
            break


class CPUFollower:
    """Keeps the manager at the CPUs that are online.

    Args:
        manager: what gives CPUs out.
        unseen: CPUs that a kubelet would not see; they are nobody's.
        read: the CPUs that are online now.
        events: something each time that a CPU goes or comes; may raise OSError.
        stay_off: keeps this process off what neither is reserved nor in the pool.
    """

    def __init__(
        self,
        manager: Manager,
        unseen: CPUSet,
        read: Callable[[], CPUSet],
        events: Callable[[], AsyncIterator[None]],
        stay_off: Callable[[CPUSet, CPUSet], None] = stay_off_exclusive_cpus,
    ) -> None:
        self._manager = manager
        self._unseen = unseen
        self._read = read
        self._events = events
        self._stay_off = stay_off
        self._seen = CPUSet()
        self._unknown = CPUSet()

    @property
    def problem(self) -> str:
        """What cannot be followed; "" if all is well."""
        if not self._unknown:
            return ""
        return (
            f"CPUs {self._unknown} came online for the first time since the agent was started; "
            "it gives them to the shared pool when it is started again"
        )

    async def run(self) -> None:
        """Follow at once, as long as the kernel tells; the looks do what it does not.

        Raises:
            OSError: it does not tell.
        """
        async for _ in self._events():
            # Also where a CPU is back already: cgroup v1 has forgotten that it was there.
            if not await self.look():
                await reconcile(self._manager)

    async def look(self) -> bool:
        """Follow, if anything has changed, and tell whether it has; a look takes some 20 us.

        Raises:
            PortError: the kernel's side cannot be read.
        """
        if self._manager.offline_owners.misplaced:
            await self._manager.offline_owners.settle()
        online = self._read()
        if online == self._seen:
            return False
        self._seen = online
        known = self._manager.machine
        self._unknown = online - known - self._unseen
        if self._unknown:
            log.warning("cpus", problem=self.problem)
        offline = known - online
        if offline == self._manager.state.offline and not offline:
            return False
        log.warning("cpus", offline=str(offline) or "none")
        await self._manager.set_offline(offline)
        if (policy := self._manager.node.cpu_policy) is not None:
            self._stay_off(policy.reserved, self._manager.pool)
        await reconcile(self._manager)
        return True
