"""What a pod is charged, and what its containers have to say for it.

Source: upstream ``pkg/quota/v1/evaluator/core/pods.go`` and ``component-helpers/resource`` (1.34).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from pinfold.core.pod.pod import (
    CPU,
    MEMORY,
    Container,
    Pod,
    Resources,
    is_hugepages,
    pod_limits,
    pod_requests,
)
from pinfold.core.quota.claims import NO_CLAIMS, Claims
from pinfold.core.quota.counted_pod import CountedPod, RunningContainer
from pinfold.core.quota.exclusive_cpus import exclusive_cpus
from pinfold.core.quota.names import (
    CONTAINERS_SPECIFY,
    COUNT_PODS,
    EPHEMERAL_STORAGE,
    EXCLUSIVE_CPUS,
    LIMITS,
    PODS,
    REQUESTS,
)
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.quota.resource_list import maximum
from pinfold.core.values.quantity import Quantity
from pinfold.core.values.resource_names import is_extended

_ONE: Final = Quantity(1)
_PLAIN: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)


def usage(pod: CountedPod, now: float, claims: Claims = NO_CLAIMS) -> dict[str, Quantity]:
    """What a pod counts for in a quota, by the names of ``spec.hard``.

    Args:
        pod: the pod.
        now: the time, in seconds since the epoch: who should have ended is charged no more.
        claims: what is known of the claims of its namespace.
    """
    charged = {COUNT_PODS: _ONE}
    if pod.is_over(now):
        return charged
    charged[PODS] = _ONE
    effective = _effective(pod)
    _count(charged, pod_requests(effective), pod_limits(effective))
    if cpus := exclusive_cpus(pod, claims):
        charged[EXCLUSIVE_CPUS] = Quantity(cpus)
    return charged


def usage_of(
    quota: ResourceQuota, pod: CountedPod, now: float, claims: Claims = NO_CLAIMS
) -> dict[str, Quantity]:
    """What a pod counts for in one quota, if that counts it.

    A quota that counts no claims counts the pod's CPUs in full, wherever they come from.
    """
    return usage(pod, now, claims if quota.counts_claims else NO_CLAIMS)


def unspecified(pod: CountedPod, required: Collection[str]) -> str:
    """What containers do not say although a quota has it, as the API server writes it; or "".

    Where the pod as a whole says anything, its containers need not.
    """
    if pod.pod.has_pod_level_resources:
        return ""
    missing: dict[str, set[str]] = {}
    wanted = CONTAINERS_SPECIFY.intersection(required)
    for container in pod.pod.all_containers if wanted else ():
        said: dict[str, Quantity] = {}
        _count(said, container.requests, container.limits)
        for name in wanted.difference(said):
            missing.setdefault(name, set()).add(container.name)
    if not missing:
        return ""
    parts = (f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))
    return f"must specify {'; '.join(parts)}"


def _count(charged: dict[str, Quantity], requests: Resources, limits: Resources) -> None:
    for name, quantity in requests.items():
        if name in _PLAIN or is_hugepages(name):
            charged[name] = charged[REQUESTS + name] = quantity
        elif is_extended(name):
            charged[REQUESTS + name] = quantity
    for name in _PLAIN:
        if name in limits:
            charged[LIMITS + name] = limits[name]


def _effective(pod: CountedPod) -> Pod:
    """The pod as it asks for while it is resized: the most of what is wanted and what there is."""
    running = pod.running
    if not running:
        return pod.pod
    return replace(
        pod.pod,
        containers=tuple(_resized(one, pod, running) for one in pod.pod.containers),
        init_containers=tuple(
            _resized(one, pod, running) if one.is_sidecar else one
            for one in pod.pod.init_containers
        ),
    )


def _resized(
    container: Container, pod: CountedPod, running: Mapping[str, RunningContainer]
) -> Container:
    there = running.get(container.name)
    if there is None:
        return container
    requests, limits = maximum(there.requests, there.allocated), there.limits
    if not pod.infeasible:
        requests = maximum(container.requests, requests)
        limits = maximum(container.limits, limits)
    return replace(container, requests=requests, limits=limits)
