"""A guardian in memory, for as long as a clock says."""

from __future__ import annotations

from collections.abc import Callable

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.guardian import LEASE, LeaseError, Undone

Undo = Callable[[], tuple[CPUSet, bool]]
"""Undoes all that is lent or capped now: the CPUs that were, and whether there was a cap."""


class FakeGuardian:
    """A :class:`pinfold.ports.guardian.Guardian` that looks when it is told to.

    Args:
        undo: what it does; None: nothing is ever lent.
        now: the clock, in seconds.
        lease: seconds for which a lease holds.
    """

    def __init__(self, undo: Undo | None, now: Callable[[], float], lease: float = LEASE) -> None:
        self._undo = undo
        self._now = now
        self._lease = lease
        self._renewed: float | None = None
        self._why = ""
        self._done: list[Undone] = []
        self.lives = True
        """Whether it has not been killed; another can be begun."""
        self.refuses = ""
        """Why none can be begun."""

    async def begin(self) -> None:
        """See :class:`pinfold.ports.guardian.Guardian`."""
        if self._renewed is not None:
            self.check()
            return
        if self.refuses:
            raise LeaseError(self.refuses)
        self._renewed, self._why, self.lives = self._now(), "", True

    def renew(self) -> None:
        """See :class:`pinfold.ports.guardian.Guardian`."""
        self.check()
        self._renewed = self._now()

    def check(self) -> None:
        """See :class:`pinfold.ports.guardian.Guardian`."""
        if self._renewed is None:
            raise LeaseError("there is no lease: nothing is guarded")
        if self._why:
            raise LeaseError("the guardian has ended the lease")
        if not self.lives:
            raise LeaseError("the guardian has ended, and nothing is guarded")
        if (since := self._now() - self._renewed) > self._lease:
            raise LeaseError(f"the lease has not been renewed for {since:.1f} s")

    async def end(self) -> tuple[Undone, ...]:
        """See :class:`pinfold.ports.guardian.Guardian`."""
        self._renewed, self._why = None, ""
        done, self._done = tuple(self._done), []
        return done

    def look(self, *, closed: bool = False) -> None:
        """Undo what is lent if the lease is over; ``closed``: the agent has ended."""
        if self._renewed is None or not self.lives:
            return
        since = self._now() - self._renewed
        if not self._why and (closed or since > self._lease):
            ended, late = "the agent has ended", f"the agent has not renewed for {since:.1f} s"
            self._why = ended if closed else late
        if self._why and self._undo is not None:
            cpus, uncapped = self._undo()
            if cpus or uncapped:
                self._done.append(Undone(self._now(), cpus, uncapped, self._why))
