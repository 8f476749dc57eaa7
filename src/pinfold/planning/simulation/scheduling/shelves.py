"""Nodes in an order in which the best for a pod is found without looking at all of them.

Nodes of one kind that have the same use of everything but cpu and memory are on one shelf.  There,
each use of cpu that occurs is a level, with its nodes in the order of their use of memory: the best
of a level is at one end, or the last that fits, and all that score the same are side by side.

Where too many uses of cpu occur, a level is for a range of them.  What a shelf says then is an
upper bound of the score, and nodes among which are all that may have it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import Struct

from pinfold.planning.nodes.scores import (
    BEST,
    UNREQUESTED_CPU,
    UNREQUESTED_MEMORY,
    least_allocated,
    most_allocated,
)
from pinfold.planning.simulation.scheduling.levels import Level

_WINDOW: Final = 0.0301
"""A node that has so much more in use than another, of the whole, scores less: two roundings of 1 %
each, the mean's of half a point, and those of floating point."""


class Capacity(Struct, frozen=True):
    """What pods may request of a node in total: milli-CPUs, bytes, devices, and how many pods."""

    cpu: int
    memory: int
    extended: tuple[int, ...]
    pods: int


class Want(Struct, frozen=True):
    """What a pod requests, in the same units; ``scored_``: what it counts with in scores."""

    cpu: int
    memory: int
    extended: tuple[int, ...]
    scored_cpu: int
    scored_memory: int

    @classmethod
    def of(cls, cpu: int, memory: int, extended: tuple[int, ...]) -> Want:
        """What a pod of one container with these requests wants; 0: it requests none."""
        return cls(cpu, memory, extended, cpu or UNREQUESTED_CPU, memory or UNREQUESTED_MEMORY)


class Layout(Struct, frozen=True):
    """How shelves are laid out.

    Attributes:
        bits: of an entry, for the number of a node.
        most_levels: uses of cpu of a shelf that have a level of their own; where there are more of
            them, it is divided into so many ranges.
        longest: entries of a part of a level, before it is halved: so few are moved in no time.
    """

    bits: int
    most_levels: int = 256
    longest: int = 2048


Stretch = tuple[Level, int, int, "Shelf"]
"""Entries of a level: where they begin, how many they are, and on which shelf.  They have the same
score, where the shelf is exact; else those that have it are among them."""


class Alike(NamedTuple):
    """What all nodes of a shelf have alike.

    Attributes:
        capacity: of each of them.
        free: what they have left of each extended resource.
        more_cpu, more_memory: by how much their pods count with more in scores than they request.
    """

    capacity: Capacity
    free: tuple[int, ...]
    more_cpu: int = 0
    more_memory: int = 0


class Shelf:
    """Nodes of one kind that use the same of everything but cpu and memory.

    Args:
        alike: what they have alike.
        layout: of all shelves.
    """

    def __init__(self, alike: Alike, layout: Layout) -> None:
        self.capacity, self.free, self.more_cpu, self.more_memory = alike
        self.layout, self.bits = layout, layout.bits
        self.weights = max(1, (self.capacity.cpu > 0) + (self.capacity.memory > 0))
        self.step = 1
        """How many uses of cpu, in milli-CPUs, a level is for; 1: the shelf is exact."""
        self.cpus: list[int] = []
        """The least use of each level."""
        self.levels: list[Level] = []

    def fill(self, nodes: Iterable[int]) -> None:
        """Have nodes that use nothing."""
        self._insert(0, 0, Level(list(nodes), self.layout.longest))

    def add(self, node: int, cpu: int, memory: int) -> None:
        """A node uses so much."""
        cpus = self.cpus
        cpu -= cpu % self.step
        place = bisect_left(cpus, cpu)
        entry = memory << self.bits | node
        if place < len(cpus) and cpus[place] == cpu:
            self.levels[place].add(entry)
            self._changed(place)
        else:
            self._insert(place, cpu, Level((entry,), self.layout.longest))
            if self.step == 1 and len(cpus) > self.layout.most_levels:
                self._divide()

    def remove(self, node: int, cpu: int, memory: int) -> None:
        """A node does not use just so much any more."""
        place = bisect_left(self.cpus, cpu - cpu % self.step)
        if self.levels[place].remove(memory << self.bits | node):
            self._changed(place)
        else:
            self._delete(place)

    def best(self, want: Want, below: int = BEST + 1) -> tuple[int, list[Stretch]]:
        """The best score below a bound that a node with room has, and those that have it.

        -1: none has room.  A shelf that is not exact says the best that may be.
        """
        raise NotImplementedError

    def score(self, want: Want, cpu: int, memory: int) -> int:
        """The score of a node that uses so much; -1: it has no room."""
        has = self.capacity
        if cpu + want.cpu > has.cpu or memory + want.memory > has.memory:
            return -1
        of_cpu = self._of_cpu(cpu + self.more_cpu + want.scored_cpu)
        return (of_cpu + self._of_memory(memory + self.more_memory + want.scored_memory)) // (
            self.weights
        )

    def _of_cpu(self, requested: int) -> int:
        raise NotImplementedError

    def _of_memory(self, requested: int) -> int:
        raise NotImplementedError

    def _divide(self) -> None:
        """Have a level for a range of uses, from now on."""
        self.step = -(-self.capacity.cpu // self.layout.most_levels)
        entries: dict[int, list[int]] = {}
        for cpu, level in zip(self.cpus, self.levels, strict=True):
            merged = entries.setdefault(cpu - cpu % self.step, [])
            for part in level.parts:
                merged += part
        while self.cpus:
            self._delete(len(self.cpus) - 1)
        for cpu, merged in entries.items():
            self._insert(len(self.cpus), cpu, Level(sorted(merged), self.layout.longest))

    def _insert(self, place: int, cpu: int, level: Level) -> None:
        self.cpus.insert(place, cpu)
        self.levels.insert(place, level)

    def _delete(self, place: int) -> None:
        del self.cpus[place]
        del self.levels[place]

    def _changed(self, place: int) -> None:
        """Another entry may be at an end of a level."""


class LeastShelf(Shelf):
    """The emptiest node is the best: the least of memory of some level."""

    def __init__(self, alike: Alike, layout: Layout) -> None:
        super().__init__(alike, layout)
        self._least: list[int] = []  # memory, by level
        self._used: list[float] = []  # cpu and that memory, each as a share of the whole
        is_plain = not alike.more_cpu and not alike.more_memory
        self._plain = is_plain and alike.capacity.cpu > 0 < alike.capacity.memory

    def _insert(self, place: int, cpu: int, level: Level) -> None:
        super()._insert(place, cpu, level)
        self._least.insert(place, -1)
        self._used.insert(place, 0.0)
        self._changed(place)

    def _delete(self, place: int) -> None:
        super()._delete(place)
        del self._least[place], self._used[place]

    def _changed(self, place: int) -> None:
        memory = self.levels[place].parts[0][0] >> self.bits
        if memory != self._least[place]:
            self._least[place] = memory
            has = self.capacity
            self._used[place] = self.cpus[place] / (has.cpu or 1) + memory / (has.memory or 1)

    def _of_cpu(self, requested: int) -> int:
        return least_allocated(requested, self.capacity.cpu)

    def _of_memory(self, requested: int) -> int:
        return least_allocated(requested, self.capacity.memory)

    def best(self, want: Want, below: int = BEST + 1) -> tuple[int, list[Stretch]]:
        """The best score below a bound that a node with room has, and those that have it."""
        end = bisect_right(self.cpus, self.capacity.cpu - want.cpu)
        if not end:
            return -1, []
        used = self._used if end == len(self._used) else self._used[:end]
        lowest = min(used)
        first = used.index(lowest)
        plain = self._plain and want.scored_cpu == want.cpu and want.scored_memory == want.memory
        if plain and below > BEST and self._least[first] <= self.capacity.memory - want.memory:
            bound = lowest + _WINDOW
            return self._emptiest(want, [n for n, use in enumerate(used) if use <= bound])
        return self._of_all(want, below, end, first)

    def _emptiest(self, want: Want, places: list[int]) -> tuple[int, list[Stretch]]:
        """The best of some levels, of which one has room."""
        has, cpus, least = self.capacity, self.cpus, self._least
        cpu, memory = has.cpu, has.memory
        free_cpu, room = cpu - want.cpu, memory - want.memory
        best, found = -1, []
        for place in places:
            low = least[place]
            if low > room:
                continue
            of_cpu = (free_cpu - cpus[place]) * BEST // cpu
            score = (of_cpu + (room - low) * BEST // memory) // 2
            if score > best:
                best, found = score, [(place, of_cpu)]
            elif score == best:
                found.append((place, of_cpu))
        stretches: list[Stretch] = []
        for place, of_cpu in found:
            # So much may be in use of memory at most for this score.
            most = room + ((of_cpu - 2 * best) * memory // BEST if 2 * best > of_cpu else 0)
            level = self.levels[place]
            stretches.append((level, 0, level.below(most + 1 << self.bits), self))
        return best, stretches

    def _of_all(self, want: Want, below: int, end: int, first: int) -> tuple[int, list[Stretch]]:
        weights, bits, spread = self.weights, self.bits, self.step - 1
        more_cpu, more = self.more_cpu + want.scored_cpu, self.more_memory + want.scored_memory
        room = self.capacity.memory - want.memory
        best, found = -1, []
        for place in (first, *range(first), *range(first + 1, end)):
            memory = self._least[place]
            if memory > room:
                continue
            of_cpu = self._of_cpu(self.cpus[place] + more_cpu)
            score = (of_cpu + self._of_memory(memory + more)) // weights
            if score < best:
                continue
            level, start = self.levels[place], 0
            if score >= below:
                # Who has more of memory than this is past the bound for certain.
                certain = self._of_cpu(self.cpus[place] + spread + more_cpu) if spread else of_cpu
                start = level.below(self._uses(below * weights - certain, more) << bits)
                if start == len(level):
                    continue
                memory = level.at(start) >> bits
                if memory > room:
                    continue
                score = min(below - 1, (of_cpu + self._of_memory(memory + more)) // weights)
            if score > best:
                best, found = score, [(level, of_cpu, start)]
            elif score == best:
                found.append((level, of_cpu, start))
        stretches: list[Stretch] = []
        for level, of_cpu, start in found:
            most = min(room + 1, self._uses(best * weights - of_cpu, more))
            stretches.append((level, start, level.below(most << bits) - start, self))
        return best, stretches

    def _uses(self, score: int, more: int) -> int:
        """Who has this score of memory or a better one uses less than that, with some more."""
        memory = self.capacity.memory
        if score <= 0:
            return memory + 1
        if score > BEST or not memory:
            return 0
        return max(0, memory - -(-score * memory // BEST) - more + 1)


class MostShelf(Shelf):
    """The fullest node with room is the best: the most of memory of some level that still fits."""

    def _of_cpu(self, requested: int) -> int:
        return most_allocated(requested, self.capacity.cpu)

    def _of_memory(self, requested: int) -> int:
        return most_allocated(requested, self.capacity.memory)

    def best(self, want: Want, below: int = BEST + 1) -> tuple[int, list[Stretch]]:
        """The best score below a bound that a node with room has, and those that have it."""
        has, weights, bits, spread = self.capacity, self.weights, self.bits, self.step - 1
        more_cpu, more = self.more_cpu + want.scored_cpu, self.more_memory + want.scored_memory
        room = has.memory - want.memory
        if room < 0:
            return -1, []
        no_more = room + 1 << bits
        best, found = -1, []
        for place in range(bisect_right(self.cpus, has.cpu - want.cpu) - 1, -1, -1):
            cpu = self.cpus[place] + more_cpu
            of_cpu = self._of_cpu(cpu + spread)
            if (of_cpu + BEST) // weights < best:
                break
            level, end = self.levels[place], 0
            end = level.below(no_more)
            if not end:
                continue
            score = (of_cpu + self._of_memory((level.at(end - 1) >> bits) + more)) // weights
            if score >= below:
                # Who has less of memory than this is past the bound for certain.
                certain = self._of_cpu(cpu) if spread else of_cpu
                uses = self._uses(below * weights - certain, more)
                end = min(end, level.below(uses << bits))
                if not end:
                    continue
                memory = level.at(end - 1) >> bits
                score = min(below - 1, (of_cpu + self._of_memory(memory + more)) // weights)
            if score > best:
                best, found = score, [(level, of_cpu, end)]
            elif score == best:
                found.append((level, of_cpu, end))
        stretches: list[Stretch] = []
        for level, of_cpu, end in found:
            start = level.below(self._uses(best * weights - of_cpu, more) << bits)
            stretches.append((level, start, end - start, self))
        return best, stretches

    def _uses(self, score: int, more: int) -> int:
        """Who has this score of memory or a better one uses at least that, with some more."""
        if score <= 0:
            return 0
        memory = self.capacity.memory
        if score > BEST or not memory:
            return memory + 1
        return max(0, -(-score * memory // BEST) - more)
