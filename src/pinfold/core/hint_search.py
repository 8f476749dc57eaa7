"""The search for the best intersection where nodes and hints are too many for a table.

Masks are built node by node from the highest down, "not in it" first, so that they come out in
ascending order.  A partial mask is dropped as soon as no choice of one mask per family has its
chosen nodes and lacks its refused ones.  Which masks of a family are still possible is one
integer with a bit for each, so keeping them all up to date costs one AND per family and node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from pinfold.core.cpuset import iter_bits
from pinfold.core.hints import narrowness


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
    descending = list(iter_bits(nodes))[::-1]
    for size in sizes:
        found = _Search(indexed, descending).masks(size)
        best = next(found, None) if fit is narrowness else min(found, key=fit, default=None)
        if best is not None:
            return best
    return None


@dataclass(frozen=True, slots=True)
class _IndexedFamily:
    """A family turned on its side: for each node the set of masks (by index) that have it."""

    masks: tuple[int, ...]
    having: tuple[int, ...]
    at_least: tuple[int, ...]
    """For each size the set of masks with that many nodes or more."""

    @classmethod
    def build(cls, family: AbstractSet[int]) -> _IndexedFamily:
        masks = tuple(sorted(family))
        width = max(mask.bit_length() for mask in masks)
        # Reversed, because the first digit of a number is its highest bit.
        rows = "".join([format(mask, f"0{width}b") for mask in reversed(masks)])
        having = tuple(int(rows[width - 1 - node :: width], 2) for node in range(width))
        counts = [mask.bit_count() for mask in masks]
        at_least = [0] * 65
        for index, count in enumerate(counts):
            at_least[count] |= 1 << index
        for count in range(63, -1, -1):
            at_least[count] |= at_least[count + 1]
        return cls(masks, having, tuple(at_least))

    def having_node(self, node: int) -> int:
        return self.having[node] if node < len(self.having) else 0


@dataclass(frozen=True, slots=True)
class _Search:
    families: Sequence[_IndexedFamily]
    nodes: Sequence[int]

    def masks(self, size: int) -> Iterator[int]:
        """Yield the masks of ``size`` nodes that arise, ascending."""
        # A mask that contains the result has at least as many nodes.
        alive = [family.at_least[size] for family in self.families]
        yield from self._visit(0, size, alive, alive, 0)

    def _visit(
        self, depth: int, missing: int, alive: list[int], clean: list[int], chosen: int
    ) -> Iterator[int]:
        """Extend ``chosen``, which lacks ``missing`` nodes of its size.

        ``alive`` are the masks of each family that contain it, ``clean`` those of them without
        any of the refused nodes.
        """
        if not all(alive) or missing > len(self.nodes) - depth:
            return
        # One family that lacks all refused nodes settles it; only else they must share the work.
        if not any(clean) and not self._can_refuse(alive, self._decided(depth) & ~chosen):
            return
        if depth == len(self.nodes):
            yield chosen
            return
        node = self.nodes[depth]
        having = [family.having_node(node) for family in self.families]
        if missing < len(self.nodes) - depth:
            lacking = [c & ~h for c, h in zip(clean, having, strict=True)]
            yield from self._visit(depth + 1, missing, alive, lacking, chosen)
        if missing:
            alive = [a & h for a, h in zip(alive, having, strict=True)]
            clean = [c & h for c, h in zip(clean, having, strict=True)]
            yield from self._visit(depth + 1, missing - 1, alive, clean, chosen | 1 << node)

    def _decided(self, depth: int) -> int:
        return sum(1 << node for node in self.nodes[:depth])

    def _can_refuse(self, alive: list[int], refused: int) -> bool:
        """Whether some choice of one living mask per family has no refused node in common."""
        refused_nodes = list(iter_bits(refused))
        for node in refused_nodes:
            if not any(
                a & ~family.having_node(node)
                for a, family in zip(alive, self.families, strict=True)
            ):
                return False
        order = sorted(range(len(alive)), key=lambda index: alive[index].bit_count())
        open_sets = {refused}
        for index in order[:-1]:
            masks = self.families[index].masks
            parts = _minimal({masks[i] & refused for i in iter_bits(alive[index])})
            open_sets = _minimal({left & part for left in open_sets for part in parts})
            if 0 in open_sets:
                return True
        last, family = alive[order[-1]], self.families[order[-1]]
        for left in open_sets:
            lacking = last
            for node in iter_bits(left):
                lacking &= ~family.having_node(node)
            if lacking:
                return True
        return False


def _minimal(masks: set[int]) -> set[int]:
    """Drop masks that contain another one: whatever those can refuse, the smaller one can too."""
    kept: list[int] = []
    for mask in sorted(masks, key=int.bit_count):
        if not any(small & mask == small for small in kept):
            kept.append(mask)
    return set(kept)
