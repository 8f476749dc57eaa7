"""Merging the hints of all providers into the one that the pod or container gets.

The kubelet takes one hint of every resource, in every combination, intersects the masks and
keeps the best result (``topologymanager/policy.go``).  Here the same answer is found without the
combinations, because three facts about its comparison hold:

* A result with the preferred mark beats every result without, and it arises only where all
  resources offer one and the same mask as preferred (or need none).  Those masks are an
  intersection of sets.
* Among results without the mark, the kubelet's case distinction around the *best non-preferred
  affinity count* ``b`` is a strict total order: sizes up to ``b``, the largest first, then sizes
  above ``b``, the smallest first; within a size the fitter mask.  So the order of the
  combinations cannot matter.
* Whether a mask arises at all is therefore the only question left;
  :mod:`pinfold.core.topology_manager.reach` answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from pinfold.core.topology_manager.hints import NUMAInfo, ResourceHints, TopologyHint, narrowness
from pinfold.core.topology_manager.reach import best_intersection

NO_PREFERENCE: Final = (TopologyHint(None, preferred=True),)
IMPOSSIBLE: Final = (TopologyHint(None, preferred=False),)

Fitness: TypeAlias = Callable[[int], tuple[float, ...]]
"""Sort key of non-empty masks, the fittest first; distinct masks have distinct keys."""


class NamedHints(Struct, frozen=True):
    """The hints for one resource as the merge sees them; ``resource`` is "" for "nothing asked"."""

    resource: str
    hints: Sequence[TopologyHint]


def gather_hints(providers: Sequence[ResourceHints | None]) -> tuple[NamedHints, ...]:
    """Flatten what the providers answered (upstream ``filterProvidersHints``).

    No preference becomes one preferred hint without mask; an impossible resource one that is not
    preferred.
    """
    gathered: list[NamedHints] = []
    for answer in providers:
        if not answer:
            gathered.append(NamedHints("", NO_PREFERENCE))
            continue
        for resource, hints in answer.items():
            if hints is None:
                gathered.append(NamedHints(resource, NO_PREFERENCE))
            else:
                gathered.append(NamedHints(resource, hints or IMPOSSIBLE))
    return tuple(gathered)


def only_single_numa(resources: Sequence[NamedHints]) -> tuple[NamedHints, ...]:
    """Keep the preferred hints of one NUMA node or of none (``filterSingleNumaHints``)."""
    return tuple(
        NamedHints(
            resource.resource,
            [
                hint
                for hint in resource.hints
                if hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)
            ],
        )
        for resource in resources
    )


def fitness(numa: NUMAInfo, *, prefer_closest: bool) -> Fitness:
    """How the kubelet orders two masks: ``Narrowest``, or ``Closest`` with the option on."""
    if not prefer_closest:
        return narrowness
    return lambda mask: (mask.bit_count(), numa.average_distance(mask), mask)


def merge_hints(
    resources: Sequence[Sequence[TopologyHint]], numa: NUMAInfo, *, prefer_closest: bool = False
) -> TopologyHint:
    """The best hint over all combinations of one hint of each resource (``HintMerger.Merge``).

    All nodes, not preferred, when no combination leaves a node.  Cost: see
    :func:`pinfold.core.topology_manager.reach.best_intersection`.
    """
    machine, fit = numa.mask, fitness(numa, prefer_closest=prefer_closest)
    common = common_preferred(resources, machine)
    if common:
        return TopologyHint(min(common, key=fit), preferred=True)
    families = [known_masks(hints) for hints in resources]
    width = best_non_preferred_count(families)
    for family, hints in zip(families, resources, strict=True):
        if len(family) < len(hints):
            family.append(machine)
    best = best_intersection(families, machine, width, fit)
    return TopologyHint(machine if best is None else best, preferred=False)


def common_preferred(resources: Iterable[Sequence[TopologyHint]], machine: int) -> set[int]:
    """The non-empty masks that every resource offers as preferred or has no preference about."""
    common: set[int] | None = None
    free: set[int] = {machine}
    for hints in resources:
        masks = {hint.mask for hint in hints if hint.preferred}
        offered = {mask for mask in masks if mask is not None}
        if None in masks:
            free |= offered
        else:
            common = offered if common is None else common & offered
    # The kubelet asks for equality before it cuts the masks to the machine.
    return {mask & machine for mask in (free if common is None else common)} - {0}


def known_masks(hints: Iterable[TopologyHint]) -> list[int]:
    """The masks of the hints that have one."""
    return [mask for hint in hints if (mask := hint.mask) is not None]


def best_non_preferred_count(families: Iterable[Sequence[int]]) -> int:
    """The size of the narrowest mask of the resource whose narrowest mask is the widest."""
    return max([min(map(int.bit_count, masks)) for masks in families if masks], default=0)


def blocking_resources(resources: Mapping[int, NamedHints], machine: int) -> tuple[int, ...]:
    """A smallest-by-inclusion set of resources that cannot share a preferred mask.

    Dropping any one of them would leave a preferred hint; empty when nothing blocks.  For
    explanations: the keys of ``resources`` identify them to the caller.
    """
    blocking = dict(resources)
    if common_preferred([r.hints for r in blocking.values()], machine):
        return ()
    for key in resources:
        rest = [r.hints for other, r in blocking.items() if other != key]
        if not common_preferred(rest, machine):
            del blocking[key]
    return tuple(blocking)
