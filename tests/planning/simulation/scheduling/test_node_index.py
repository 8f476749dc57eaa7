"""The index of nodes answers as if it looked at each node, which the tests do."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.planning.simulation.scheduling.node_index import Capacity, NodeIndex, Scorer, Want
from pinfold.planning.simulation.scheduling.shelves import Layout

GIB = 1 << 30
SCORERS: tuple[Scorer, ...] = ("LeastAllocated", "MostAllocated")
LAYOUTS = (
    Layout(bits=8, most_levels=1, longest=2),
    Layout(bits=10, most_levels=3, longest=3),
    Layout(bits=6, most_levels=24, longest=8),
)
"""Each with few levels, and short parts."""


class EveryNode:
    """What kube-scheduler does: it looks at each node."""

    def __init__(self, capacities: list[Capacity], counts: list[int], scorer: Scorer) -> None:
        each = zip(capacities, counts, strict=True)
        self.has = [one for one, count in each for _ in range(count)]
        self.pods: list[list[Want]] = [[] for _ in self.has]
        self.scorer = scorer

    def scores(self, want: Want) -> dict[int, int]:
        """The nodes with room, with their scores."""
        return {
            node: self._score(node, want) for node in range(len(self.has)) if self._fits(node, want)
        }

    def _fits(self, node: int, want: Want) -> bool:
        has, pods = self.has[node], [*self.pods[node], want]
        return (
            len(pods) <= has.pods
            and sum(pod.cpu for pod in pods) <= has.cpu
            and sum(pod.memory for pod in pods) <= has.memory
            and all(
                sum(pod.extended[place] for pod in pods) <= count
                for place, count in enumerate(has.extended)
            )
        )

    def _score(self, node: int, want: Want) -> int:
        has, pods = self.has[node], [*self.pods[node], want]
        of_each = []
        for capacity, requested in (
            (has.cpu, sum(pod.scored_cpu for pod in pods)),
            (has.memory, sum(pod.scored_memory for pod in pods)),
        ):
            if not capacity:
                continue
            if self.scorer == "LeastAllocated":
                of_each.append(max(0, capacity - requested) * 100 // capacity)
            else:
                of_each.append(min(capacity, requested) * 100 // capacity)
        return sum(of_each) // len(of_each) if of_each else 0


def _memories(most: int) -> st.SearchStrategy[int]:
    return st.one_of(
        st.integers(0, most), st.integers(0, most // (GIB // 4)).map(lambda n: n * GIB // 4)
    )


@st.composite
def _fleets(draw: st.DrawFn) -> tuple[list[Capacity], list[int], list[Want]]:
    kinds = draw(st.integers(1, 3))
    names = draw(st.integers(0, 2))
    extended = st.tuples(*[st.integers(0, 3)] * names)
    capacity = st.builds(
        Capacity,
        cpu=st.one_of(st.just(0), st.integers(0, 8).map(lambda n: 1000 * n), st.integers(1, 9999)),
        memory=st.one_of(st.just(0), _memories(16 * GIB), st.integers(1, 200)),
        extended=extended,
        pods=st.integers(0, 5),
    )
    want = st.builds(
        Want.of,
        st.one_of(st.integers(0, 4).map(lambda n: 1000 * n), st.integers(0, 3000)),
        st.one_of(_memories(4 * GIB), st.integers(0, 100)),
        st.one_of(st.just((0,) * names), extended),
    )
    capacities = draw(st.lists(capacity, min_size=kinds, max_size=kinds))
    counts = draw(st.lists(st.integers(0, 12), min_size=kinds, max_size=kinds))
    return capacities, counts, draw(st.lists(want, min_size=1, max_size=8))


@given(
    fleet=_fleets(),
    scorer=st.sampled_from(SCORERS),
    layout=st.sampled_from((None, *LAYOUTS)),
    data=st.data(),
)
def test_the_best_nodes_are_those_that_looking_at_each_node_finds(
    fleet: tuple[list[Capacity], list[int], list[Want]],
    scorer: Scorer,
    layout: Layout | None,
    data: st.DataObject,
) -> None:
    capacities, counts, wants = fleet
    chance = random.Random(1)  # noqa: S311 - no secret
    index = NodeIndex(capacities, counts, scorer, chance, layout)
    every = EveryNode(capacities, counts, scorer)
    for _ in range(data.draw(st.integers(1, 40))):
        placed = [node for node, pods in enumerate(every.pods) if pods]
        leaves = data.draw(st.booleans())
        if placed and leaves:
            node = data.draw(st.sampled_from(placed))
            pods = every.pods[node]
            index.give(node, pods.pop(data.draw(st.integers(0, len(pods) - 1))))
            continue
        want = data.draw(st.sampled_from(wants))
        scores = every.scores(want)
        chosen = index.choose(want)
        if chosen is None:
            assert not scores
        else:
            assert scores[chosen] == max(scores.values())
        order = list(index.candidates(want))
        assert sorted(order) == sorted(scores)
        assert all(scores[one] >= scores[other] for one, other in pairwise(order))
        if scores:
            node = data.draw(st.sampled_from(sorted(scores)))
            every.pods[node].append(want)
            index.take(node, want)


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("cpus", [(1, 2, 4, 8, 16), (0.251, 0.3, 1.009, 1.777, 5.123)])
@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_a_fleet_that_fills_up_and_empties_is_the_same_as_looking_at_each_node(
    scorer: Scorer, cpus: tuple[float, ...], layout: Layout | None
) -> None:
    chance = random.Random(7)  # noqa: S311 - no secret
    capacities = [
        Capacity(126_000, 508 * GIB, (0,), 110),
        Capacity(62_000, 250 * GIB, (4,), 30),
    ]
    counts = [40, 20]
    wants = [
        Want.of(int(1000 * cpu), int(cpu * each * GIB), (device,))
        for cpu in cpus
        for each in (0.75, 1.75, 3.5, 7)
        for device in (0, 1)
    ]
    wants.append(Want.of(0, 0, (0,)))
    seeded = random.Random(1)  # noqa: S311 - no secret
    index = NodeIndex(capacities, counts, scorer, seeded, layout)
    every = EveryNode(capacities, counts, scorer)
    nowhere = 0
    for step in range(2500):
        pods_to_be = 400 if step < 1500 else 100
        placed = [node for node, pods in enumerate(every.pods) for _ in pods]
        if placed and chance.random() < len(placed) / (2 * pods_to_be):
            node = chance.choice(placed)
            pods = every.pods[node]
            index.give(node, pods.pop(chance.randrange(len(pods))))
            continue
        want = chance.choice(wants)
        scores, chosen = every.scores(want), index.choose(want)
        if chosen is None:
            assert not scores
            nowhere += 1
            continue
        assert scores[chosen] == max(scores.values())
        if step % 50 == 0:
            order = list(index.candidates(want))
            assert sorted(order) == sorted(scores)
            assert all(scores[one] >= scores[other] for one, other in pairwise(order))
        every.pods[chosen].append(want)
        index.take(chosen, want)
    assert nowhere


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("by_candidates", [False, True])
@pytest.mark.parametrize("layout", [None, LAYOUTS[1]])
def test_nodes_of_the_same_score_are_drawn_alike(
    scorer: Scorer, by_candidates: bool, layout: Layout | None
) -> None:
    capacities = [Capacity(32_000, 128 * GIB, (), 110)]
    seeded = random.Random(3)  # noqa: S311 - no secret
    index = NodeIndex(capacities, [30], scorer, seeded, layout)
    every = EveryNode(capacities, [30], scorer)
    chance = random.Random(5)  # noqa: S311 - no secret
    # Uses that differ by so little that many score the same, on several levels.
    for node in range(30):
        want = Want.of(
            16_000 + 50 * chance.randrange(6), (64 << 30) + chance.randrange(1 << 28), ()
        )
        index.take(node, want)
        every.pods[node].append(want)
    asked = Want.of(1000, GIB, ())
    scores = every.scores(asked)
    equal = [node for node, score in scores.items() if score == max(scores.values())]
    assert len(equal) > 5
    draws = 60 * len(equal)
    drawn = Counter(
        next(index.candidates(asked)) if by_candidates else index.choose(asked)
        for _ in range(draws)
    )
    assert set(drawn) == set(equal)
    chi_square = sum((drawn[node] - 60) ** 2 / 60 for node in equal)
    # The mean is the number of degrees of freedom, the deviation the root of twice that.
    free = len(equal) - 1
    assert abs(chi_square - free) < 4 * (2 * free) ** 0.5


def test_candidates_of_one_score_come_in_any_order_alike() -> None:
    index = NodeIndex(
        [Capacity(8000, 8 * GIB, (), 110)],
        [4],
        "LeastAllocated",
        random.Random(3),  # noqa: S311 - no secret
    )
    orders = Counter(tuple(index.candidates(Want.of(1000, GIB, ()))) for _ in range(24 * 200))
    assert len(orders) == 24
    assert sum((count - 200) ** 2 / 200 for count in orders.values()) < 23 + 4 * 46**0.5


@pytest.mark.parametrize("scorer", SCORERS)
def test_the_same_seed_draws_the_same_nodes(scorer: Scorer) -> None:
    def drawn(seed: int) -> list[int | None]:
        chance = random.Random(seed)  # noqa: S311 - no secret
        index = NodeIndex([Capacity(64_000, 256 * GIB, (), 110)] * 2, [5000, 5000], scorer, chance)
        found = []
        for number in range(200):
            want = Want.of(1000 * (number % 3 + 1), GIB * (number % 5), ())
            found.append(index.choose(want))
            index.take(found[-1] or 0, want)
        return found

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_pod_without_requests_counts_with_some_in_scores_only() -> None:
    # 100m and 200 MiB, as kube-scheduler has it; the node has no room for as much.
    index = NodeIndex(
        [Capacity(50, 100 * 1024 * 1024, (), 3)],
        [1],
        "LeastAllocated",
        random.Random(1),  # noqa: S311 - no secret
    )
    want = Want.of(0, 0, ())
    assert (want.scored_cpu, want.scored_memory) == (100, 200 * 1024 * 1024)
    for _ in range(3):
        assert index.choose(want) == 0
        index.take(0, want)
    assert index.choose(want) is None
    index.give(0, want)
    assert index.choose(want) == 0


def test_a_node_full_of_such_pods_is_not_taken_for_empty() -> None:
    index = NodeIndex(
        [Capacity(4000, 8 * GIB, (), 110)],
        [2],
        "LeastAllocated",
        random.Random(1),  # noqa: S311 - no secret
    )
    for _ in range(10):
        index.take(0, Want.of(0, 0, ()))
    assert {index.choose(Want.of(1000, GIB, ())) for _ in range(20)} == {1}
