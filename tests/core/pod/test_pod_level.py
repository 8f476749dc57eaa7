"""Pods that get CPUs and memory as a whole: who is exclusive, the budget, and what is unsound."""

from __future__ import annotations

import pytest

from pinfold.core.pod.pod import Container, Pod, PodResources, Resources
from pinfold.core.pod.pod_level import (
    cpu_budget,
    cpu_shortage,
    exclusive_cpus,
    exclusive_memory,
    is_exclusive,
    memory_budget,
    memory_shortage,
    takes_part,
)
from tests.scenes.pod_level_pods import container, resources, whole_pod

MIB = 1 << 20


def test_a_pod_takes_part_when_it_is_guaranteed_as_a_whole() -> None:
    assert takes_part(whole_pod("2", "1Gi", container("c")))
    assert not takes_part(Pod("u", "p", containers=(container("c", "1", "1Gi"),)))
    assert not takes_part(whole_pod("2", "", container("c")))
    assert not takes_part(Pod("u", "p", resources=PodResources()))


@pytest.mark.parametrize(
    ("requests", "limits", "exclusive", "cpus"),
    [
        (resources("2", "1Mi"), resources("2", "1Mi"), True, 2),
        (resources("2000m", "1024Ki"), resources("2", "1Mi"), True, 2),
        (resources("1500m", "1Mi"), resources("1500m", "1Mi"), True, 0),
        (resources("2", "1Mi"), resources("3", "1Mi"), False, 0),
        (resources("2", "1Mi"), resources("2", "2Mi"), False, 0),
        (resources("2"), resources("2"), False, 0),
        (resources("", "1Mi"), resources("", "1Mi"), False, 0),
        (resources("0", "1Mi"), resources("0", "1Mi"), False, 0),
        (resources("2", "0"), resources("2", "0"), False, 0),
        ({}, resources("2", "1Mi"), False, 0),
    ],
)
def test_exclusive_are_equal_requests_and_limits_of_cpu_and_memory(
    requests: Resources, limits: Resources, cpus: int, *, exclusive: bool
) -> None:
    one = Container("c", requests, limits)
    assert (is_exclusive(one), exclusive_cpus(one)) == (exclusive, cpus)
    assert exclusive_memory(one) == ({"memory": MIB} if exclusive else {})


def test_the_budget_is_what_the_pod_asks_for_as_a_whole() -> None:
    asked = whole_pod("3", "1Gi", container("c", "7", "9Gi"), hugepages_2Mi="4Mi")
    assert cpu_budget(asked) == 3
    assert memory_budget(asked) == {"hugepages-2Mi": 4 * MIB, "memory": 1024 * MIB}
    assert cpu_budget(whole_pod("3500m", "1Gi")) == 0
    assert cpu_budget(Pod("u", "p")) == 0
    assert memory_budget(Pod("u", "p")) == {}


EMPTY_POOL = "sum of exclusive container cpu requests equals pod budget, leaving no cpus for"
NOTHING_FOR_INIT = "pod has shared init containers but no cpus available for them"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (whole_pod("4", "1Gi", container("a", "2", "1Mi"), container("b", "2", "1Mi")), None),
        (whole_pod("4", "1Gi", container("a", "3", "1Mi"), container("s")), None),
        (whole_pod("4", "1Gi", container("a", "4", "1Mi"), container("s")), EMPTY_POOL),
        (whole_pod("4", "1Gi", container("a", "5", "1Mi"), container("s")), EMPTY_POOL),
        (whole_pod("4", "1Gi", container("a", "5", "1Mi")), None),
        (whole_pod("3500m", "1Gi", container("a", "4", "1Mi"), container("s")), None),
        (
            whole_pod(
                "4",
                "1Gi",
                container("a", "2", "1Mi"),
                init=(container("side", "2", "1Mi", sidecar=True), container("i", "4", "1Mi")),
            ),
            None,
        ),
        (
            whole_pod("2", "1Gi", container("a", "2", "1Mi"), init=(container("s", sidecar=True),)),
            EMPTY_POOL,
        ),
        (
            whole_pod(
                "2",
                "1Gi",
                container("a"),
                init=(container("side", "2", "1Mi", sidecar=True), container("i")),
            ),
            NOTHING_FOR_INIT,
        ),
        (
            whole_pod(
                "2",
                "1Gi",
                init=(container("i"), container("side", "2", "1Mi", sidecar=True)),
            ),
            None,
        ),
    ],
)
def test_a_pod_is_unsound_when_who_shares_would_have_no_cpu(asked: Pod, why: str | None) -> None:
    told = cpu_shortage(asked)
    assert told is None if why is None else told is not None and why in told


def test_memory_is_judged_kind_by_kind() -> None:
    asked = whole_pod("4", "2Mi", container("a", "2", "2Mi"), container("s"), hugepages_2Mi="4Mi")
    assert memory_shortage(asked) == {
        "memory": "pod rejected, sum of exclusive container memory requests equals pod budget, "
        "leaving no memory for shared containers"
    }
    pages = resources("2", "1Mi", hugepages_2Mi="4Mi")
    side = Container("side", pages, pages, "Always")
    running = whole_pod("4", "9Mi", container("s"), init=(side,), hugepages_2Mi="4Mi")
    assert memory_shortage(running) == {
        "hugepages-2Mi": "pod rejected, sum of exclusive container hugepages-2Mi requests equals "
        "pod budget, leaving no memory for shared containers"
    }
    starting = whole_pod("4", "9Mi", init=(side, container("i")), hugepages_2Mi="4Mi")
    assert memory_shortage(starting) == {
        "hugepages-2Mi": "pod rejected, pod has shared init containers but no hugepages-2Mi "
        "available for them"
    }
    none = whole_pod("4", "9Mi", container("s"), hugepages_2Mi="0")
    assert memory_shortage(none) == {}, "a kind of which it asks for nothing is no part of it"
    fraction = whole_pod("4", "2Mi", container("a", "1500m", "2Mi"))
    assert memory_shortage(fraction) == {}, "a fraction of a CPU shares CPUs, and no memory"
    assert cpu_shortage(fraction) is None
