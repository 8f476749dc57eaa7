"""The values of cgroups: conversions, pods, containers and OOM scores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.memory.protection import MemoryQoS, Reservation
from pinfold.core.pod.cgroup_values import (
    MAX_SHARES,
    MIN_SHARES,
    container_cgroup,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    oom_score_adj,
    pod_cgroup,
    quota_to_milli_cpu,
    shares_to_milli_cpu,
    shares_to_weight,
    weight_to_shares,
)
from pinfold.core.pod.pod import Container, Pod, PodResources
from pinfold.core.values.quantity import Quantity

GIB = 2**30
NODE_MEMORY = 16 * GIB


def amounts(**texts: str) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity.parse(text) for name, text in texts.items()}


def same(name: str = "c", restart_policy: str | None = None, **texts: str) -> Container:
    return Container(name, amounts(**texts), amounts(**texts), restart_policy)


def pod(*containers: Container) -> Pod:
    return Pod(uid="u", name="p", containers=containers)


@pytest.mark.parametrize(
    ("milli", "period", "quota"),
    [
        (0, 100_000, 0),
        (1, 100_000, 1000),
        (10, 100_000, 1000),
        (11, 100_000, 1100),
        (1500, 100_000, 150_000),
        (333, 1000, 1000),
        (333, 50_000, 16_650),
    ],
)
def test_quota(milli: int, period: int, quota: int) -> None:
    assert milli_cpu_to_quota(milli, period) == quota


@given(st.integers(10, 10**7))
def test_a_quota_says_the_limit(milli: int) -> None:
    assert quota_to_milli_cpu(milli_cpu_to_quota(milli), 100_000) == milli


def test_no_quota_is_no_limit() -> None:
    assert [quota_to_milli_cpu(quota, 100_000) for quota in (-1, 0)] == [0, 0]


@given(st.integers(0, 10**7))
def test_shares_stay_in_the_kernels_range_and_say_the_request(milli: int) -> None:
    shares = milli_cpu_to_shares(milli)
    assert MIN_SHARES <= shares <= MAX_SHARES
    if MIN_SHARES < shares < MAX_SHARES:
        assert shares_to_milli_cpu(shares) == milli
    if shares == MIN_SHARES:
        assert shares_to_milli_cpu(shares) == 0


@given(st.integers(1, 10_000), st.integers(MIN_SHARES, MAX_SHARES))
def test_weights_and_shares(weight: int, shares: int) -> None:
    assert weight - 1 <= shares_to_weight(weight_to_shares(weight)) <= weight
    assert 1 <= shares_to_weight(shares) <= 10_000
    assert weight_to_shares(shares_to_weight(shares)) <= shares


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (1024, 39), (MAX_SHARES, 10_000)])
def test_known_weights(shares: int, weight: int) -> None:
    assert shares_to_weight(shares) == weight


def test_a_guaranteed_pod_is_limited() -> None:
    cgroup = pod_cgroup(pod(same("a", cpu="1", memory="1Gi"), same("b", cpu="1", memory="1Gi")))
    assert (cgroup.cpu_shares, cgroup.cpu_weight) == (2048, 79)
    assert (cgroup.cpu_quota, cgroup.cpu_period, cgroup.memory) == (200_000, 100_000, 2 * GIB)


def test_a_burstable_pod_is_limited_where_all_its_containers_are() -> None:
    limited = Container("a", amounts(cpu="1"), amounts(cpu="2", memory="1Gi"))
    cpu_only = Container("b", {}, amounts(cpu="1"))
    cgroup = pod_cgroup(pod(limited, cpu_only))
    assert (cgroup.cpu_shares, cgroup.cpu_quota, cgroup.memory) == (1024, 300_000, None)
    free = pod_cgroup(pod(limited, Container("b")))
    assert (free.cpu_quota, free.cpu_period, free.memory) == (None, None, None)


def test_an_init_container_without_limits_lifts_those_of_the_pod() -> None:
    main = Container("c", amounts(cpu="1"), amounts(cpu="2", memory="1Gi"))
    sidecar = same("s", "Always", cpu="1", memory="1Gi")
    free = Container("i")
    assert pod_cgroup(replace(pod(main), init_containers=(free,))).cpu_quota is None
    assert pod_cgroup(replace(pod(main), init_containers=(free, sidecar))).cpu_quota is None
    # After a sidecar with limits it counts as limited.
    assert pod_cgroup(replace(pod(main), init_containers=(sidecar, free))).cpu_quota == 300_000


def test_a_best_effort_pod_has_the_least_shares_and_no_limits() -> None:
    cgroup = pod_cgroup(pod(Container("c")))
    assert (cgroup.cpu_shares, cgroup.cpu_quota, cgroup.memory) == (2, None, None)


def test_the_limits_of_the_pod_itself() -> None:
    subject = replace(
        pod(Container("c")),
        resources=PodResources(amounts(cpu="1"), amounts(cpu="4", memory="2Gi")),
    )
    cgroup = pod_cgroup(subject)
    assert (cgroup.cpu_shares, cgroup.cpu_quota, cgroup.memory) == (1024, 400_000, 2 * GIB)
    container = container_cgroup(
        subject, subject.containers[0], memory_capacity=NODE_MEMORY, page_sizes=()
    )
    assert (container.cpu_quota, container.memory_limit) == (400_000, 2 * GIB)


def test_settings_of_the_kubelet() -> None:
    subject = pod(same(cpu="1", memory="1Gi"))
    assert pod_cgroup(subject, enforce_cpu_limits=False).cpu_quota == -1
    assert pod_cgroup(subject, period=50_000).cpu_quota == 50_000
    protected = MemoryQoS(Reservation.UNTIERED).of_pod(subject)
    assert protected.unified == {"memory.min": str(GIB)}
    free = container_cgroup(
        subject, subject.containers[0], memory_capacity=NODE_MEMORY, enforce_cpu_limits=False
    )
    assert (free.cpu_quota, free.cpu_period) == (0, 0)


@pytest.mark.parametrize(
    ("exclusive", "uncap", "quota"),
    [(True, True, -1), (True, False, 200_000), (False, True, 200_000)],
)
def test_exclusive_cpus_are_not_capped(*, exclusive: bool, uncap: bool, quota: int) -> None:
    """The gate DisableCPUQuotaWithExclusiveCPUs: the container's quota and the pod's."""
    subject = pod(same(cpu="2", memory="1Gi"))
    container = container_cgroup(
        subject,
        subject.containers[0],
        memory_capacity=NODE_MEMORY,
        exclusive=exclusive,
        uncap_exclusive=uncap,
    )
    assert container.cpu_quota == quota
    assert container.cpu_period == 100_000
    whole = pod_cgroup(subject, exclusive=exclusive, uncap_exclusive=uncap)
    assert whole.cpu_quota == quota


def test_shares_of_a_container_without_a_request_are_those_of_its_limit() -> None:
    container = Container("c", {}, amounts(cpu="500m"))
    cgroup = container_cgroup(pod(container), container, memory_capacity=NODE_MEMORY)
    assert (cgroup.cpu_shares, cgroup.cpu_quota, cgroup.memory_limit) == (512, 50_000, 0)
    nothing = Container("c", amounts(cpu="0"), amounts(cpu="500m"))
    assert container_cgroup(pod(nothing), nothing, memory_capacity=NODE_MEMORY).cpu_shares == 2


def test_hugepages_of_a_container() -> None:
    container = same(hugepages_2Mi="4Mi", hugepages_1Gi="1Gi", cpu="1")
    cgroup = container_cgroup(
        pod(container), container, memory_capacity=NODE_MEMORY, page_sizes=(2 << 20, 64 << 10)
    )
    assert cgroup.hugepage_limits == {2 << 20: 4 << 20, 64 << 10: 0}
    assert pod_cgroup(pod(container)).hugepage_limits == {2 << 20: 4 << 20, GIB: GIB}


def test_a_resource_that_only_looks_like_hugepages_is_passed_over() -> None:
    container = same(hugepages_big="1", cpu="1")
    assert pod_cgroup(pod(container)).hugepage_limits == {}


@pytest.mark.parametrize(
    ("memory", "score"),
    [("0", 999), ("1Mi", 999), ("1Gi", 938), ("8Gi", 500), ("16Gi", 3), ("64Gi", 3)],
)
def test_oom_score_of_burstable_containers(memory: str, score: int) -> None:
    container = Container("c", amounts(cpu="1", memory=memory))
    assert oom_score_adj(pod(container), container, NODE_MEMORY) == score


def test_oom_score_of_the_other_classes() -> None:
    guaranteed, nothing = same(cpu="1", memory="1Gi"), Container("c")
    assert oom_score_adj(pod(guaranteed), guaranteed, NODE_MEMORY) == -997
    assert oom_score_adj(pod(nothing), nothing, NODE_MEMORY) == 1000
    critical = replace(
        pod(nothing), priority=2_000_001_000, priority_class_name="system-node-critical"
    )
    assert oom_score_adj(critical, nothing, NODE_MEMORY) == -997
    assert oom_score_adj(replace(critical, priority=0), nothing, NODE_MEMORY) == 1000


def test_a_sidecar_outlives_the_containers_that_it_serves() -> None:
    sidecar = Container("s", amounts(memory="1Mi"), {}, "Always")
    small, large = (
        Container(name, amounts(memory=memory)) for name, memory in (("a", "1Gi"), ("b", "4Gi"))
    )
    subject = replace(pod(small, large), init_containers=(sidecar,))
    assert oom_score_adj(subject, sidecar, NODE_MEMORY) == 938
    assert oom_score_adj(subject, small, NODE_MEMORY) == 938


def test_what_the_pod_requests_beyond_its_containers_is_shared_by_them() -> None:
    one, other = Container("a", amounts(memory="1Gi")), Container("b", amounts(memory="1Gi"))
    subject = replace(pod(one, other), resources=PodResources(amounts(memory="4Gi")))
    assert oom_score_adj(subject, one, NODE_MEMORY) == 1000 - 2 * 1000 // 16
