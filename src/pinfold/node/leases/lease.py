"""The lease under which CPUs are lent and best-effort work is capped.

Whoever changes the shared pool or the idle side does it here.  After each change it is looked
whether the lease is over.  If it is, all is returned, the guardian ended, and all returned again:
what the guardian has read before cannot be written after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Cgroups
from pinfold.ports.errors import CgroupError
from pinfold.ports.guardian import Guardian, LeaseError, Undone

LINGER: Final = 10.0
"""Seconds for which a guardian stays that has nothing to guard: another one takes 13 ms."""


class Lease:
    """Lends, caps and sets the pool; nothing is lent or capped that no guardian would undo.

    Args:
        cgroups: the kernel's.
        guardian: who undoes it; None: nothing can be lent.
        tell: takes what guardians have undone, or this had to in place of one.
        lost: told each time that all was returned because the lease was over.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        cgroups: Cgroups,
        guardian: Guardian | None,
        tell: Callable[[Sequence[Undone]], None],
        lost: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._cgroups = cgroups
        self._guardian = guardian
        self._tell = tell
        self._lost = lost
        self._clock = clock
        self._lent = CPUSet()
        self._quota: float | None = None
        self._may_be_capped = False
        self._is_had = False
        self._mattered = 0.0
        self._changing = asyncio.Lock()
        self.losses = 0
        """How often all was returned because the lease was over."""

    @property
    def quota(self) -> float | None:
        """What the idle side is capped at, in CPUs' worth of time, as the kernel took it last."""
        return self._quota

    @property
    def is_had(self) -> bool:
        """Whether there is a lease, which has to be renewed."""
        return self._is_had

    @property
    def _matters(self) -> bool:
        return bool(self._lent) or self._may_be_capped

    async def open(self) -> None:
        """End whom an earlier agent has left, before anything of the cgroups is changed.

        Raises:
            LeaseError: he does not end.
        """
        if self._guardian is not None:
            await self._end(self._guardian)

    async def close(self) -> None:
        """Return all, and end the lease.

        Raises:
            CgroupError: something stays lent; the guardian is left to return it.
        """
        if self._guardian is not None and self._is_had:
            await self._return()
            await self._end(self._guardian)

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :meth:`pinfold.ports.cgroups.Cgroups.set_shared`.

        Where the lease is over, nothing is lent any more when it returns.
        """
        await self._cgroups.set_shared(cpus)
        if self._matters and (over := self._over()) is not None:
            await self._recover(over)

    async def lend(self, cpus: CPUSet) -> None:
        """See :meth:`pinfold.ports.cgroups.Cgroups.lend`.

        Raises:
            LeaseError: the lease is over, and nothing is lent or capped; or there can be none.
            CgroupError: see there.
        """
        if cpus - self._lent:
            await self._begin()
        before = self._lent
        # Also what may be in force without being confirmed is at stake.
        self._lent |= cpus
        try:
            await self._cgroups.lend(cpus)
        except CgroupError:
            if cpus - before:
                # What was refused is at stake until it is confirmed that nobody has it.
                await self._cgroups.lend(before & cpus)
                self._lent = before & cpus
            raise
        self._lent = cpus
        await self._expect_held()

    async def cap(self, quota: float | None) -> None:
        """See :meth:`pinfold.ports.cgroups.Cgroups.cap_idle`.

        Raises:
            LeaseError: the lease is over, and nothing is lent or capped; or there can be none.
            CgroupError: see there.
        """
        if quota is not None:
            await self._begin()
            # It is at stake from now on, and told as a fact once the kernel has it.
            self._may_be_capped = True
        await self._cgroups.cap_idle(quota)
        self._quota, self._may_be_capped = quota, quota is not None
        await self._expect_held()

    def renew(self) -> None:
        """Renew the lease, where there is one; takes microseconds.

        Raises:
            LeaseError: it is over; :meth:`recover` returns all.
        """
        if self._guardian is not None and self._is_had:
            self._guardian.renew()

    async def recover(self) -> None:
        """Return all where the lease is over.

        Raises:
            CgroupError: it could not be returned; it can be tried again.
        """
        if self._is_had and (over := self._over()) is not None:
            await self._recover(over)

    async def rest(self) -> None:
        """End a lease under which nothing has been lent or capped for some time."""
        if self._matters:
            self._mattered = self._now()
        elif self._is_had and self._now() - self._mattered > LINGER:
            async with self._changing:
                if self._guardian is not None and not self._matters:
                    await self._end(self._guardian)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _begin(self) -> None:
        if self._guardian is None:
            raise LeaseError(
                self._cgroups.no_idle_side or "there is no guardian, and nothing is lent without"
            )
        if self._is_had and (over := self._over()) is not None:
            await self._recover(over)
        async with self._changing:
            await self._guardian.begin()
            self._is_had, self._mattered = True, self._now()

    async def _expect_held(self) -> None:
        if self._matters and (over := self._over()) is not None:
            await self._recover(over)
            raise over

    def _over(self) -> LeaseError | None:
        try:
            if self._guardian is not None:
                self._guardian.check()
        except LeaseError as error:
            return error
        return None

    async def _recover(self, over: LeaseError) -> None:
        assert self._guardian is not None  # noqa: S101 - nothing is over without one
        async with self._changing:
            self.losses += 1
            lent, capped = self._lent, self._may_be_capped
            try:
                await self._return()
                # Where somebody else was here before, there may be another lease by now.
                if self._over() is not None:
                    # A guardian that was killed has written nothing down, or not all.
                    mine = Undone(self._clock(), lent, capped, over.problem)
                    await self._end(self._guardian, *([mine] if lent or capped else []))
                    await self._return()
            except CgroupError as error:
                raise CgroupError(f"{over}; {error.problem}", error.remedy) from error
            self._lost()

    async def _return(self) -> None:
        await self._cgroups.lend(CPUSet())
        await self._cgroups.cap_idle(None)
        self._lent, self._quota, self._may_be_capped = CPUSet(), None, False

    async def _end(self, guardian: Guardian, *otherwise: Undone) -> None:
        undone = await guardian.end() or otherwise
        self._is_had = False
        if undone:
            self._tell(undone)
