"""Groups of resctrl in memory, for planning and tests; see :mod:`pinfold.ports.cache_groups`."""

from __future__ import annotations

from pinfold.core.cache.offers import Group, Offer
from pinfold.core.cache.plan import DEFAULT, Now
from pinfold.core.cache.steps import Make, Step, Write, applied
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cache_groups import CacheError, NoGroupLeftError


class FakeCacheGroups:
    """Does what the kernel would, as far as it is about ids, names, ways and CPUs.

    Args:
        offer: what there is to divide.
        online: the CPUs.
        foreign: groups of others.
    """

    def __init__(self, offer: Offer, online: CPUSet, foreign: tuple[Group, ...] = ()) -> None:
        full = {
            line: dict.fromkeys(cache.domains, cache.mask)
            for cache in offer.caches
            for line in cache.lines
        }
        taken = CPUSet.union_of(group.cpus for group in foreign)
        self.offer = offer
        self.now = Now(Group(DEFAULT, online - taken, full), full, {}, foreign)
        self.done: list[Step] = []

    def read(self) -> tuple[Offer, Now]:
        """See :class:`CacheGroups`."""
        return self.offer, self.now

    def carry_out(self, step: Step) -> None:
        """See :class:`CacheGroups`."""
        if isinstance(step, Make):
            if step.group in {group.name for group in (*self.now.ours.values(), *self.now.foreign)}:
                raise CacheError(f"{step.group}: there is such a group")
            if len(self.now.ours) + len(self.now.foreign) + 1 >= self.offer.ids:
                raise NoGroupLeftError(f"{step.group}: no id is left")
        elif step.group not in {*self.now.ours, DEFAULT}:
            raise CacheError(f"{step.group}: there is no such group")
        elif step.group == DEFAULT and not isinstance(step, Write):
            raise CacheError("the default group is the kernel's")
        self.now = applied(self.now, step)
        self.done.append(step)

    def close(self) -> None:
        """See :class:`CacheGroups`."""
