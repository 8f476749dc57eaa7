"""Which node a pod is sent to: kube-scheduler's filter and scores, over sums."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from msgspec import Struct


class Capacity(Struct, frozen=True):
    """What pods may request of a node in total: milli-CPUs, bytes, devices, and how many pods."""

    cpu: int
    memory: int
    extended: tuple[int, ...]
    pods: int


class Want(Struct, frozen=True):
    """What a pod requests, in the same units."""

    cpu: int
    memory: int
    extended: tuple[int, ...]

    @classmethod
    def of(cls, cpu: int, memory: int, extended: tuple[int, ...]) -> Want:
        """What a pod with these requests wants."""
        return cls(cpu, memory, extended)


class NodeIndex:
    """The room on each node, numbered kind after kind."""

    def __init__(
        self,
        capacities: Sequence[Capacity],
        counts: Sequence[int],
        scorer: str,
        chance: random.Random,
    ) -> None:
        each = zip(capacities, counts, strict=True)
        self._has = [one for one, count in each for _ in range(count)]
        self._used = [(0, 0, (0,) * len(one.extended), 0) for one in self._has]
        self._most = scorer == "MostAllocated"
        self._chance = chance

    def choose(self, want: Want) -> int | None:
        """The node that a pod is sent to; None where none has room."""
        return next(self.candidates(want), None)

    def candidates(self, want: Want) -> Iterator[int]:
        """Yield the nodes with room, the best score first."""
        found = []
        for number, (has, used) in enumerate(zip(self._has, self._used, strict=True)):
            cpu, memory = used[0] + want.cpu, used[1] + want.memory
            fits = cpu <= has.cpu and memory <= has.memory and used[3] < has.pods
            if fits and all(
                u + w <= h for u, w, h in zip(used[2], want.extended, has.extended, strict=True)
            ):
                shares = cpu * 100 // (has.cpu or 1) + memory * 100 // (has.memory or 1)
                score = shares if self._most else 200 - shares
                found.append((-(score // 2), self._chance.random(), number))
        return iter([number for _, _, number in sorted(found)])

    def take(self, node: int, want: Want) -> None:
        """The node has that much less room."""
        self._change(node, want, 1)

    def give(self, node: int, want: Want) -> None:
        """The node has that much more room."""
        self._change(node, want, -1)

    def _change(self, node: int, want: Want, sign: int) -> None:
        cpu, memory, extended, pods = self._used[node]
        more = zip(extended, want.extended, strict=True)
        self._used[node] = (
            cpu + sign * want.cpu,
            memory + sign * want.memory,
            tuple(a + sign * b for a, b in more),
            pods + sign,
        )
