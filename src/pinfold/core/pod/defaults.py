"""What the API server fills in of a pod's resources before a node sees it.

Source: the Kubernetes API (``core/v1``), ``SetDefaults_Pod`` and
``SetDefaults_ResourceList`` (1.34).
"""

from __future__ import annotations

from msgspec.structs import replace

from pinfold.core.pod.pod import (
    CPU,
    MEMORY,
    Container,
    Pod,
    PodResources,
    Resources,
    container_limits,
    container_requests,
    is_hugepages,
    is_pod_level_resource,
)


def apply_defaults(pod: Pod) -> Pod:
    """What the API server fills in: requests that are not given are the limits.

    It also rounds every quantity up to a thousandth.
    """
    defaulted = replace(
        pod,
        init_containers=tuple(_default_requests(c) for c in pod.init_containers),
        containers=tuple(_default_requests(c) for c in pod.containers),
        overhead=_rounded(pod.overhead),
    )
    if pod.resources is None:
        return defaulted
    requests, limits = _rounded(pod.resources.requests), _rounded(pod.resources.limits)
    pages = {
        name: quantity
        for name, quantity in container_limits(defaulted).items()
        if is_hugepages(name) and name not in requests
    }
    limits = {**pages, **limits}
    if limits:
        requests = dict(requests)
        for name, quantity in container_requests(defaulted).items():
            if name in (CPU, MEMORY):
                requests.setdefault(name, quantity)
        for name, quantity in limits.items():
            if is_pod_level_resource(name):
                requests.setdefault(name, quantity)
    return replace(defaulted, resources=PodResources(requests, limits))


def _default_requests(container: Container) -> Container:
    requests, limits = _rounded(container.requests), _rounded(container.limits)
    missing = {n: q for n, q in limits.items() if n not in requests}
    if missing:
        requests = {**requests, **missing}
    elif requests is container.requests and limits is container.limits:
        return container
    return replace(container, requests=requests, limits=limits)


def _rounded(resources: Resources) -> Resources:
    if all(quantity.dec[1] >= -3 for quantity in resources.values()):
        return resources
    return {name: quantity.round_up(-3)[0] for name, quantity in resources.items()}
