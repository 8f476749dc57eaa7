"""Suppression: best-effort containers have what the others leave of a part of the node.

The anchor is Koordinator's rule (``BECPUSuppress``): the CPUs of the node times a threshold, less
what the others use, less what the system uses or what is reserved for it, whichever is more.  A cap
by that rule follows every breath of the load.  This one is lower by a margin when it goes down, and
goes up only after the rule has allowed more for a while: what is proposed is never above the rule,
and a load that wavers by less than the margin moves nothing.  All numbers are CPUs' worth of time.
"""

from __future__ import annotations

from math import inf
from typing import Final

from msgspec import Struct

from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.seen import Seen
from pinfold.core.kubelet.own_policies import SuppressionOptions, percent, seconds

_BETWEEN_RISES: Final = 1.0
"""Seconds from one step up to the next at least, however often it is looked."""


class Cap(Proposal, frozen=True, kw_only=True):
    """Let best-effort containers together have that many CPUs' worth of time; None: any."""

    quota: float | None


class Allowed(Struct, frozen=True):
    """What the rule allows, as far as it is known: at least and at most so much."""

    least: float
    most: float


class Suppressed(Struct, frozen=True):
    """What is remembered from look to look.

    Attributes:
        at: the last look.
        since: the first look.
        raised: the last step up that was proposed.
        lows: looks within the time to hold, and what was allowed at least; both rise.
    """

    at: float = -inf
    since: float = inf
    raised: float = -inf
    lows: tuple[tuple[float, float], ...] = ()


class Suppression(Struct, frozen=True):
    """The controller.  ``reserved`` are the CPUs that are kept for the system, at least."""

    options: SuppressionOptions
    reserved: float = 0.0

    def step(self, memory: Suppressed, seen: Seen) -> tuple[Suppressed, tuple[Proposal, ...]]:
        """See :class:`pinfold.core.controllers.seen.Controller`."""
        if seen.at == memory.at:
            return memory, ()
        allowed = self.allowed(seen)
        memory = self._remembered(memory, seen.at, allowed)
        if not any(one.borrows for one in seen.containers.values()):
            lifted = Cap(rank=Rank.SUPPRESSION, why="nobody is capped any more", quota=None)
            return memory, (() if seen.cap is None else (lifted,))
        wished = self._wished(memory, seen, allowed)
        if wished is None or wished == seen.cap:
            return memory, ()
        if seen.cap is not None and wished > seen.cap:
            memory = Suppressed(memory.at, memory.since, seen.at, memory.lows)
        whole = percent(self.options.threshold) * len(seen.online)
        why = (
            f"best-effort containers have {wished:.2f} CPUs: of {whole:.2f} "
            f"({self.options.threshold} of the node) {whole - allowed.most:.2f} are not for them"
        )
        return memory, (Cap(rank=Rank.SUPPRESSION, why=why, quota=wished),)

    def allowed(self, seen: Seen) -> Allowed:
        """What the rule leaves to best-effort containers at this look; it may be less than 0."""
        others = [one.load for one in seen.containers.values() if not one.borrows]
        borrowers = [one.load for one in seen.containers.values() if one.borrows]
        used = sum(load.usage or 0.0 for load in others if load is not None)
        most = percent(self.options.threshold) * len(seen.online)
        if any(cpu not in seen.idle for cpu in seen.online):
            return Allowed(-inf, most - used - self.reserved)
        busy = sum(1.0 - seen.idle[cpu] for cpu in seen.online)
        borrowed = sum(load.usage or 0.0 for load in borrowers if load is not None)
        # Whoever is not known counts as the system.
        system = max(0.0, busy - borrowed - used)
        left = most - used - max(system, self.reserved)
        if any(load is None or load.usage is None for load in borrowers):
            return Allowed(left, most - used - self.reserved)
        return Allowed(left, left)

    def _remembered(self, memory: Suppressed, now: float, allowed: Allowed) -> Suppressed:
        if now < memory.at:
            # Another clock: nothing is known of the time before.
            memory = Suppressed()
        # Figures are means since the look before, so a late look tells of all the time between.
        window = now - seconds(self.options.hold)
        lows = [one for one in memory.lows if one[0] > window]
        while lows and lows[-1][1] >= allowed.least:
            lows.pop()
        since = min(memory.since, now)
        return Suppressed(now, since, memory.raised, (*lows, (now, allowed.least)))

    def _wished(self, memory: Suppressed, seen: Seen, allowed: Allowed) -> float | None:
        """The next cap; None: leave what there is."""
        capacity, options = len(seen.online), self.options
        margin, least = percent(options.margin) * capacity, options.least_cpus
        if seen.cap is None or allowed.most < seen.cap:
            wished = max(float(least), allowed.most - margin)
            return wished if wished < (inf if seen.cap is None else seen.cap) else None
        lowest = memory.lows[0][1] - margin
        held = seen.at - memory.since >= seconds(options.hold)
        if not held or seen.at - memory.raised < _BETWEEN_RISES or lowest < seen.cap + margin:
            return None
        return min(lowest, seen.cap + percent(options.step_up) * capacity)
