"""The search for the best intersection where nodes and hints are too many for a table.

Masks are built node by node from the highest down, "not in it" first, so that they come out in
ascending order.  A partial mask is dropped as soon as no choice of one mask per family has its
chosen nodes and lacks its refused ones.  Which masks of a family are still possible is one
integer with a bit for each, so keeping them all up to date costs one AND per family and node.

Whether a mask is such an intersection is NP-hard when the number of families is free, so lists
can be made (thousands of random wide masks on 48 nodes) that take very long; what providers hint
is regular, and settles at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate

from msgspec import Struct

from pinfold.core.topology_manager.hints import narrowness
from pinfold.core.values.cpuset import iter_bits


def search_best(
    families: Sequence[AbstractSet[int]],
    sizes: Iterable[int],
    fit: Callable[[int], tuple[float, ...]],
) -> int | None:
    """The best mask of the first of ``sizes`` of which any arises; ``None`` if none does.

    Best within a size is the lowest ``fit``.  With any other order than the plain one every
    mask of that size is looked at.
    """
    indexed = [_IndexedFamily.build(family) for family in families]
    nodes = 0
    for mask in families[0]:
        nodes |= mask
    search = _Search.over(indexed, nodes)
    for size in sizes:
        found = search.masks(size)
        best = next(found, None) if fit is narrowness else min(found, key=fit, default=None)
        if best is not None:
            return best
    return None


class _IndexedFamily(Struct, frozen=True):
    """A family turned on its side: for each node the set of masks (by index) that have it."""

    masks: tuple[int, ...]
    having: tuple[int, ...]
    at_least: tuple[int, ...]
    """For each size the set of masks with that many nodes or more."""

    @classmethod
    def build(cls, family: AbstractSet[int]) -> _IndexedFamily:
        masks = tuple(sorted(family))
        width = max(mask.bit_length() for mask in masks)
        # Columns are cut out of one text; the last mask comes first, because the first digit of
        # a number is its highest bit.
        rows = "".join([format(mask, f"0{width}b") for mask in reversed(masks)])
        having = tuple(int(rows[width - 1 - node :: width], 2) for node in range(width))
        counts = bytes([mask.bit_count() for mask in reversed(masks)])
        at_least = tuple(
            int(counts.translate(b"0" * size + b"1" * (256 - size)), 2) for size in range(width + 1)
        )
        return cls(masks, having, at_least)

    def of_size(self, size: int) -> int:
        """The masks with ``size`` nodes or more."""
        return self.at_least[size] if size < len(self.at_least) else 0

    def with_node(self, masks: int, node: int) -> int:
        """Those of ``masks`` that have ``node``."""
        return masks & self.having[node] if node < len(self.having) else 0

    def lacking(self, masks: int, nodes: Iterable[int]) -> int:
        """Those of ``masks`` that have none of ``nodes``."""
        for node in nodes:
            if not masks:
                break
            if node < len(self.having):
                masks &= ~self.having[node]
        return masks

    def any_of(self, masks: int) -> int:
        """One mask out of ``masks``, of which there is at least one."""
        return self.masks[masks.bit_length() - 1]


class _Search(Struct, frozen=True):
    families: Sequence[_IndexedFamily]
    nodes: Sequence[int]
    """The highest first."""
    decided: Sequence[int]
    """For each depth the mask of the nodes before it."""

    @classmethod
    def over(cls, families: Sequence[_IndexedFamily], nodes: int) -> _Search:
        descending = list(iter_bits(nodes))[::-1]
        decided = accumulate((1 << node for node in descending), initial=0)
        return cls(families, descending, list(decided))

    def masks(self, size: int) -> Iterator[int]:
        """Yield the masks of ``size`` nodes that arise, ascending."""
        # A mask that contains the result has at least as many nodes.
        alive = [family.of_size(size) for family in self.families]
        yield from self._visit(0, size, alive, 0, 0)

    def _visit(
        self, depth: int, missing: int, alive: list[int], chosen: int, met: int
    ) -> Iterator[int]:
        """Extend ``chosen``, which lacks ``missing`` nodes of its size.

        ``alive`` are the masks of each family that contain it; ``met`` is the intersection of
        a choice that was good enough for the mask before its last node.
        """
        if not all(alive) or missing > len(self.nodes) - depth:
            return
        decided = self.decided[depth]
        if met & decided != chosen:
            other = _refuse(self.families, alive, decided ^ chosen)
            if other is None:
                return
            met = other
        if depth == len(self.nodes):
            yield chosen
            return
        if missing < len(self.nodes) - depth:
            yield from self._visit(depth + 1, missing, alive, chosen, met)
        if missing:
            node = self.nodes[depth]
            alive = [
                family.with_node(masks, node)
                for masks, family in zip(alive, self.families, strict=True)
            ]
            yield from self._visit(depth + 1, missing - 1, alive, chosen | 1 << node, met)


def _refuse(families: Sequence[_IndexedFamily], alive: Sequence[int], refused: int) -> int | None:
    """The intersection of one living mask per family that have no refused node in common.

    ``None`` if there are none.
    """
    nodes = list(iter_bits(refused))
    shared = nodes
    for masks, family in zip(alive, families, strict=True):
        lacking = family.lacking(masks, nodes)
        if lacking:
            # One family does it alone; the others may bring any mask.
            met = family.any_of(lacking)
            for others, other in zip(alive, families, strict=True):
                met &= other.any_of(others) if other is not family else -1
            return met
        shared = [node for node in shared if not family.lacking(masks, [node])]
    if shared:
        return None
    pairs = sorted(zip(alive, families, strict=True), key=lambda pair: pair[0].bit_count())
    last_alive, last = pairs.pop()
    choices = []
    for masks, family in pairs:
        parts = {family.masks[i] & refused: family.masks[i] for i in iter_bits(masks)}
        choices.append(sorted(parts.items(), key=lambda item: item[0].bit_count()))
    return _Refusal(choices, last, last_alive, set()).dive(0, refused, -1)


class _Refusal(Struct, frozen=True):
    """The families sharing the refused nodes out among them."""

    choices: Sequence[Sequence[tuple[int, int]]]
    """For each family but the last: (refused nodes in the mask, mask), the fewest first."""
    last: _IndexedFamily
    last_alive: int
    failed: set[tuple[int, int]]

    def dive(self, level: int, left: int, met: int) -> int | None:
        """Let the families from ``level`` on lack the refused nodes that are ``left``."""
        key = (level, left)
        if key in self.failed:
            return None
        if level == len(self.choices):
            lacking = self.last.lacking(self.last_alive, iter_bits(left))
            if lacking:
                return met & self.last.any_of(lacking)
        else:
            for part, mask in self.choices[level]:
                found = self.dive(level + 1, left & part, met & mask)
                if found is not None:
                    return found
        self.failed.add(key)
        return None
