"""What the kubelet writes into cgroups for a pod and its containers, as numbers.

Source: upstream ``cm/helpers_linux.go`` (pods), ``kuberuntime`` (containers), ``qos/policy.go``
(OOM scores), kubelet 1.34.  CPU is in milli-CPUs, memory in bytes, periods and quotas in
microseconds.  With the feature gate PodLevelResources off, pass pods without ``resources``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pinfold.core.pod.hugepages import page_size
from pinfold.core.pod.pod import (
    CPU,
    MEMORY,
    NO_RESOURCES,
    Container,
    Pod,
    QOSClass,
    Resources,
    container_requests,
    is_hugepages,
    pod_limits,
    pod_requests,
)
from pinfold.core.values.quantity import ZERO, Quantity

DEFAULT_PERIOD: Final = 100_000
"""The CFS period, unless the gate CustomCPUCFSQuotaPeriod is on and another is configured."""

NO_QUOTA: Final = -1
MIN_QUOTA: Final = 1000
MIN_SHARES: Final = 2
MAX_SHARES: Final = 262_144
_SHARES_PER_CPU: Final = 1024
_WEIGHT_SPAN: Final = 9999

GUARANTEED_OOM_SCORE_ADJ: Final = -997
BEST_EFFORT_OOM_SCORE_ADJ: Final = 1000


def milli_cpu_to_quota(milli: int, period: int = DEFAULT_PERIOD) -> int:
    """The CFS quota (microseconds a period) for a CPU limit; 0 is no limit.

    A kubelet passes another period than the default only with CustomCPUCFSQuotaPeriod on.
    """
    return max(milli * period // 1000, MIN_QUOTA) if milli else 0


def quota_to_milli_cpu(quota: int, period: int) -> int:
    """The CPU limit of a CFS quota; 0 where there is none."""
    return quota * 1000 // period if quota > 0 and period > 0 else 0


def milli_cpu_to_shares(milli: int) -> int:
    """The cgroup v1 ``cpu.shares`` for a CPU request."""
    return min(max(milli * _SHARES_PER_CPU // 1000, MIN_SHARES), MAX_SHARES)


def shares_to_milli_cpu(shares: int) -> int:
    """The CPU request of ``cpu.shares``, rounded up; 0 for the least shares."""
    return -(-shares * 1000 // _SHARES_PER_CPU) if shares > MIN_SHARES else 0


def shares_to_weight(shares: int) -> int:
    """The cgroup v2 ``cpu.weight`` (1 to 10000) for ``cpu.shares``."""
    return 1 + (shares - MIN_SHARES) * _WEIGHT_SPAN // (MAX_SHARES - MIN_SHARES)


def weight_to_shares(weight: int) -> int:
    """The ``cpu.shares`` for a ``cpu.weight``; coarser, so the way there and back loses some."""
    return MIN_SHARES + (weight - 1) * (MAX_SHARES - MIN_SHARES) // _WEIGHT_SPAN


class PodCgroup(Struct, frozen=True):
    """The settings of a pod's cgroup; None is "not set", ``hugepage_limits`` is by page size.

    How its memory is protected: :mod:`pinfold.core.memory.protection`.
    """

    cpu_shares: int
    cpu_quota: int | None
    cpu_period: int | None
    memory: int | None
    hugepage_limits: Mapping[int, int]

    @property
    def cpu_weight(self) -> int:
        """The cgroup v2 form of ``cpu_shares``."""
        return shares_to_weight(self.cpu_shares)


class ContainerCgroup(Struct, frozen=True):
    """What is sent to the container runtime; 0 is "no limit" for quota and memory."""

    cpu_shares: int
    cpu_quota: int
    cpu_period: int
    memory_limit: int
    hugepage_limits: Mapping[int, int]
    oom_score_adj: int

    @property
    def cpu_weight(self) -> int:
        """The cgroup v2 form of ``cpu_shares``, by the kubelet's rule."""
        return shares_to_weight(self.cpu_shares)


def pod_cgroup(
    pod: Pod,
    *,
    enforce_cpu_limits: bool = True,
    period: int = DEFAULT_PERIOD,
    exclusive: bool = False,
    uncap_exclusive: bool = True,
) -> PodCgroup:
    """The settings of a pod's cgroup (upstream ``ResourceConfigForPod``).

    Args:
        pod: the pod, defaults applied.
        enforce_cpu_limits: the configuration field ``cpuCFSQuota``.
        period: microseconds; see :func:`milli_cpu_to_quota`.
        exclusive: whether the CPU manager gave any of the containers exclusive CPUs.
        uncap_exclusive: the feature gate DisableCPUQuotaWithExclusiveCPUs (on since 1.33).
    """
    capped = enforce_cpu_limits and not (exclusive and uncap_exclusive)
    requests, limits = pod_requests(pod), pod_limits(pod)
    shares = milli_cpu_to_shares(_milli(requests))
    quota = milli_cpu_to_quota(_milli(limits), period) if capped else NO_QUOTA
    memory = _bytes(limits)
    pages = _hugepage_limits(requests)
    if pod.qos is QOSClass.GUARANTEED:
        return PodCgroup(shares, quota, period, memory, pages)
    if pod.qos is QOSClass.BEST_EFFORT:
        return PodCgroup(MIN_SHARES, None, None, None, pages)
    cpu_limited, memory_limited = _is_limited(pod, CPU), _is_limited(pod, MEMORY)
    return PodCgroup(
        cpu_shares=shares,
        cpu_quota=quota if cpu_limited else None,
        cpu_period=period if cpu_limited else None,
        memory=memory if memory_limited else None,
        hugepage_limits=pages,
    )


def container_cgroup(  # noqa: PLR0913 - the kubelet's settings, one each
    pod: Pod,
    container: Container,
    *,
    memory_capacity: int,
    page_sizes: tuple[int, ...] = (),
    enforce_cpu_limits: bool = True,
    period: int = DEFAULT_PERIOD,
    exclusive: bool = False,
    uncap_exclusive: bool = True,
) -> ContainerCgroup:
    """What a container runtime is told about a container.

    Args:
        pod: the pod, defaults applied.
        container: one of its containers.
        memory_capacity: the node's memory in bytes, for the OOM score.
        page_sizes: the host's hugepage sizes in bytes; a container may use those it limits.
        enforce_cpu_limits: the configuration field ``cpuCFSQuota``.
        period: microseconds; see :func:`milli_cpu_to_quota`.
        exclusive: whether the CPU manager gave the container exclusive CPUs.
        uncap_exclusive: the feature gate DisableCPUQuotaWithExclusiveCPUs (on since 1.33).
    """
    cpu_limit = _limit(pod, container, CPU)
    request = container.requests.get(CPU)
    if request is None and not cpu_limit.is_zero:
        request = cpu_limit
    shares = milli_cpu_to_shares((request or ZERO).milli_value())
    quota = milli_cpu_to_quota(cpu_limit.milli_value(), period)
    if not enforce_cpu_limits:
        quota, period = 0, 0
    elif exclusive and uncap_exclusive:
        quota = NO_QUOTA
    pages = dict.fromkeys(page_sizes, 0) | {
        size: limit
        for size, limit in _container_hugepages(pod, container).items()
        if size in page_sizes
    }
    return ContainerCgroup(
        cpu_shares=shares,
        cpu_quota=quota,
        cpu_period=period,
        memory_limit=_limit(pod, container, MEMORY).value(),
        hugepage_limits=pages,
        oom_score_adj=oom_score_adj(pod, container, memory_capacity),
    )


def oom_score_adj(pod: Pod, container: Container, memory_capacity: int) -> int:
    """How readily the kernel ends the container when memory runs out, -997 to 1000."""
    if pod.is_node_critical or pod.qos is QOSClass.GUARANTEED:
        return GUARANTEED_OOM_SCORE_ADJ
    if pod.qos is QOSClass.BEST_EFFORT:
        return BEST_EFFORT_OOM_SCORE_ADJ
    beyond = _unclaimed_share(pod)
    requested = _bytes(container.requests) + beyond
    if container.is_sidecar and any(c.name == container.name for c in pod.init_containers):
        # A sidecar must not be ended before the containers that it serves.
        least = min((_bytes(c.requests) for c in pod.containers), default=0) + beyond
        requested = max(requested, least)
    score = BEST_EFFORT_OOM_SCORE_ADJ - _quotient(1000 * requested, memory_capacity)
    if score < 1000 + GUARANTEED_OOM_SCORE_ADJ:
        return 1000 + GUARANTEED_OOM_SCORE_ADJ
    # The kubelet keeps Burstable pods off 1000 only; a pod that requests less than its containers
    # (which the API refuses) may exceed it.
    return score - 1 if score == BEST_EFFORT_OOM_SCORE_ADJ else score


def _unclaimed_share(pod: Pod) -> int:
    """A container's part of the memory that the pod requests beyond its containers."""
    if pod.resources is None or _bytes(pod.resources.requests) == 0:
        return 0
    remaining = _bytes(pod.resources.requests) - _bytes(container_requests(pod))
    return _quotient(remaining, len(pod.all_containers))


def _quotient(number: int, divisor: int) -> int:
    """Divide as Go does: towards zero."""
    return number // divisor if number >= 0 else -(-number // divisor)


def _is_limited(pod: Pod, resource: str) -> bool:
    """Whether a Burstable pod's cgroup is limited: the pod is, or every container.

    An init container without a limit counts as limited by the sidecars before it, as upstream
    adds theirs to its own first.
    """
    if pod.resources is not None and not pod.resources.limits.get(resource, ZERO).is_zero:
        return True
    sidecar_limited = False
    for init in pod.init_containers:
        limited = not init.limits.get(resource, ZERO).is_zero
        if not limited and not sidecar_limited:
            return False
        sidecar_limited = sidecar_limited or (limited and init.is_sidecar)
    return all(not c.limits.get(resource, ZERO).is_zero for c in pod.containers)


def _limit(pod: Pod, container: Container, resource: str) -> Quantity:
    own = container.limits.get(resource, ZERO)
    if own.is_zero and pod.has_pod_level_resources and pod.resources is not None:
        return pod.resources.limits.get(resource, ZERO)
    return own


def _container_hugepages(pod: Pod, container: Container) -> dict[int, int]:
    whole = NO_RESOURCES if pod.resources is None else pod.resources.limits
    return _hugepage_limits(whole) | _hugepage_limits(container.limits)


def _hugepage_limits(resources: Resources) -> dict[int, int]:
    limits: dict[int, int] = {}
    for name, quantity in resources.items():
        size = page_size(name) if is_hugepages(name) else None
        # The API refuses a name without a size; a kubelet passes it over.
        if size is not None:
            limits[size] = quantity.value()
    return limits


def _milli(resources: Resources) -> int:
    return resources.get(CPU, ZERO).milli_value()


def _bytes(resources: Resources) -> int:
    return resources.get(MEMORY, ZERO).value()
