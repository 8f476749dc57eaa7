"""Which node a pod is sent to: kube-scheduler's filter and scores, over sums.

A node does where its cpu, memory, extended resources and number of pods do (the filter of
``NodeResourcesFit``).  Of those the best by ``LeastAllocated`` or ``MostAllocated`` over cpu and
memory gets the pod; among several with the same score, which is an integer, chance decides.  No
other plugin filters or scores.  All nodes are looked at, as with ``percentageOfNodesToScore: 100``;
what kube-scheduler looks at of itself is less where there are more than 100 nodes.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from pinfold.planning.nodes.scores import BEST
from pinfold.planning.simulation.scheduling.shelves import (
    Alike,
    Capacity,
    Layout,
    LeastShelf,
    MostShelf,
    Shelf,
    Stretch,
    Want,
)

__all__ = ["Capacity", "NodeIndex", "Scorer", "Want"]

Scorer = Literal["LeastAllocated", "MostAllocated"]

_TRIES: Final = 24
"""How often chance may miss the nodes with a score among others, before these are looked for."""


class NodeIndex:
    """The room on each node, numbered kind after kind.

    What a question or a change costs does not depend on how many nodes there are, but on in how
    many ways they differ in their use of cpu.

    Args:
        capacities: of each kind of node.
        counts: how many there are of it.
        scorer: by which the best node is told.
        chance: decides among those that are as good.
        layout: of what is inside; the default is a fast one.
    """

    def __init__(
        self,
        capacities: Sequence[Capacity],
        counts: Sequence[int],
        scorer: Scorer,
        chance: random.Random,
        layout: Layout | None = None,
    ) -> None:
        self._form = MostShelf if scorer == "MostAllocated" else LeastShelf
        self._random = chance.random
        total = sum(counts)
        self._layout = Layout(total.bit_length()) if layout is None else layout
        self._mask = (1 << self._layout.bits) - 1
        self._cpu, self._memory = array("q", bytes(8 * total)), array("q", bytes(8 * total))
        self._slots = array("l")  # how many more pods may come
        self._shelf: list[Shelf] = []  # of each node
        self._shelves: dict[Alike, Shelf] = {}
        self._filled: dict[Shelf, None] = {}  # those with nodes
        nodes: dict[Shelf, list[int]] = {}
        for capacity, count in zip(capacities, counts, strict=True):
            shelf = self._shelf_of(Alike(capacity, capacity.extended))
            first = len(self._slots)
            self._slots.extend([capacity.pods] * count)
            self._shelf += [shelf] * count
            if count and capacity.pods > 0:
                nodes.setdefault(shelf, []).extend(range(first, first + count))
        for shelf, alike in nodes.items():
            shelf.fill(alike)
            self._filled[shelf] = None

    def choose(self, want: Want) -> int | None:
        """The node that a pod is sent to; None where none has room."""
        best, stretches = self._best(want, BEST + 1)
        while best >= 0:
            count = sum([one[2] for one in stretches])
            if _are_exact(stretches):
                return self._at(stretches, int(self._random() * count))
            # Whom chance meets first of those that have the score is drawn from among them alike.
            for _ in range(_TRIES if count > _TRIES else 0):
                node = self._at(stretches, int(self._random() * count))
                if self._score(node, want) == best:
                    return node
            found = [node for node in self._all(stretches) if self._score(node, want) == best]
            if found:
                return found[int(self._random() * len(found))]
            best, stretches = self._best(want, best)
        return None

    def candidates(self, want: Want) -> Iterator[int]:
        """Yield the nodes with room, the best score first; none may change meanwhile."""
        best, stretches = self._best(want, BEST + 1)
        while best >= 0:
            exact = _are_exact(stretches)
            # Drawn without putting back: who was drawn changes places with the last.
            moved: dict[int, int] = {}
            for left in range(sum([one[2] for one in stretches]) - 1, -1, -1):
                drawn = int(self._random() * (left + 1))
                last = moved.pop(left, left)
                place = last if drawn == left else moved.get(drawn, drawn)
                moved[drawn] = last
                node = self._at(stretches, place)
                if exact or self._score(node, want) == best:
                    yield node
            best, stretches = self._best(want, best)

    def take(self, node: int, want: Want) -> None:
        """The node has that much less room."""
        self._slots[node] -= 1
        self._change(node, want, 1)

    def give(self, node: int, want: Want) -> None:
        """The node has that much more room."""
        self._slots[node] += 1
        self._change(node, want, -1)

    def _change(self, node: int, want: Want, sign: int) -> None:
        slots = self._slots[node]
        shelf = self._shelf[node]
        before_cpu, before_memory = self._cpu[node], self._memory[node]
        cpu = self._cpu[node] = before_cpu + sign * want.cpu
        memory = self._memory[node] = before_memory + sign * want.memory
        # Who may have no more pods is on no shelf.
        if slots + sign > 0:
            shelf.remove(node, before_cpu, before_memory)
            if not shelf.cpus:
                del self._filled[shelf]
        more_cpu, more_memory = want.scored_cpu - want.cpu, want.scored_memory - want.memory
        if more_cpu or more_memory or any(want.extended):
            each = zip(shelf.free, want.extended, strict=True)
            shelf = self._shelf[node] = self._shelf_of(
                Alike(
                    shelf.capacity,
                    tuple([free - sign * asked for free, asked in each]),
                    shelf.more_cpu + sign * more_cpu,
                    shelf.more_memory + sign * more_memory,
                )
            )
        if slots > 0:
            if not shelf.cpus:
                self._filled[shelf] = None
            shelf.add(node, cpu, memory)

    def _best(self, want: Want, below: int) -> tuple[int, list[Stretch]]:
        best, found = -1, []
        extended = want.extended if any(want.extended) else ()
        for shelf in self._filled:
            if extended and any(map(int.__lt__, shelf.free, extended)):
                continue
            score, stretches = shelf.best(want, below)
            if score > best:
                best, found = score, stretches
            elif score == best:
                found += stretches
        return best, found

    def _score(self, node: int, want: Want) -> int:
        return self._shelf[node].score(want, self._cpu[node], self._memory[node])

    def _at(self, stretches: list[Stretch], place: int) -> int:
        for level, start, count, _ in stretches:
            if place < count:
                return level.at(start + place) & self._mask
            place -= count
        raise IndexError(place)

    def _all(self, stretches: list[Stretch]) -> Iterator[int]:
        for level, start, count, _ in stretches:
            for entry in level.between(start, start + count):
                yield entry & self._mask

    def _shelf_of(self, alike: Alike) -> Shelf:
        shelf = self._shelves.get(alike)
        if shelf is None:
            shelf = self._shelves[alike] = self._form(alike, self._layout)
        return shelf


def _are_exact(stretches: list[Stretch]) -> bool:
    return all(one[3].step == 1 for one in stretches)
