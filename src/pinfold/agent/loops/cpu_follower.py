"""Lets an agent follow the CPUs that go offline and come back."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable

import structlog

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.books import Books
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
    """Keeps the books at the CPUs that are online.

    Args:
        books: the node's state.
        unseen: CPUs that a kubelet would not see; they are nobody's.
        read: the CPUs that are online now.
        events: something each time that a CPU goes or comes; may raise OSError.
        stay_off: keeps this process off what neither is reserved nor in the pool.
    """

    def __init__(
        self,
        books: Books,
        unseen: CPUSet,
        read: Callable[[], CPUSet],
        events: Callable[[], AsyncIterator[None]],
        stay_off: Callable[[CPUSet, CPUSet], None] = stay_off_exclusive_cpus,
    ) -> None:
        self._books = books
        self._unseen = unseen
        self._read = read
        self._events = events
        self._stay_off = stay_off
        self._seen = CPUSet()
        self.problem = ""
        """What cannot be followed; "" if all is well."""

    async def run(self) -> None:
        """Follow at once as long as the kernel tells (else OSError); the looks do the rest."""
        async for _ in self._events():
            # Also where a CPU is back already: cgroup v1 has forgotten that it was there.
            if not await self.look():
                await reconcile(self._books)

    async def look(self) -> bool:
        """Follow, if anything has changed, and tell whether it has; a look takes some 20 us.

        Raises:
            PortError: the kernel's side cannot be read.
        """
        await self._books.settle()
        online = self._read()
        if online == self._seen:
            return False
        known = self._books.view.machine
        offline = known - online
        if is_news := bool(offline or self._books.view.state.offline):
            await self._books.set_offline(offline)
            log.warning("cpus", offline=str(offline) or "none")
        # Not before: what could not be followed is seen again.
        self._seen = online
        self._tell(online - known - self._unseen)
        if not is_news:
            return False
        if (policy := self._books.view.node.cpu_policy) is not None:
            self._stay_off(policy.reserved, self._books.view.pool)
        await reconcile(self._books)
        return True

    def _tell(self, unknown: CPUSet) -> None:
        problem = (
            f"CPUs {unknown} came online for the first time since the agent was started; "
            "it gives them to the shared pool when it is started again"
        )
        self.problem = problem if unknown else ""
        if unknown:
            self._books.observers.report(None, problem)
