"""In which order groups of resctrl become others, so that no two have the same ways meanwhile.

CPUs leave first: they are in the default group then, with all others.  Groups that nobody needs
are removed, which frees theirs; ways are given up, then taken, new groups are made, and CPUs join
last.  Each step is
one call of the kernel's, and after each of them a container that has ways to itself has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.cache.masks import is_valid
from pinfold.core.cache.offers import BANDWIDTH, Cache, Group, Offer, Schemata, Slot
from pinfold.core.cache.plan import DEFAULT, CachePlan, Now
from pinfold.core.cache.schemata import merged
from pinfold.core.values.cpuset import CPUSet


class Assign(Struct, frozen=True, tag="assign"):
    """A group has these CPUs from now on; those that it had besides go to the default group."""

    group: str
    cpus: CPUSet


class Remove(Struct, frozen=True, tag="remove"):
    """A group is removed; its CPUs go to the default group."""

    group: str


class Write(Struct, frozen=True, tag="write"):
    """A group (the default one: "") has this from now on, in the places that are named."""

    group: str
    schemata: Schemata


class Make(Struct, frozen=True, tag="make"):
    """A group is made, without CPUs, and has this."""

    group: str
    schemata: Schemata


Step: TypeAlias = Assign | Remove | Write | Make


def steps(offer: Offer, now: Now, plan: CachePlan) -> Iterator[Step]:
    """The way from what there is to what there should be."""
    cpus = {name: group.cpus for name, group in now.ours.items()}
    for name, group in sorted(now.ours.items()):
        target = plan.groups.get(name)
        if target is None:
            yield Remove(name)
            del cpus[name]
        elif group.cpus - target.cpus:
            cpus[name] = group.cpus & target.cpus
            yield Assign(name, cpus[name])
    for slot in offer.slots():
        yield from _masks(slot, now, plan, cpus)
    for name in sorted(cpus):
        wanted, has = plan.groups[name].schemata, now.ours[name].schemata
        if BANDWIDTH in wanted and wanted[BANDWIDTH] != has.get(BANDWIDTH):
            yield Write(name, {BANDWIDTH: wanted[BANDWIDTH]})
    for name, target in sorted(plan.groups.items()):
        if name not in cpus:
            yield Make(name, target.schemata)
        if cpus.get(name, CPUSet()) != target.cpus:
            yield Assign(name, target.cpus)


def _masks(slot: Slot, now: Now, plan: CachePlan, cpus: dict[str, CPUSet]) -> Iterator[Step]:
    """One cache: nobody takes a way before whoever had it has given it up."""
    wanted = {DEFAULT: slot.masks(plan.rest)}
    masks = {DEFAULT: slot.masks(now.default.schemata)}
    for name in sorted(cpus):
        target, has = (slot.masks(groups[name].schemata) for groups in (plan.groups, now.ours))
        if cpus[name] & slot.cpus:
            wanted[name], masks[name] = target, has
        elif target != has:
            # Nobody fills anything with it until CPUs join, when all have what they should.
            yield Write(name, _lines(slot, target))
    shares = {name for name, target in wanted.items() if target == wanted[DEFAULT]}
    while pending := [name for name, target in wanted.items() if masks[name] != target]:
        found = _next(slot.cache, pending, masks, wanted, shares)
        if found is None:
            # They wait for each other: one of them is with all others for a moment.
            name = pending[-1]
            cpus[name] = CPUSet()
            yield Assign(name, CPUSet())
            yield Write(name, _lines(slot, wanted.pop(name)))
            del masks[name]
        else:
            name, target = found
            masks[name] = target
            yield Write(name, _lines(slot, target))


def _next(
    cache: Cache,
    pending: Sequence[str],
    masks: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, tuple[int, ...]],
    shares: Collection[str],
) -> tuple[str, tuple[int, ...]] | None:
    """Who can be changed now, and to what; None: nobody."""
    for name in pending:
        target, has = wanted[name], masks[name]
        gives_up = all(new & ~old == 0 for new, old in zip(target, has, strict=True))
        taken = 0
        for other, theirs in masks.items():
            if other != name and not (name in shares and other in shares):
                taken |= _union(theirs)
        if gives_up or not _union(target) & taken:
            return name, target
    for name in pending:
        both = tuple(new & old for new, old in zip(wanted[name], masks[name], strict=True))
        if both != masks[name] and all(is_valid(cache, mask) for mask in both):
            return name, both
    return None


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _lines(slot: Slot, masks: Iterable[int]) -> Schemata:
    return {line: {slot.domain: mask} for line, mask in zip(slot.cache.lines, masks, strict=True)}


def applied(now: Now, step: Step) -> Now:
    """What there is after a step, as the kernel does it."""
    ours, default = dict(now.ours), now.default
    match step:
        case Assign(name, cpus):
            back = ours[name].cpus - cpus
            ours = {one: replace(group, cpus=group.cpus - cpus) for one, group in ours.items()}
            ours[name] = replace(ours[name], cpus=cpus)
            default = replace(default, cpus=(default.cpus | back) - cpus)
        case Remove(name):
            default = replace(default, cpus=default.cpus | ours.pop(name).cpus)
        case Write(name, schemata) if name == DEFAULT:
            default = replace(default, schemata=merged(default.schemata, schemata))
        case Write(name, schemata):
            ours[name] = replace(ours[name], schemata=merged(ours[name].schemata, schemata))
        case Make(name, schemata):
            ours[name] = Group(name, CPUSet(), merged(now.before, schemata))
    return replace(now, ours=ours, default=default)
