"""How many CPUs of its own a pod is charged, whichever node it comes to.

It is counted from the pod alone, as if every node had the static policy: whole CPUs of the
containers of a Guaranteed pod, the most at any one time.  What a node would say besides (no such
policy, other CPU managers) cannot be known when the pod is created.

A Guaranteed pod with resources of its own is charged these as a whole, as it may come to a node
that serves it so (``PodLevelResourceManagers``); where they are no whole number of CPUs, no node
gives it any as a whole, and only its exclusive containers may have some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pinfold.core.pod.pod import CPU, Container, QOSClass, most_at_once
from pinfold.core.pod.pod_level import is_exclusive
from pinfold.core.quota.claims import NO_CLAIMS, Claims
from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.values.quantity import Quantity


def exclusive_cpus(pod: CountedPod, claims: Claims = NO_CLAIMS) -> int:
    """The CPUs that a pod is charged.

    A resize is charged before it is granted: the most of what is wanted, allocated and in force.
    Cores to itself (``smt-isolate``) change nothing, nor does being load-driven.  A container that
    names a claim for CPUs says the same number once more in its requests, as the claim's driver
    asks for: only what is above the claim is charged here, as the claim is charged itself.
    """
    if pod.qos != QOSClass.GUARANTEED.value:
        return 0
    claimed = _claimed(pod, claims) if pod.claims else {}

    def of_container(container: Container) -> int:
        return max(0, _of_container(pod, container) - claimed.get(container.name, 0))

    most = most_at_once(pod.pod, of_container)
    if pod.pod.has_pod_level_resources and pod.pod.resources is not None:
        whole = _whole(pod.pod.resources.requests.get(CPU))
        if not pod.declines(""):
            most = max(most, whole - sum(claimed.values()))
    return most


def _of_container(pod: CountedPod, container: Container) -> int:
    if pod.declines(container.name):
        return 0
    if pod.pod.has_pod_level_resources and not is_exclusive(container):
        return 0
    mixed = container.name in pod.pod.mixed
    return max(_whole(asked, mixed=mixed) for asked in _requests(pod, container))


def _requests(pod: CountedPod, container: Container) -> Iterator[Quantity | None]:
    running = pod.running.get(container.name)
    if running is None or not pod.infeasible:
        yield container.requests.get(CPU)
    if running is not None:
        yield running.requests.get(CPU)
        yield running.allocated.get(CPU)


def _whole(cpus: Quantity | None, *, mixed: bool = False) -> int:
    """As the static policy counts: a request with a fraction owns nothing, unless it is mixed."""
    if cpus is None:
        return 0
    milli = cpus.milli_value()
    return milli // 1000 if mixed or milli % 1000 == 0 else 0


def _claimed(pod: CountedPod, claims: Claims) -> Mapping[str, int]:
    """The CPUs of the claims of each container; a claim that several name is the first one's."""
    left = {
        one.name: claims.claims.get(one.claim or "", claims.templates.get(one.template or "", 0))
        for one in pod.claims
    }
    return {
        container: sum(left.pop(name, 0) for name in names)
        for container, names in pod.container_claims.items()
    }
