"""Which masks are an intersection of one mask out of each family, and which of them is best.

Four exact ways, chosen by size:

* *Asking*: go through the masks of the best size, the fittest first, and ask of each whether it
  arises.  In short lists one of the first mostly does; after a few that do not another way is
  cheaper.
* *Pairing*: intersect family by family, keeping the distinct results; right for short lists.
* *Counting*: over all subsets of up to :data:`MAX_COUNTED_ATOMS` nodes, count for every mask the
  choices whose intersection contains it (the product of the families' superset counts), then
  take differences, which leaves the choices whose intersection *is* the mask.  All masks of a
  family sit side by side in one big integer, so a step over all of them is one shift and one
  addition.  Cost: about ``(families + 2) * nodes * 2**nodes`` lane operations, whatever the
  lengths of the lists.
* *Searching* (:mod:`pinfold.core.topology_manager.search`): many nodes and long lists; looks for
  masks of the best size in the best order and stops at the first that arises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import combinations, compress
from typing import Final

from pinfold.core.topology_manager.hints import narrowness
from pinfold.core.topology_manager.search import search_best
from pinfold.core.values.cpuset import iter_bits

MAX_COUNTED_ATOMS: Final = 20
"""The counting way's tables have ``2**atoms`` lanes; above a million they want too much memory."""

MAX_ASKED_NODES: Final = 8
"""Nobody is asked on machines with more, of which a kubelet takes none unless it is told to."""
_ASKING_BUDGET: Final = 4096
"""Hints that may be looked at for each that the longest list has."""

_PAIRING_BUDGET: Final = 300_000
"""Intersections that the pairing way may make where counting is not possible."""


def best_intersection(
    families: Sequence[Collection[int]],
    machine: int,
    target: int,
    fit: Callable[[int], tuple[float, ...]],
) -> int | None:
    """The best non-empty ``machine & f1 & f2 & ...`` over all choices of one mask per family.

    Best is: most nodes but no more than ``target``; else fewest nodes; among equals the lowest
    ``fit``.  ``None`` if every choice is empty.
    """
    if len(families) == 1:
        return pick_best({mask & machine for mask in families[0]}, target, fit)
    if fit is narrowness and all(families):
        found = _ask(families, machine, target)
        if found is not None:
            return found
    reduced = _reduce(families, machine)
    if reduced is None:
        return None
    sizes = [len(family) for family in reduced]
    nodes = _union(reduced[0]).bit_length()
    if nodes <= MAX_COUNTED_ATOMS and _pairing_cost(sizes, nodes) > len(sizes) << nodes:
        return pick_best(_reach_by_counting(reduced), target, fit)
    reached = _reach_by_pairing(reduced, _PAIRING_BUDGET)
    if reached is not None:
        return pick_best(reached, target, fit)
    atoms = _atoms(reduced)
    if len(atoms) <= MAX_COUNTED_ATOMS:
        packed = [{_pack(mask, atoms) for mask in family} for family in reduced]
        return pick_best((_unpack(mask, atoms) for mask in _reach_by_counting(packed)), target, fit)
    return search_best(reduced, sizes_in_order(_union(reduced[0]).bit_count(), target), fit)


def sizes_in_order(nodes: int, target: int) -> list[int]:
    """Sizes of masks, the most welcome first: ``target`` downwards, then upwards from it."""
    return [*range(min(target, nodes), 0, -1), *range(target + 1, nodes + 1)]


def pick_best(
    masks: Iterable[int], target: int, fit: Callable[[int], tuple[float, ...]]
) -> int | None:
    """The best of the non-empty ``masks``, see :func:`best_intersection`."""
    by_size: dict[int, list[int]] = {}
    for mask in masks:
        by_size.setdefault(mask.bit_count(), []).append(mask)
    by_size.pop(0, None)
    if not by_size:
        return None
    size = min(by_size, key=lambda size: (size > target, size if size > target else -size))
    # The key may be costly (distances), so only masks of the right size are asked for it.
    return min(by_size[size], key=fit)


def _ask(families: Sequence[Collection[int]], machine: int, target: int) -> int | None:
    """The best mask where it is one of the first of the best size; else nothing is known."""
    lengths, nodes = [len(family) for family in families], machine.bit_count()
    if nodes > MAX_ASKED_NODES:
        return None
    # Another way is the cheaper, the shorter the shortest list is.
    most = min(2 * min(lengths), _ASKING_BUDGET // max(lengths))
    for mask in _masks_of_size(machine, min(target, nodes) or 1)[:most]:
        if _arises(mask, families, machine):
            return mask
    return None


@lru_cache(maxsize=256)
def _masks_of_size(machine: int, size: int) -> Sequence[int]:
    """The masks of that many of the machine's nodes, ascending."""
    return sorted(map(sum, combinations([1 << node for node in iter_bits(machine)], size)))


def _arises(mask: int, families: Sequence[Collection[int]], machine: int) -> bool:
    """Whether a choice of one mask of each family has these nodes in common, and no others."""
    others = machine & ~mask
    left = {others}
    for family in families[:-1]:
        left = {one & other for one in family if one & mask == mask for other in left}
        if 0 in left:
            left = {0}  # whatever the rest brings, as long as it has these nodes
    for one in families[-1]:
        if one & mask == mask:
            for other in left:
                if not one & other:
                    return True
    return False


def _reduce(families: Sequence[Collection[int]], machine: int) -> list[set[int]] | None:
    """Leave only nodes that can be in a result; ``None`` if there is no non-empty result.

    Families come out shortest first, and at least one.
    """
    common = machine
    for family in families:
        common &= _union(family)
    reduced: list[set[int]] = [{common}]
    for family in families:
        masks = {mask & common for mask in family}
        masks.discard(0)
        if masks != {common}:
            reduced.append(masks)
    if not common or not all(reduced):
        return None
    return sorted(reduced[1:] or reduced, key=len)


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _pairing_cost(sizes: Sequence[int], nodes: int) -> int:
    cost, reached = 0, sizes[0]
    for size in sizes[1:]:
        cost += reached * size
        reached = min(reached * size, 1 << nodes)
    return cost


def _reach_by_pairing(families: Sequence[AbstractSet[int]], budget: int) -> AbstractSet[int] | None:
    reached = families[0]
    for family in families[1:]:
        budget -= len(reached) * len(family)
        if budget < 0:
            return None
        reached = {one & other for one in reached for other in family}
    return reached


def _atoms(families: Sequence[AbstractSet[int]]) -> list[int]:
    """Split the nodes into groups that no mask of any family tells apart, lowest node first."""
    nodes = _union(families[0])
    atoms = [nodes]
    for family in families:
        for mask in family:
            if len(atoms) == nodes.bit_count():
                break
            for index, atom in enumerate(atoms):
                inside = atom & mask
                if inside and inside != atom:
                    atoms[index] = inside
                    atoms.append(atom ^ inside)
    return sorted(atoms, key=lambda atom: atom & -atom)


def _pack(mask: int, atoms: Sequence[int]) -> int:
    return sum(1 << index for index, atom in enumerate(atoms) if mask & atom)


def _unpack(packed: int, atoms: Sequence[int]) -> int:
    return sum(atoms[index] for index in iter_bits(packed))


def _reach_by_counting(families: Sequence[AbstractSet[int]]) -> Iterable[int]:
    nodes = _union(families[0]).bit_length()
    slots = 1 << nodes
    products: Sequence[int] = ()
    for family in families:
        counts = _superset_counts(family, nodes)
        products = [a * b for a, b in zip(products, counts, strict=True)] if products else counts
    # Every count is at most the number of choices, so a lane of that width never overflows.
    choices = 1
    for family in families:
        choices *= len(family)
    width = (choices.bit_length() + 7) // 8
    lanes = int.from_bytes(
        b"".join([count.to_bytes(width, "little") for count in products]), "little"
    )
    for node in range(nodes):
        # What remains counts choices that agree with the mask on the nodes done so far, hence
        # no lane can become negative and borrow from its neighbour.
        lanes -= (lanes >> (8 * width << node)) & _lanes_without(node, nodes, width)
    exact = lanes.to_bytes(width * slots, "little")
    arises = 0
    for byte in range(width):
        arises |= int.from_bytes(exact[byte::width], "little")
    return compress(range(slots), arises.to_bytes(slots, "little"))


def _superset_counts(family: AbstractSet[int], nodes: int) -> Sequence[int]:
    """For every mask of ``nodes`` nodes, how many masks of ``family`` contain it."""
    slots = 1 << nodes
    present = bytearray(slots)
    for mask in family:
        present[mask] = 1
    table = bytearray(4 * slots)
    table[::4] = present
    lanes = int.from_bytes(table, "little")
    for node in range(nodes):
        lanes += (lanes >> (32 << node)) & _lanes_without(node, nodes, 4)
    return struct.unpack(f"<{slots}I", lanes.to_bytes(4 * slots, "little"))


def _lanes_without(node: int, nodes: int, width: int) -> int:
    """All ones in the lanes (``width`` bytes each) of the masks that lack ``node``."""
    run = width << node
    return int.from_bytes((b"\xff" * run + bytes(run)) * (1 << (nodes - node - 1)), "little")
