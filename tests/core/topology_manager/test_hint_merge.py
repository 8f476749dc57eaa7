"""The merge gives what trying every combination gives, order of combinations included."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pinfold.core.topology_manager import reach as hint_reach
from pinfold.core.topology_manager import search as hint_search
from pinfold.core.topology_manager.hints import (
    NUMAInfo,
    ResourceHints,
    TopologyHint,
    is_narrower,
    narrowness,
)
from pinfold.core.topology_manager.manager import TopologyManager
from pinfold.core.topology_manager.merge import (
    NamedHints,
    best_non_preferred_count,
    blocking_resources,
    common_preferred,
    fitness,
    gather_hints,
    known_masks,
    merge_hints,
    only_single_numa,
)
from pinfold.core.topology_manager.policy import Policy, Scope, TopologyManagerOptions
from pinfold.core.topology_manager.reach import best_intersection, sizes_in_order
from pinfold.core.topology_manager.search import search_best

Answer = dict[str, list[TopologyHint] | None] | None


def enumerate_combinations(
    resources: Sequence[Sequence[TopologyHint]], numa: NUMAInfo, *, prefer_closest: bool
) -> TopologyHint:
    """The documented procedure: every combination in order, a running best."""
    width = best_non_preferred_count(map(known_masks, resources))

    def fitter(current: int, candidate: int) -> bool:
        if prefer_closest and current.bit_count() == candidate.bit_count():
            near, far = numa.average_distance(candidate), numa.average_distance(current)
            return candidate < current if near == far else near < far
        return is_narrower(candidate, current)

    def replaces(current: TopologyHint, candidate: TopologyHint) -> bool:
        now, new = cast("int", current.mask), cast("int", candidate.mask)
        if current.preferred != candidate.preferred:
            return candidate.preferred
        if current.preferred or now.bit_count() > width:
            return fitter(now, new)
        if now.bit_count() == width:
            return new.bit_count() == width and fitter(now, new)
        if new.bit_count() > width or new.bit_count() < now.bit_count():
            return False
        if new.bit_count() == width or new.bit_count() > now.bit_count():
            return True
        return fitter(now, new)

    best: TopologyHint | None = None
    for combination in itertools.product(*resources):
        merged, masks = numa.mask, [hint.mask for hint in combination if hint.mask is not None]
        for mask in masks:
            merged &= mask
        preferred = len(set(masks)) <= 1 and all(hint.preferred for hint in combination)
        candidate = TopologyHint(merged, preferred)
        if merged and (best is None or replaces(best, candidate)):
            best = candidate
    return best or TopologyHint(numa.mask, preferred=False)


@st.composite
def machines(draw: st.DrawFn) -> NUMAInfo:
    nodes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
    row = st.lists(st.sampled_from([10, 11, 12, 17, 20, 21, 32]), min_size=10, max_size=10)
    distances = draw(st.none() | st.fixed_dictionaries(dict.fromkeys(nodes, row)))
    return NUMAInfo(tuple(nodes), distances)


def hint_lists(numa: NUMAInfo) -> st.SearchStrategy[list[TopologyHint]]:
    node_sets = st.sets(st.sampled_from(numa.nodes)).map(lambda nodes: sum(1 << n for n in nodes))
    masks = st.one_of(node_sets, node_sets, node_sets, st.none(), st.integers(0, 1 << 10))
    # Mostly not preferred, so that the rarer, harder half of the comparison is reached.
    marks = st.sampled_from([False, False, False, True])
    return st.lists(st.builds(TopologyHint, masks, marks), max_size=7)


def answers(numa: NUMAInfo) -> st.SearchStrategy[list[Answer]]:
    answer = st.dictionaries(
        st.sampled_from(["cpu", "memory", "hugepages-2Mi", "gpu"]),
        st.none() | hint_lists(numa),
        max_size=2,
    )
    return st.lists(st.none() | answer, max_size=4)


@st.composite
def questions(draw: st.DrawFn) -> tuple[NUMAInfo, list[Answer]]:
    numa = draw(machines())
    return numa, draw(answers(numa))


@settings(max_examples=600, deadline=None)
@given(question=questions(), prefer_closest=st.booleans())
def test_merge_is_the_enumeration(
    *, question: tuple[NUMAInfo, list[Answer]], prefer_closest: bool
) -> None:
    numa, given_answers = question
    assume(not prefer_closest or numa.distances is not None)
    resources = [resource.hints for resource in gather_hints(given_answers)]
    assume(_combinations(resources) <= 5_000)
    got = merge_hints(resources, numa, prefer_closest=prefer_closest)
    assert got == enumerate_combinations(resources, numa, prefer_closest=prefer_closest)


@settings(max_examples=300, deadline=None)
@given(question=questions(), policy=st.sampled_from(Policy), prefer_closest=st.booleans())
def test_policies_are_the_enumeration(
    *, question: tuple[NUMAInfo, list[Answer]], policy: Policy, prefer_closest: bool
) -> None:
    numa, given_answers = question
    assume(not prefer_closest or numa.distances is not None)
    resources = gather_hints(given_answers)
    assume(_combinations([resource.hints for resource in resources]) <= 5_000)
    manager = TopologyManager(policy, Scope.POD, numa, TopologyManagerOptions(prefer_closest))
    decision = manager.merge(given_answers)
    if policy is Policy.NONE:
        assert (decision.best, decision.admit) == (TopologyHint(None, preferred=False), True)
        return
    single = policy is Policy.SINGLE_NUMA_NODE
    if single:
        resources = only_single_numa(resources)
    best = enumerate_combinations(
        [resource.hints for resource in resources],
        numa,
        prefer_closest=prefer_closest and not single,
    )
    if single and best.mask == numa.mask:
        best = TopologyHint(None, best.preferred)
    assert decision.best == best
    assert decision.admit == (policy is Policy.BEST_EFFORT or best.preferred)


@settings(max_examples=200, deadline=None)
@given(questions(), st.randoms(use_true_random=False))
def test_order_of_providers_and_hints_does_not_matter(
    question: tuple[NUMAInfo, list[Answer]], random: object
) -> None:
    numa, given_answers = question
    resources = [list(resource.hints) for resource in gather_hints(given_answers)]
    expected = merge_hints(resources, numa)
    shuffle = cast("Callable[[list[object]], None]", getattr(random, "shuffle"))  # noqa: B009 - typed Any
    for hints in resources:
        shuffle(cast("list[object]", hints))
    shuffle(cast("list[object]", resources))
    assert merge_hints(resources, numa) == expected


FAMILIES = st.integers(1, 7).flatmap(
    lambda nodes: st.lists(
        st.sets(st.integers(0, (1 << nodes) - 1), min_size=1, max_size=12), min_size=1, max_size=4
    )
)


@settings(max_examples=200, deadline=None)
@given(FAMILIES, st.integers(0, 127), st.integers(0, 8))
def test_who_is_asked_knows(families: list[set[int]], machine: int, target: int) -> None:
    """A mask knows whether it arises; the first one asked that does is the best there is."""
    reached = {mask & machine for mask in _all_intersections(families)}
    for mask in range(1, 128):
        if mask & ~machine:
            continue
        assert hint_reach._arises(mask, families, machine) == (mask in reached)
    size = min(target, machine.bit_count()) or 1
    best = min((one for one in reached if one.bit_count() == size), default=None)
    assert hint_reach._ask(families, machine, target) in {None, best}


def test_short_lists_are_answered_by_asking() -> None:
    pairs = [{mask for mask in range(1, 256) if mask.bit_count() == 2} for _ in range(2)]
    assert hint_reach._ask(pairs, 255, 1) == 1
    assert hint_reach._ask(pairs, 255, 2) == 3


@settings(max_examples=400, deadline=None)
@given(FAMILIES, st.integers(0, 8), st.sampled_from([0, 3, 40]))
def test_every_way_to_intersect_agrees(families: list[set[int]], target: int, shift: int) -> None:
    # Shifted and doubled nodes exercise sparse ids and nodes that nothing tells apart.
    families = [{(mask | mask << 7) << shift for mask in family} for family in families]
    machine = ((1 << 14) - 1) << shift
    expected = min(
        (mask for mask in _all_intersections(families) if mask),
        key=lambda mask: (
            sizes_in_order(14, target).index(mask.bit_count()),
            narrowness(mask),
        ),
        default=None,
    )
    assert best_intersection(families, machine, target, narrowness) == expected
    # Nobody is asked where another order holds.
    assert (
        best_intersection(families, machine, target, lambda mask: (*narrowness(mask), 0))
        == expected
    )
    reduced = hint_reach._reduce(families, machine)
    if reduced is None:
        assert expected is None
        return
    sizes = sizes_in_order(14, target)
    assert search_best(reduced, sizes, narrowness) == expected
    # Another order of equal effect takes the path that looks at every mask of a size.
    assert search_best(reduced, sizes, lambda mask: (mask,)) == expected
    atoms = hint_reach._atoms(reduced)
    packed = [{hint_reach._pack(mask, atoms) for mask in family} for family in reduced]
    counted = {hint_reach._unpack(mask, atoms) for mask in hint_reach._reach_by_counting(packed)}
    assert counted == _all_intersections(reduced)


@settings(max_examples=60, deadline=None)
@given(st.data())
@example(None)
def test_long_lists_on_many_nodes(data: st.DataObject | None) -> None:
    """Beyond the table's size the search answers as pairing does."""
    if data is None:
        families = [{1 << n | 1 << (n + 1) for n in range(35)}, {1 << n for n in range(36)}]
        target, limit = 2, 0
    else:
        wide = st.integers(1, (1 << 24) - 1)
        families = data.draw(
            st.lists(st.sets(wide, min_size=1, max_size=9), min_size=2, max_size=3)
        )
        target, limit = data.draw(st.integers(0, 24)), 0
    machine = (1 << 36) - 1
    with pytest.MonkeyPatch.context() as patch:
        expected = best_intersection(families, machine, target, narrowness)
        patch.setattr(hint_reach, "_PAIRING_BUDGET", limit)
        patch.setattr(hint_reach, "MAX_COUNTED_ATOMS", limit)
        assert best_intersection(families, machine, target, narrowness) == expected


STUBBORN_FAMILIES = st.lists(
    st.sets(
        # All but one to three of six nodes: only together can they lack every refused node.
        st.sets(st.integers(0, 5), min_size=1, max_size=3).map(
            lambda nodes: 0b111111 & ~sum(1 << node for node in nodes)
        ),
        min_size=1,
        max_size=6,
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=600, deadline=None)
@given(STUBBORN_FAMILIES, st.sampled_from([0b111111, 0b011111, 0b110110]))
def test_refused_nodes_are_shared_out(families: list[set[int]], refused: int) -> None:
    indexed = [hint_search._IndexedFamily.build(family) for family in families]
    everything = [(1 << len(family)) - 1 for family in families]
    met = hint_search._refuse(indexed, everything, refused)
    possible = {mask for mask in _all_intersections(families) if not mask & refused}
    assert met in possible if possible else met is None


@given(questions())
def test_blocking_is_minimal(question: tuple[NUMAInfo, list[Answer]]) -> None:
    numa, given_answers = question
    resources = dict(enumerate(gather_hints(given_answers)))
    blocking = blocking_resources(resources, numa.mask)
    preferred = merge_hints([r.hints for r in resources.values()], numa).preferred
    assert (blocking == ()) == preferred
    for key in blocking:
        rest = [resources[other].hints for other in blocking if other != key]
        assert common_preferred(rest, numa.mask)


@pytest.mark.parametrize(
    ("given_answers", "expected"),
    [
        ([], TopologyHint(0b11, preferred=True)),
        ([None, {}], TopologyHint(0b11, preferred=True)),
        ([{"gpu": []}], TopologyHint(0b11, preferred=False)),
        ([{"gpu": None}, {"cpu": [TopologyHint(0b10, preferred=True)]}],
         TopologyHint(0b10, preferred=True)),
        ([{"gpu": [TopologyHint(0b01, preferred=True)]},
          {"cpu": [TopologyHint(0b10, preferred=True)]}],
         TopologyHint(0b11, preferred=False)),
        ([{"gpu": [TopologyHint(0b01, preferred=True)]},
          {"cpu": [TopologyHint(0b11, preferred=True)]}],
         TopologyHint(0b01, preferred=False)),
    ],
)  # fmt: skip
def test_cases_by_hand(given_answers: list[ResourceHints | None], expected: TopologyHint) -> None:
    resources = [resource.hints for resource in gather_hints(given_answers)]
    assert merge_hints(resources, NUMAInfo((0, 1))) == expected


def test_all_masks_of_16_nodes_have_an_answer() -> None:
    """2**64 combinations; the full list of masks makes every mask an intersection."""
    masks = [TopologyHint(mask, preferred=False) for mask in range(1, 1 << 16)]
    assert merge_hints([masks] * 4, NUMAInfo(tuple(range(16)))) == TopologyHint(1, preferred=False)


def test_closest_prefers_short_distances_over_low_ids() -> None:
    distances = {0: [10, 32, 32], 1: [32, 10, 11], 2: [32, 11, 10]}
    numa = NUMAInfo((0, 1, 2), distances)
    pairs = [TopologyHint(mask, preferred=True) for mask in (0b011, 0b101, 0b110)]
    assert merge_hints([pairs], numa) == pairs[0]
    assert merge_hints([pairs], numa, prefer_closest=True) == pairs[2]
    assert fitness(numa, prefer_closest=True)(0b110) == (2, 10.5, 0b110)


def test_blocking_names_the_odd_one() -> None:
    left = NamedHints("cpu", [TopologyHint(1, preferred=True)])
    right = NamedHints("gpu", [TopologyHint(2, preferred=True)])
    anywhere = NamedHints(
        "memory", [TopologyHint(1, preferred=True), TopologyHint(2, preferred=True)]
    )
    assert blocking_resources({0: left, 1: anywhere, 2: right}, 3) == (0, 2)
    assert blocking_resources({0: left, 1: anywhere}, 3) == ()


def _combinations(resources: Sequence[Sequence[TopologyHint]]) -> int:
    total = 1
    for hints in resources:
        total *= len(hints)
    return total


def _all_intersections(families: Sequence[set[int]]) -> set[int]:
    reached = {-1}
    for family in families:
        reached = {one & other for one in reached for other in family}
    return reached
