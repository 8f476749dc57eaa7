"""Which nodes have what a pod wants of classes, against one device after the other."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.classes.bound import Bound, bound_key, bound_text, parsed_bound
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.names import class_resource, no_such_class
from pinfold.core.classes.placing import (
    MOST_SCORE,
    ClusterPool,
    Matcher,
    NotBoundError,
    Pool,
    Preference,
    Want,
    Wants,
    bound_of,
    cluster_misfit,
    cluster_pools,
    count_of,
    misfit,
    pools_of,
    score,
    wants_of,
)
from pinfold.core.classes.resource_class import (
    CLUSTERLEVEL,
    NODELEVEL,
    ProvisionConfig,
    Requirement,
    ResourceClass,
    classes_of,
)
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.quantity import Quantity

GPU = "nvidia.com/gpu"
NAMES = ("gold", "silver", "any")


def gpu_class(name: str, *kinds: str, priority: int = 0, level: str = NODELEVEL) -> ResourceClass:
    """A class of devices by their property ``kind``; without kinds of all that have one."""
    one = Requirement("kind", "In", kinds) if kinds else Requirement("kind", "Exists")
    return ResourceClass(name, ((one,),), priority, ProvisionConfig(level))


def devices(name: str, node: str, kind: str, *ids: str, resource: str = GPU) -> ComputeResource:
    return ComputeResource(name, node, resource, {"kind": kind}, None, ids)


def container(name: str = "app", restart: str | None = None, **amounts: int) -> Container:
    """One that asks for classes by name, and for ``gpu``, the raw name."""
    names = {GPU if one == "gpu" else class_resource(one): n for one, n in amounts.items()}
    requests = {one: Quantity(n) for one, n in names.items()}
    return Container(name, requests, requests, restart)


def pod(*containers: Container, init: tuple[Container, ...] = (), **bound: str) -> Pod:
    annotations = {bound_key(name): text for name, text in bound.items()}
    return Pod("u", "p", init_containers=init, containers=containers, annotations=annotations)


classes = st.lists(
    st.builds(
        lambda name, kinds, priority, level: gpu_class(
            name, *sorted(kinds), priority=priority, level=level
        ),
        st.sampled_from(NAMES),
        st.frozensets(st.sampled_from("ab")),
        st.integers(0, 1),
        st.sampled_from([NODELEVEL, NODELEVEL, CLUSTERLEVEL]),
    ),
    max_size=3,
    unique_by=lambda one: one.name,
)
resources = st.lists(
    st.builds(
        lambda node, resource, kind, ids: (node, resource, kind, sorted(ids)),
        st.sampled_from(["n1", "n2", ""]),
        st.sampled_from([GPU, "x.y/other"]),
        st.sampled_from("abc"),
        st.frozensets(st.integers(0, 5)),
    ),
    max_size=6,
).map(
    lambda found: [
        # A device is of one compute resource here.
        devices(f"r{at}", node, kind, *(f"{at}-{id_}" for id_ in ids), resource=resource)
        for at, (node, resource, kind, ids) in enumerate(found)
    ]
)


@given(
    classes,
    resources,
    st.integers(0, 6),
    st.integers(1, 4),
    st.frozensets(st.sampled_from(NAMES), min_size=1),
)
def test_a_node_fits_whose_free_devices_are_all_of_the_class(
    known: list[ResourceClass],
    described: list[ComputeResource],
    taken: int,
    count: int,
    wanted: frozenset[str],
) -> None:
    pools = pools_of(known, described)
    of_node = [one for one in known if not one.is_cluster_level]
    for node, resource in product(("n1", "n2"), (GPU, "x.y/other")):
        here = [
            {each.name for each in classes_of(of_node, one.all_properties)}
            for one in described
            if (one.node_name, one.resource_name) == (node, resource)
            for _ in one.devices
        ]
        fits = len(here) - taken >= count and all(wanted <= names for names in here)
        why = misfit(pools.get((node, resource)), taken, Want(resource, count, wanted))
        assert (why is None) is fits
        if why is not None:
            is_taken = len(here) >= count and all(wanted <= names for names in here)
            assert why.startswith("too few free devices") is is_taken


@given(classes, resources)
def test_a_matcher_knows_what_classes_of_says(
    known: list[ResourceClass], described: list[ComputeResource]
) -> None:
    matcher = Matcher(known)
    for one in (*described, *described):
        level = [each for each in known if each.is_cluster_level is not bool(one.node_name)]
        expected = {each.name for each in classes_of(level, one.all_properties)}
        assert matcher.names(one) == expected


@given(
    classes, resources, st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 3)), max_size=8)
)
def test_a_cluster_never_gives_more_than_it_has(
    known: list[ResourceClass],
    described: list[ComputeResource],
    asked: list[tuple[str, int]],
) -> None:
    """Whoever is given something can have a resource of its own that is of its class."""
    level = [one for one in known if one.is_cluster_level]
    pools = cluster_pools(known, described)
    assert pools.keys() == {one.name for one in level}
    units = [
        {each.name for each in classes_of(level, one.all_properties)}
        for one in described
        if not one.node_name
        for _ in one.devices
    ]
    given_: list[str] = []
    for name, count in asked:
        pool = pools.get(name)
        taken = sum(one in pool.sharers for one in given_) if pool is not None else 0
        if cluster_misfit(pool, taken, name, count) is None:
            given_ += [name] * count
    assert _can_be_matched(given_, units)


def _can_be_matched(wanted: list[str], units: list[set[str]]) -> bool:
    owner: dict[int, int] = {}

    def place(at: int, tried: set[int]) -> bool:
        for unit, names in enumerate(units):
            if wanted[at] in names and unit not in tried:
                tried.add(unit)
                if unit not in owner or place(owner[unit], tried):
                    owner[unit] = at
                    return True
        return False

    return all(place(at, set()) for at in range(len(wanted)))


def test_a_device_that_two_name_is_there_once() -> None:
    both = [devices("old", "n1", "a", "0", "1"), devices("new", "n1", "b", "1", "2")]
    assert pools_of([gpu_class("any")], both) == {
        ("n1", GPU): Pool(3, frozenset({"any"}), frozenset(), ("new", "old"))
    }


def test_a_device_that_nobody_names_is_not_there() -> None:
    one, other = devices("one", "n1", "a", "0"), devices("other", "n1", "a", "0")
    same = [replace(one, capacity=Quantity(1)), replace(other, capacity=Quantity(5))]
    for found in ([replace(one, capacity=Quantity(2))], same):
        assert pools_of([gpu_class("any")], found)["n1", GPU].capacity == 1
    for less in (0, 1):
        assert count_of(replace(devices("x", "n1", "a", "0", "1"), capacity=Quantity(less))) == less
    assert count_of(replace(devices("x", "n1", "a"), capacity=Quantity(3))) == 3


def test_why_a_node_does_not_fit() -> None:
    known = [gpu_class("gold", "a", priority=1), gpu_class("any")]
    pools = pools_of(
        known,
        [
            devices("r1", "gold", "a", "0", "1"),
            devices("r2", "mixed", "a", "0"),
            devices("r3", "mixed", "b", "1"),
            devices("r4", "plain", "b", "0"),
            devices("r5", "empty", "a"),
        ],
    )
    want = Want(GPU, 2, frozenset({"gold"}))

    def said(node: str, taken: int = 0, wanted: Want = want) -> str | None:
        return misfit(pools.get((node, GPU)), taken, wanted)

    assert said("gold") is None
    assert said("gold", 1) == "too few free devices of class gold"
    assert said("gold", 0, Want(GPU, 3, want.classes)) == "fewer than 3 devices of class gold"
    assert said("mixed") == "nvidia.com/gpu of class gold and of others, mixed"
    for node in ("plain", "empty", "unknown"):
        assert said(node) == "no devices of class gold"
    both = Want(GPU, 1, frozenset({"gold", "any"}))
    assert said("gold", 0, both) == "no devices of class any"
    assert said("unknown", 0, both) == "no devices of classes any and gold"


def test_why_a_cluster_has_no_more() -> None:
    pool = ClusterPool(3, frozenset({"licence"}))
    assert cluster_misfit(pool, 1, "licence", 2) is None
    assert cluster_misfit(pool, 2, "licence", 2) == "too few free resources of class licence"
    assert cluster_misfit(None, 0, "licence", 1) == "fewer than 1 resources of class licence"


def test_the_best_node_is_one_of_this_class_alone_then_the_fullest() -> None:
    want = Want(GPU, 1, frozenset({"gold"}))
    alone, shared = frozenset({"gold"}), frozenset({"gold", "any"})
    packed = [
        score(Pool(4, names), taken, want, Preference.PACK)
        for names, taken in ((shared, 0), (shared, 3), (alone, 0), (alone, 3))
    ]
    assert packed == [1, 5, 6, 10]
    spread = [score(Pool(4, alone), taken, want, Preference.SPREAD) for taken in range(4)]
    assert spread == [9, 7, 6, 5]


@given(st.integers(0, 8), st.integers(0, 10), st.integers(1, 4), st.sampled_from(Preference))
def test_a_score_is_one_that_a_scheduler_takes(
    capacity: int, taken: int, count: int, preference: Preference
) -> None:
    want = Want(GPU, count, frozenset({"gold"}))
    assert 0 <= score(Pool(capacity, want.classes), taken, want, preference) <= MOST_SCORE


def test_what_a_pod_wants_is_what_it_was_bound_to() -> None:
    one = pod(
        container("app", gold=1, gpu=2),
        container("side", any=1, gpu=1),
        init=(container("first", gold=4, gpu=4),),
        app="gold=nvidia.com/gpu:1",
        side="any=nvidia.com/gpu:1",
        first="gold=nvidia.com/gpu:4",
    )
    assert wants_of(one) == Wants((Want(GPU, 4, frozenset({"gold", "any"})),))
    assert wants_of(pod(container(licence=2)), {"licence"}) == Wants((), (("licence", 2),))
    assert wants_of(pod(container(gpu=2))) == Wants()


@pytest.mark.parametrize(
    ("refused", "problem"),
    [
        (pod(container(gold=1)), "asks for class gold and was not bound to a raw resource"),
        (pod(container(gold=1, gpu=1), app="gold=nvidia.com/gpu:2"), "was not bound"),
        (pod(container(gold=1, gpu=1), other="gold=nvidia.com/gpu:1"), "was not bound"),
        (
            pod(container(gold=2, gpu=1), app="gold=nvidia.com/gpu:2"),
            "is bound to 2 nvidia.com/gpu and requests 1",
        ),
        (
            pod(container(gold=1, any=1, gpu=1), app="gold=nvidia.com/gpu:1,any=nvidia.com/gpu:1"),
            "is bound to 2 nvidia.com/gpu and requests 1",
        ),
        (pod(container(gold=1, gpu=1), app="gold=cpu:1"), "is bound to 1 cpu and requests 0"),
        (pod(container(gold=1, gpu=1), app="gold"), "annotation binding.pinfold.dev/container.app"),
    ],
)
def test_a_pod_that_nobody_has_bound_wants_nothing_that_could_be_given(
    refused: Pod, problem: str
) -> None:
    with pytest.raises(NotBoundError, match=problem):
        wants_of(refused)


def test_a_binding_of_before_a_class_became_one_of_the_cluster_is_refused() -> None:
    one = pod(container(gold=1, gpu=1), app="gold=nvidia.com/gpu:1")
    assert wants_of(one).of_node
    for asked in (lambda: wants_of(one, {"gold"}), lambda: bound_of(one, {}, {"gold"})):
        with pytest.raises(NotBoundError, match="gold, which has become one of the cluster level"):
            asked()


def test_who_is_bound_is_told_of_what_the_devices_are() -> None:
    one = pod(container(gold=1, gpu=1, licence=1), app="gold=nvidia.com/gpu:1")
    level = {"licence"}
    key = bound_key("app")
    gold = frozenset({"gold"})
    for names, text in (
        (("r1",), "gold=nvidia.com/gpu:1@r1"),
        (("a", "b"), "gold=nvidia.com/gpu:1"),
    ):
        pool = Pool(2, gold, compute_resources=names)
        assert bound_of(one, {GPU: pool}, level) == {key: text}


@given(
    st.lists(
        st.builds(
            Bound,
            st.sampled_from(["gold", "nvidia.high.mem"]),
            st.sampled_from([GPU, "x.y/z"]),
            st.integers(1, 10**18 - 1),
            st.sampled_from(["", "n1-nvidia.com-gpu-0123"]),
        ),
        unique_by=lambda one: one.class_name,
    )
)
def test_an_annotation_says_what_was_bound(bound: list[Bound]) -> None:
    assert parsed_bound(bound_text(bound)) == tuple(bound)


@pytest.mark.parametrize("text", ["x", "a=b", "a=b:0", "a=b:1,", "a=b:1,a=c:1", "a=b:1@", "a=b:٣"])
def test_an_annotation_of_another_form_says_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="CLASS=RESOURCE:COUNT"):
        parsed_bound(text)


def test_a_class_that_is_not_there_is_told_with_those_that_are() -> None:
    assert no_such_class("x", ()) == "there is no class x; there are none"
    assert no_such_class("x", "abcdefghij") == (
        "there is no class x; there are a, b, c, d, e, f, g, h and 2 more"
    )
