"""Who a container has its CPUs for, and whose quota goes with that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.pod.isolation_levels import (
    IsolationLevel,
    isolation_levels,
    pod_has_exclusive_cpus,
)
from pinfold.core.pod.pod import Pod
from pinfold.core.pod.pod_level import exclusive_cpus
from tests.scenes.pod_level_pods import container, whole_pod, whole_pods

HOST, POD, OWN = IsolationLevel.HOST, IsolationLevel.POD, IsolationLevel.CONTAINER


def of(pod: Pod, *owners: str, pod_level: bool = True) -> list[IsolationLevel]:
    return list(isolation_levels(pod, owners, pod_level=pod_level).values())


def test_their_names_are_the_kubelets() -> None:
    assert [level.value for level in IsolationLevel] == ["host", "pod", "container"]


def test_those_of_a_bubble() -> None:
    side = container("side", "1", "1Gi", sidecar=True)
    pod = whole_pod(
        "4",
        "4Gi",
        container("own", "1", "1Gi"),
        container("part", "1500m", "1Gi"),
        container("rest"),
        init=(side,),
    )
    assert of(pod, "side", "own", "part", "rest") == [OWN, OWN, POD, POD]
    assert of(pod) == [HOST] * 4
    assert of(pod, "own") == [HOST, OWN, HOST, HOST], "scope container: nobody shares a bubble"


def test_without_the_gate_or_resources_of_the_pod_a_set_is_its_containers() -> None:
    pod = whole_pod("2", "1Gi", container("c", "1", "1Gi"), container("d"))
    assert of(pod, "c", "d", pod_level=False) == [OWN, OWN]
    assert of(replace(pod, resources=None), "c", "d") == [OWN, OWN]


@pytest.mark.parametrize(
    ("owners", "pod_level", "ordinary"),
    [
        ((), False, False),
        (("c",), False, True),
        (("c", "d"), True, True),
    ],
)
def test_the_quota_of_a_pod(owners: tuple[str, ...], *, pod_level: bool, ordinary: bool) -> None:
    pod = whole_pod("2", "2Gi", container("c", "1", "1Gi"), container("d", "1", "1Gi"))
    levels = isolation_levels(pod, owners, pod_level=True)
    assert pod_has_exclusive_cpus(pod, levels) is pod_level
    without = replace(pod, resources=None)
    assert pod_has_exclusive_cpus(without, isolation_levels(without, owners, pod_level=True)) is (
        ordinary
    )


def test_the_pod_shared_pool_keeps_the_quota_of_its_pod() -> None:
    pod = whole_pod("3", "2Gi", container("c", "1", "1Gi"), container("d"))
    levels = isolation_levels(pod, ("c", "d"), pod_level=True)
    assert not pod_has_exclusive_cpus(pod, levels)


@given(pod=whole_pods(), data=st.data())
def test_only_owners_are_isolated_and_only_who_shares_does_so_with_its_pod(
    *, pod: Pod, data: st.DataObject
) -> None:
    names = [one.name for one in pod.all_containers]
    owners = data.draw(st.sets(st.sampled_from(names)))
    levels = isolation_levels(pod, owners, pod_level=True)
    assert list(levels) == names
    assert {name for name, level in levels.items() if level is not HOST} == owners
    for one in pod.all_containers:
        if levels[one.name] is not HOST:
            assert (levels[one.name] is OWN) == (exclusive_cpus(one) > 0)
    assert pod_has_exclusive_cpus(pod, levels) == (set(levels.values()) == {OWN})
