"""What whoever divides caches has to do, the kernel or a fake."""

from __future__ import annotations

import pytest

from pinfold.core.cache.offers import Group
from pinfold.core.cache.options import CacheClass
from pinfold.core.cache.plan import DEFAULT, Wish, plan_groups
from pinfold.core.cache.steps import Assign, Make, Remove, Write, steps
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cache_groups import CacheError, CacheGroups, NoGroupLeftError

FAST = {"fast": CacheClass(l3="4", memory_bandwidth="50%"), "thin": CacheClass(l3="1")}


def follow(groups: CacheGroups, *wishes: Wish) -> dict[str, Group]:
    """Bring it there; the groups of ours by owner."""
    offer, now = groups.read()
    plan = plan_groups(offer, FAST, wishes, now)
    for step in steps(offer, now, plan):
        groups.carry_out(step)
    _, now = groups.read()
    return {owner: now.ours[name] for owner, name in plan.placed.items()}


class CacheGroupsContract:
    """Eight CPUs at two caches with 12 ways each, four ids, and nobody's groups."""

    def test_nothing_is_divided_at_first(self, groups: CacheGroups) -> None:
        offer, now = groups.read()
        assert (offer.ids, [cache.name for cache in offer.caches]) == (4, ["L3"])
        assert offer.caches[0].domains == {0: CPUSet(range(4)), 1: CPUSet(range(4, 8))}
        assert (now.ours, now.foreign) == ({}, ())
        assert now.default.schemata["L3"] == now.before["L3"] == {0: 0xFFF, 1: 0xFFF}
        assert now.default.cpus == CPUSet(range(8))

    def test_owners_come_and_go(self, groups: CacheGroups) -> None:
        first, second = Wish("a", "fast", CPUSet([1, 2])), Wish("b", "fast", CPUSet([3, 4]))
        found = follow(groups, first, second)
        assert (found["a"].cpus, found["a"].schemata["L3"][0]) == (CPUSet([1, 2]), 0x00F)
        assert (found["b"].cpus, found["b"].schemata["L3"]) == (CPUSet([3, 4]), {0: 0x0F0, 1: 0xF})
        assert groups.read()[1].default.cpus == CPUSet([0, 5, 6, 7])
        assert groups.read()[1].default.schemata["L3"] == {0: 0xF00, 1: 0xFF0}
        moved = follow(groups, Wish("b", "fast", CPUSet([2, 3])))
        assert (moved["b"].cpus, moved["b"].schemata["L3"]) == (
            CPUSet([2, 3]),
            {0: 0x0F0, 1: 0xFFF},
        )
        assert not follow(groups)
        now = groups.read()[1]
        assert now.default.schemata["L3"] == now.before["L3"] == {0: 0xFFF, 1: 0xFFF}
        assert now.default.cpus == CPUSet(range(8))

    def test_ids_run_out(self, groups: CacheGroups) -> None:
        for name in "abc":
            groups.carry_out(Make(f"pinfold.{name}", {"L3": {0: 1}}))
        with pytest.raises(NoGroupLeftError):
            groups.carry_out(Make("pinfold.d", {"L3": {0: 1}}))
        assert len(groups.read()[1].ours) == 3

    def test_what_is_not_ours_is_not_changed(self, groups: CacheGroups) -> None:
        for step in (Write("theirs", {"L3": {0: 1}}), Assign("theirs", CPUSet([1]))):
            with pytest.raises(CacheError):
                groups.carry_out(step)
        with pytest.raises(CacheError):
            groups.carry_out(Remove("theirs"))
        with pytest.raises(CacheError):
            groups.carry_out(Assign(DEFAULT, CPUSet([1])))
