"""Which groups of resctrl there should be, and what each has, so that no two have the same ways.

A container that owns CPUs has a class.  Its group has ways of its own in every cache at which the
container has a CPU; elsewhere, and where the class asks for nothing, it has what all others share.
The others are in the default group, whose ways shrink by what was given out.  Groups that somebody
else has made keep their ways and CPUs, and ways that I/O may fill are nobody's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct, field

from pinfold.core.cache.classes import NotOfferedError, asked, limit
from pinfold.core.cache.masks import grows_up, is_valid, place, rest_of
from pinfold.core.cache.offers import BANDWIDTH, Group, Offer, Schemata, Slot
from pinfold.core.cache.options import CacheClass
from pinfold.core.values.cpuset import CPUSet

PREFIX: Final = "pinfold."
"""What the names of our groups begin with."""

DEFAULT: Final = ""
"""The name of the default group."""


class Why(Enum):
    """Why a container has no class."""

    UNKNOWN_CLASS = "UnknownCacheClass"
    NOT_OFFERED = "CacheNotOffered"
    NO_CPUS = "NoExclusiveCPUs"
    FOREIGN_GROUP = "CPUsOfAnotherGroup"
    OUT_OF_IDS = "OutOfCacheClasses"
    OUT_OF_WAYS = "OutOfCacheWays"


class Wish(Struct, frozen=True):
    """A container that has a class, and the CPUs that it owns (none: it shares all)."""

    owner: str
    cache_class: str
    cpus: CPUSet


class Refusal(Struct, frozen=True):
    """Why a container shares what all others have."""

    why: Why
    message: str


class Now(Struct, frozen=True):
    """What there is.

    Attributes:
        default: the default group.
        before: what it had before anything was given out.
        ours: the groups that we have made, by name.
        foreign: those of others.
    """

    default: Group
    before: Schemata
    ours: Mapping[str, Group] = field(default_factory=dict)
    foreign: tuple[Group, ...] = ()


class CachePlan(Struct, frozen=True):
    """What there should be: our groups, what is left for all others, who is where, who is not."""

    groups: Mapping[str, Group]
    rest: Schemata
    placed: Mapping[str, str]
    refused: Mapping[str, Refusal]


class _Want(Struct, frozen=True):
    """A group as it is asked for; ``ways`` by level of cache, ``owners`` those in it."""

    name: str
    cpus: CPUSet
    ways: Mapping[int, tuple[int, ...]]
    bandwidth: int | None
    owners: tuple[str, ...]


_Masks = Mapping[tuple[int, int], Mapping[str, tuple[int, ...]]]
"""By cache and group, the masks line by line."""


def group_name(cache_class: str, asks: CacheClass, owner: str) -> str:
    """The name of a group: another one for another definition of the class."""
    said = msgspec.json.encode([cache_class, asks, owner if asks.each else ""])
    return f"{PREFIX}{cache_class}.{hashlib.sha256(said).hexdigest()[:12]}"


def plan_groups(
    offer: Offer, classes: Mapping[str, CacheClass], wishes: Iterable[Wish], now: Now
) -> CachePlan:
    """Decide; whoever has ways keeps them as long as all others can be served.

    Args:
        offer: what the machine has.
        classes: by name.
        wishes: the containers that have a class, those first who are to be served first.
        now: what there is.
    """
    refused: dict[str, Refusal] = {}
    wants = _wants(offer, classes, wishes, now, refused)
    known = [want for want in wants if want.name in now.ours]
    new = [want for want in wants if want.name not in now.ours]
    room = offer.ids - 1 - len(now.foreign)
    accepted: list[_Want] = []
    masks = _arranged(offer, now, ())
    for want in (*known, *new):
        if len(accepted) >= room:
            message = (
                f"the machine has {offer.ids} classes, one of them is of all others"
                + (f" and {len(now.foreign)} of other tools" if now.foreign else "")
                + f", and {len(accepted)} are given out"
            )
            refused |= dict.fromkeys(want.owners, Refusal(Why.OUT_OF_IDS, message))
            continue
        found = _arranged(offer, now, (*accepted, want))
        if found is None:
            message = _no_ways(offer, now, want)
            refused |= dict.fromkeys(want.owners, Refusal(Why.OUT_OF_WAYS, message))
            continue
        accepted.append(want)
        masks = found
    rest = {} if masks is None else _rest(offer, now, masks)
    return CachePlan(
        groups={
            want.name: Group(want.name, want.cpus, _schemata(offer, want, masks or {}, rest))
            for want in accepted
        },
        rest=rest,
        placed={owner: want.name for want in accepted for owner in want.owners},
        refused=refused,
    )


def _wants(
    offer: Offer,
    classes: Mapping[str, CacheClass],
    wishes: Iterable[Wish],
    now: Now,
    refused: dict[str, Refusal],
) -> list[_Want]:
    wants: dict[str, _Want] = {}
    for wish in wishes:
        owner, asks = wish.owner, classes.get(wish.cache_class)
        if asks is None:
            listed = ", ".join(sorted(classes)) or "none"
            message = f"there is no class {wish.cache_class}; the configuration has {listed}"
            refused[owner] = Refusal(Why.UNKNOWN_CLASS, message)
            continue
        if not wish.cpus:
            message = "it owns no CPUs: only those of a container can be given a class"
            refused[owner] = Refusal(Why.NO_CPUS, message)
            continue
        taken = [group for group in now.foreign if group.cpus & wish.cpus]
        if taken:
            message = f"CPUs {taken[0].cpus & wish.cpus} are in the group {taken[0].name}"
            refused[owner] = Refusal(Why.FOREIGN_GROUP, f"{message}, which is another tool's")
            continue
        try:
            ways, most = asked(offer, asks), limit(offer.bandwidth, asks.memory_bandwidth)
        except NotOfferedError as error:
            refused[owner] = Refusal(Why.NOT_OFFERED, f"class {wish.cache_class}: {error}")
            continue
        name = group_name(wish.cache_class, asks, owner)
        same = wants.get(name)
        cpus, owners = (same.cpus, same.owners) if same else (CPUSet(), ())
        wants[name] = _Want(name, cpus | wish.cpus, ways, most, (*owners, owner))
    return list(wants.values())


def _arranged(offer: Offer, now: Now, wants: Sequence[_Want]) -> _Masks | None:
    """The ways of each group in each cache; None where there is no room for all of them."""
    found = {}
    for slot in offer.slots():
        takers = [w for w in wants if slot.cache.level in w.ways and w.cpus & slot.cpus]
        masks = _kept(slot, now, takers)
        if masks is None:
            # What was left in between may do, once all of them have moved together.
            masks = _given(slot, now, sorted(takers, key=lambda want: _position(slot, now, want)))
        if masks is None:
            return None
        found[slot.key] = masks
    return found


def _position(slot: Slot, now: Now, want: _Want) -> int:
    """Where a group is now, so that those who move together keep their order."""
    group = now.ours.get(want.name)
    if group is None or not group.cpus & slot.cpus:
        return 1 << 64
    ways = slot.ways(group.schemata)
    return ways if grows_up(slot.cache) else -ways


def _usable(slot: Slot, now: Now) -> int:
    """The ways that may be somebody's own."""
    usable = slot.cache.mask & ~slot.cache.shareable
    for mask in slot.masks(now.before):
        usable &= mask
    for group in now.foreign:
        # One whose ways are locked names these only.
        usable &= ~slot.said(group.schemata)
    return usable


def _kept(slot: Slot, now: Now, takers: Sequence[_Want]) -> Mapping[str, tuple[int, ...]] | None:
    """Everybody where he is, the others in what is free."""
    free, kept = _usable(slot, now), {}
    for want in takers:
        group = now.ours.get(want.name)
        if group is None or not group.cpus & slot.cpus:
            continue
        masks, counts = slot.masks(group.schemata), want.ways[slot.cache.level]
        own = masks[: len(counts)]
        taken = slot.ways(group.schemata)
        if (
            len(set(masks)) == len(counts)
            and taken.bit_count() == sum(counts)
            and taken & ~free == 0
            and all(
                is_valid(slot.cache, mask) and mask.bit_count() == count
                for mask, count in zip(own, counts, strict=True)
            )
        ):
            kept[want.name] = own
            free &= ~taken
    return _given(slot, now, [w for w in takers if w.name not in kept], free, kept)


def _given(
    slot: Slot,
    now: Now,
    takers: Sequence[_Want],
    free: int | None = None,
    kept: Mapping[str, tuple[int, ...]] | None = None,
) -> Mapping[str, tuple[int, ...]] | None:
    free = _usable(slot, now) if free is None else free
    found = dict(kept or {})
    for want in takers:
        masks = place(slot.cache, free, want.ways[slot.cache.level])
        if masks is None:
            return None
        found[want.name] = masks
        for mask in masks:
            free &= ~mask
    if found and not all(_rest_masks(slot, now, found)):
        return None
    return found


def _rest_masks(slot: Slot, now: Now, given: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """What is left for all others, line by line; 0 where nothing valid is."""
    before = slot.masks(now.before)
    if not given:
        return before
    taken = 0
    for masks in given.values():
        for mask in masks:
            taken |= mask
    return tuple(rest_of(slot.cache, mask & ~taken) for mask in before)


def _rest(offer: Offer, now: Now, masks: _Masks) -> Schemata:
    rest: dict[str, dict[int, int]] = {}
    for slot in offer.slots():
        left = _rest_masks(slot, now, masks[slot.key])
        for line, mask in zip(slot.cache.lines, left, strict=True):
            rest.setdefault(line, {})[slot.domain] = mask
    return rest


def _schemata(offer: Offer, want: _Want, masks: _Masks, rest: Schemata) -> Schemata:
    found = {line: dict(domains) for line, domains in rest.items()}
    for slot in offer.slots():
        own = masks[slot.key].get(want.name)
        if own is not None:
            # One mask is for code and data alike.
            for at, line in enumerate(slot.cache.lines):
                found[line][slot.domain] = own[min(at, len(own) - 1)]
    if want.bandwidth is not None and offer.bandwidth is not None:
        found[BANDWIDTH] = dict.fromkeys(offer.bandwidth.domains, want.bandwidth)
    return found


def _no_ways(offer: Offer, now: Now, want: _Want) -> str:
    """Where there is no room for a group, in words."""
    for slot in offer.slots():
        level = slot.cache.level
        if level not in want.ways or not want.cpus & slot.cpus:
            continue
        usable, count = _usable(slot, now).bit_count(), sum(want.ways[level])
        others = [group.name for group in now.foreign if slot.said(group.schemata)]
        taken = f" (other tools' groups have some: {', '.join(others[:3])})" if others else ""
        every, least = slot.cache.mask.bit_count(), max(slot.cache.min_bits, 1)
        return (
            f"{count} ways of {slot.cache.name} are not left; of its {every} ways {usable} can be "
            f"somebody's own{taken}, and all others need {least}"
        )
    return "there are no ways left"
