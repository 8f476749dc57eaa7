"""When work is gathered on few sockets, and when it may be everywhere again.

It is gathered while the shared pool has had little to do for a while, and spread at once when what
is left of the pool is busy.  The pool keeps so many CPUs that it would be below the first threshold
there, too, so a steady load changes nothing twice.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.seen import Seen
from pinfold.core.kubelet.own_policies import ParkingOptions, percent, seconds


class Park(Proposal, frozen=True, kw_only=True):
    """Work is to be on few packages, and the shared pool, with ``need`` CPUs, on these only."""

    need: int


class Unpark(Proposal, frozen=True, kw_only=True):
    """The shared pool may be everywhere again."""


class Quiet(Struct, frozen=True):
    """For how many seconds the pool has had little to do, without a break, at the last look."""

    at: float
    lasted: float = 0.0


class Parking(Struct, frozen=True):
    """The controller."""

    options: ParkingOptions

    def step(self, memory: Quiet | None, seen: Seen) -> tuple[Quiet, tuple[Proposal, ...]]:
        """See :class:`~.seen.Controller`."""
        options, pool = self.options, seen.pool
        quiet = Quiet(seen.at)
        if not pool or any(cpu not in seen.idle for cpu in pool):
            return quiet, ()
        used = sum(1.0 - seen.idle[cpu] for cpu in pool)
        share = used / len(pool)
        said = f"the shared pool uses {used:.2f} of {len(pool)} CPUs ({share:.0%})"
        if seen.parked and share >= percent(options.unpark_from):
            why = f"{said}, unparkFrom is {options.unpark_from}"
            return quiet, (Unpark(rank=Rank.PARKING, why=why, cpus=seen.parked),)
        below = percent(options.park_below)
        if share >= below:
            return quiet, ()
        step = None if memory is None else seen.since(memory.at)
        lasted = 0.0 if memory is None or step is None else memory.lasted + step
        if lasted < seconds(options.park_after):
            return replace(quiet, lasted=lasted), ()
        why = f"{said} for {options.park_after}, parkBelow is {options.park_below}"
        need = max(options.least_pool, math.ceil(used / below))
        return quiet, (Park(rank=Rank.PARKING, why=why, need=need),)
