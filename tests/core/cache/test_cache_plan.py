"""Groups of resctrl: whatever is wished for, and at every step, nobody's ways overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.cache.classes import NotOfferedError, asked, limit
from pinfold.core.cache.masks import is_valid, place, rest_of, runs
from pinfold.core.cache.offers import BANDWIDTH, Bandwidth, Cache, Group, Offer, Schemata
from pinfold.core.cache.options import CacheClass
from pinfold.core.cache.plan import DEFAULT, Now, Why, Wish, group_name, plan_groups
from pinfold.core.cache.schemata import merged
from pinfold.core.cache.steps import Make, Step, applied, steps
from pinfold.core.values.cpuset import CPUSet

CPUS = 8
TWO = {0: CPUSet(range(4)), 1: CPUSet(range(4, 8))}


def l3(bits: int = 12, *, cdp: bool = False, shareable: int = 0, least: int = 1) -> Cache:
    lines = ("L3CODE", "L3DATA") if cdp else ("L3",)
    return Cache(3, lines, (1 << bits) - 1, least, shareable, sparse=False, domains=TWO)


def fresh(offer: Offer, foreign: tuple[Group, ...] = ()) -> Now:
    """What there is right after mounting, but for groups of other tools."""
    schemata = {
        line: dict.fromkeys(cache.domains, cache.mask)
        for cache in offer.caches
        for line in cache.lines
    }
    taken = CPUSet.union_of(group.cpus for group in foreign)
    return Now(Group(DEFAULT, CPUSet(range(CPUS)) - taken, schemata), schemata, {}, foreign)


def done(now: Now, offer: Offer, step: Step) -> Now:
    """What there is after a step that the kernel can do."""
    if isinstance(step, Make):
        assert step.group not in now.ours
        assert len(now.ours) + len(now.foreign) + 1 < offer.ids, "out of ids"
    return applied(now, step)


def owns(offer: Offer, group: Group, classes: Mapping[str, CacheClass]) -> set[int]:
    """The levels of which a group has ways of its own."""
    return set(asked(offer, classes[group.name.split(".")[1]]))


def assert_sound(offer: Offer, now: Now, classes: Mapping[str, CacheClass]) -> None:
    """Whoever has ways to himself has them, the kernel takes all masks, others keep theirs."""
    for slot in offer.slots():
        everybody = [now.default, *now.ours.values()]
        for group in everybody:
            if group.cpus & slot.cpus:
                assert all(is_valid(slot.cache, mask) for mask in slot.masks(group.schemata)), group
        for group in now.ours.values():
            if not group.cpus & slot.cpus or slot.cache.level not in owns(offer, group, classes):
                continue
            own = slot.ways(group.schemata)
            assert not own & slot.cache.shareable
            for other in (*everybody, *now.foreign):
                here = other.name == DEFAULT or other.cpus & slot.cpus or other in now.foreign
                if other is not group and here:
                    has = slot.said if other in now.foreign else slot.ways
                    assert not own & has(other.schemata), (group, other)


# ------------------------------------------------------------------------------- whatever is wished


@st.composite
def caches(draw: st.DrawFn, level: int) -> Cache:
    bits = draw(st.integers(2, 20))
    apart, least = draw(st.booleans()), draw(st.integers(0, min(3, bits)))
    top = draw(st.integers(0, bits // 2))
    shareable = ((1 << top) - 1) << (bits - top if draw(st.booleans()) else 0)
    cpus = draw(st.sampled_from([{0: CPUSet(range(CPUS))}, TWO, {7: TWO[0], 9: TWO[1]}]))
    name = f"L{level}"
    lines = (f"{name}CODE", f"{name}DATA") if apart else (name,)
    return Cache(level, lines, (1 << bits) - 1, least, shareable, draw(st.booleans()), cpus)


@st.composite
def offers(draw: st.DrawFn) -> Offer:
    found: tuple[Cache, ...] = (draw(caches(3)),)
    if draw(st.booleans()):
        found = (*found, draw(caches(2)))
    bandwidth = Bandwidth("%", 10, 10, found[0].domains) if draw(st.booleans()) else None
    return Offer(draw(st.integers(2, 8)), found, bandwidth)


AMOUNTS = st.sampled_from(["", "1", "2", "3", "25%", "50%"])


@st.composite
def class_sets(draw: st.DrawFn) -> dict[str, CacheClass]:
    def one() -> CacheClass:
        return CacheClass(
            l3=draw(AMOUNTS),
            l2=draw(AMOUNTS),
            memory_bandwidth=draw(st.sampled_from(["", "35%"])),
            each=draw(st.booleans()),
        )

    return {"gold": one(), "tin": one()}


@st.composite
def wish_lists(draw: st.DrawFn) -> list[Wish]:
    owners = draw(st.lists(st.sampled_from(["", "a", "b", "c", "d", "e"]), min_size=8, max_size=8))
    names = dict.fromkeys(filter(None, owners))
    return [
        Wish(
            name,
            "tin" if name in "ad" else "gold",
            CPUSet(cpu for cpu, owner in enumerate(owners) if owner == name),
        )
        for name in names
    ]


@given(offers(), class_sets(), st.lists(wish_lists(), min_size=1, max_size=5), st.data())
def test_no_two_have_the_same_ways_at_any_moment(
    offer: Offer, classes: dict[str, CacheClass], changes: list[list[Wish]], data: st.DataObject
) -> None:
    """Also where somebody dies half-way, and the next one has other wishes."""
    taken = data.draw(st.booleans())
    cache = offer.caches[0]
    other = Group("theirs", CPUSet([7]), {cache.lines[0]: dict.fromkeys(cache.domains, 1)})
    now = fresh(offer, (other,) if taken and is_valid(cache, 1) else ())
    for wishes in changes:
        plan = plan_groups(offer, classes, wishes, now)
        way = list(steps(offer, now, plan))
        dies = data.draw(st.integers(0, len(way)))
        for step in way[:dies]:
            now = done(now, offer, step)
            assert_sound(offer, now, classes)
        if dies == len(way):
            assert {n: g.cpus for n, g in now.ours.items()} == {
                n: g.cpus for n, g in plan.groups.items()
            }
            for name, group in plan.groups.items():
                assert merged(now.ours[name].schemata, group.schemata) == now.ours[name].schemata
            assert merged(now.default.schemata, plan.rest) == now.default.schemata
            assert not list(steps(offer, now, plan_groups(offer, classes, wishes, now)))
        assert plan.placed.keys() | plan.refused.keys() == {wish.owner for wish in wishes}
        assert not plan.placed.keys() & plan.refused.keys()
    for step in steps(offer, now, plan_groups(offer, classes, [], now)):
        now = done(now, offer, step)
        assert_sound(offer, now, classes)
    assert not now.ours
    assert now.default.schemata == now.before


@given(caches(3), st.data())
def test_what_is_placed_is_valid_and_apart(cache: Cache, data: st.DataObject) -> None:
    free = data.draw(st.integers(0, cache.mask))
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    placed = place(cache, free, counts)
    if placed is None:
        # With one of them there is no such run, or too few ways in all.
        longest = max((run.bit_count() for run in runs(free)), default=0)
        assert len(counts) > 1 or max(counts[0], cache.min_bits) > longest
        return
    taken = 0
    for mask, count in zip(placed, counts, strict=True):
        assert is_valid(cache, mask)
        assert mask.bit_count() == max(count, cache.min_bits)
        assert not mask & (taken | ~free)
        taken |= mask


@given(caches(3), st.integers(0))
def test_the_rest_is_valid_or_nothing(cache: Cache, mask: int) -> None:
    rest = rest_of(cache, mask & cache.mask)
    assert rest & ~mask == 0
    if rest:
        assert is_valid(cache, rest)
    else:
        assert all(run.bit_count() < max(cache.min_bits, 1) for run in runs(mask & cache.mask))


# ------------------------------------------------------------------------------------ what is given


def owner(name: str, cpus: str, cache_class: str = "gold") -> Wish:
    return Wish(name, cache_class, CPUSet.parse(cpus))


def masks_of(offer: Offer, wishes: Iterable[Wish], asks: CacheClass) -> dict[str, Schemata]:
    plan = plan_groups(offer, {"gold": asks}, wishes, fresh(offer))
    assert not plan.refused
    return {o: plan.groups[name].schemata for o, name in plan.placed.items()} | {"": plan.rest}


def test_ways_are_given_where_the_cpus_are() -> None:
    """At the other cache the container has what all others have, and takes nothing from them."""
    found = masks_of(Offer(8, (l3(),)), [owner("a", "0-1"), owner("b", "2,4")], CacheClass(l3="4"))
    assert found == {
        "a": {"L3": {0: 0x00F, 1: 0xFF0}},
        "b": {"L3": {0: 0x0F0, 1: 0x00F}},
        "": {"L3": {0: 0xF00, 1: 0xFF0}},
    }


def test_ways_that_io_fills_are_nobodys_own() -> None:
    found = masks_of(Offer(8, (l3(shareable=0xC00),)), [owner("a", "0")], CacheClass(l3="25%"))
    assert found["a"]["L3"][0] == 0x007
    found = masks_of(Offer(8, (l3(shareable=0x003),)), [owner("a", "0")], CacheClass(l3="25%"))
    assert found["a"]["L3"][0] == 0xE00


def test_code_and_data_apart() -> None:
    offer = Offer(8, (l3(cdp=True),))
    apart = masks_of(offer, [owner("a", "0")], CacheClass(l3_code="2", l3_data="3"))
    assert (apart["a"]["L3CODE"][0], apart["a"]["L3DATA"][0]) == (0x003, 0x01C)
    assert (apart[""]["L3CODE"][0], apart[""]["L3DATA"][0]) == (0xFE0, 0xFE0)
    both = masks_of(offer, [owner("a", "0")], CacheClass(l3="2"))
    assert (both["a"]["L3CODE"][0], both["a"]["L3DATA"][0]) == (0x003, 0x003)


def test_a_class_that_shares_has_one_group() -> None:
    offer, asks = Offer(8, (l3(),)), CacheClass(l3="4", each=False)
    plan = plan_groups(offer, {"gold": asks}, [owner("a", "0"), owner("b", "1")], fresh(offer))
    assert [group.cpus for group in plan.groups.values()] == [CPUSet([0, 1])]
    assert plan.placed == dict.fromkeys(["a", "b"], group_name("gold", asks, "a"))


def test_others_keep_their_ways_and_holes_are_closed_when_they_have_to_be() -> None:
    offer, classes = Offer(8, (l3(),)), {"gold": CacheClass(l3="3"), "big": CacheClass(l3="6")}
    now = fresh(offer)
    for wishes in (
        [owner("a", "0"), owner("b", "1"), owner("c", "2")],
        [owner("b", "1"), owner("c", "2")],
    ):
        plan = plan_groups(offer, classes, wishes, now)
        for step in steps(offer, now, plan):
            now = done(now, offer, step)
    kept = {name: group.schemata["L3"][0] for name, group in plan.groups.items()}
    assert sorted(kept.values()) == [0x038, 0x1C0]
    wishes = [owner("b", "1", "big"), owner("c", "2"), owner("d", "3", "gold")]
    assert plan_groups(offer, classes, wishes, now).refused.keys() == {"d"}, "6, 3, 3, and 1"
    wishes = [owner("b", "1"), owner("c", "2"), owner("d", "3", "big")]
    assert plan_groups(offer, classes, wishes, now).refused.keys() == {"d"}
    smaller = classes | {"big": CacheClass(l3="5")}
    plan = plan_groups(offer, smaller, wishes, now)
    assert not plan.refused
    for step in steps(offer, now, plan):
        now = done(now, offer, step)
        assert_sound(offer, now, smaller)


def refusal_of(offer: Offer, wishes: list[Wish], classes: dict[str, CacheClass]) -> tuple[Why, str]:
    plan = plan_groups(offer, classes, wishes, fresh(offer))
    (found,) = plan.refused.values()
    return found.why, found.message


def test_refusals_have_a_name() -> None:
    offer, four = Offer(3, (l3(8),)), {"gold": CacheClass(l3="4")}
    three = {"gold": CacheClass(l3="1")}
    assert refusal_of(offer, [owner("a", "0", "tin")], four) == (
        Why.UNKNOWN_CLASS,
        "there is no class tin; the configuration has gold",
    )
    assert refusal_of(offer, [owner("a", "")], four)[0] is Why.NO_CPUS
    assert refusal_of(offer, [owner("a", "0"), owner("b", "1")], four) == (
        Why.OUT_OF_WAYS,
        "4 ways of L3 are not left; of its 8 ways 8 can be somebody's own, and all others need 1",
    )
    assert refusal_of(offer, [owner("a", "0"), owner("b", "1"), owner("c", "2")], three) == (
        Why.OUT_OF_IDS,
        "the machine has 3 classes, one of them is of all others, and 2 are given out",
    )
    assert refusal_of(offer, [owner("a", "0")], {"gold": CacheClass(l2="1")}) == (
        Why.NOT_OFFERED,
        "class gold: resctrl does not divide the L2 caches here",
    )


def test_cpus_and_ways_of_another_tools_group_are_left_alone() -> None:
    offer, classes = Offer(8, (l3(),)), {"gold": CacheClass(l3="4")}
    theirs = Group("theirs", CPUSet([1]), {"L3": {0: 0x0F0, 1: 0x0F0}})
    now = fresh(offer, (theirs,))
    plan = plan_groups(offer, classes, [owner("a", "0"), owner("b", "1")], now)
    assert plan.refused["b"].why is Why.FOREIGN_GROUP
    assert plan.groups[plan.placed["a"]].schemata["L3"][0] == 0x00F
    # One whose ways are locked (a pseudo-locked region) has no others.
    locked = fresh(offer, (replace(theirs, cpus=CPUSet(), schemata={"L3": {1: 0x0F0}}),))
    plan = plan_groups(offer, {"gold": CacheClass(l3="8")}, [owner("a", "0")], locked)
    assert plan.groups[plan.placed["a"]].schemata["L3"][0] == 0x0FF
    full = fresh(offer, (replace(theirs, schemata={"L3": {0: 0xFFF, 1: 0xFFF}}),))
    assert plan_groups(offer, classes, [owner("a", "0")], full).refused["a"].message == (
        "4 ways of L3 are not left; of its 12 ways 0 can be somebody's own (other tools' groups "
        "have some: theirs), and all others need 1"
    )


@pytest.mark.parametrize(
    ("asks", "problem"),
    [
        (CacheClass(l3="1", l3_code="1", l3_data="1"), "l3 is for code and data"),
        (CacheClass(l3_code="1"), "l3Code and l3Data are given together"),
        (CacheClass(l3_code="1", l3_data="1"), "not mounted with cdp"),
        (CacheClass(l2_code="1", l2_data="1"), "does not divide the L2"),
    ],
)
def test_what_a_machine_does_not_offer(asks: CacheClass, problem: str) -> None:
    with pytest.raises(NotOfferedError, match=problem):
        asked(Offer(8, (l3(),)), asks)


def test_bandwidth_is_rounded_as_the_kernel_rounds() -> None:
    share = Bandwidth("%", 10, 10, TWO)
    assert [limit(share, said) for said in ("", "1%", "35%", "100%")] == [None, 10, 40, 100]
    assert limit(Bandwidth("MBps", 10, 10, TWO), "4001MBps") == 4010
    assert limit(Bandwidth("GBps/8", 1, 1, TWO), "2001MBps") == 17
    for bandwidth, said in ((share, "5MBps"), (replace(share, unit="MBps"), "5%"), (None, "5%")):
        with pytest.raises(NotOfferedError):
            limit(bandwidth, said)
    offer = Offer(8, (l3(),), share)
    found = masks_of(offer, [owner("a", "0")], CacheClass(memory_bandwidth="50%"))
    assert found["a"][BANDWIDTH] == {0: 50, 1: 50}
    assert found["a"]["L3"] == found[""]["L3"]
