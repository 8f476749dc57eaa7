"""Other resources of a pod as a whole, with which it would be admitted; each of them is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from pinfold.core.pod.pod import CPU, NO_RESOURCES, Pod, PodResources, container_requests
from pinfold.core.pod.pod_level import cpu_budget
from pinfold.core.values.quantity import Quantity
from pinfold.planning.wants import describe_amount

_NEAR: Final = 16
"""So many numbers of CPUs above and below the one asked for are tried."""


def is_valid(pod: Pod) -> bool:
    """Whether the containers of a pod request no more than the pod as a whole, as the API wants."""
    if pod.resources is None or not pod.has_pod_level_resources:
        return True
    of_all, budget = container_requests(pod), pod.resources.requests
    return all(budget[name] >= amount for name, amount in of_all.items() if name in budget)


def other_budgets(pod: Pod, most: int, admits: Callable[[Pod], bool]) -> Iterator[str]:
    """Yield the nearest numbers of CPUs for the pod as a whole, above and below what it asks for.

    Args:
        pod: one that is served by resources of its own.
        most: the CPUs of the node that can be given; more are not tried.
        admits: whether a pod would be admitted.
    """
    budget = cpu_budget(pod)
    for sign in (1, -1) if budget else ():
        first = min(budget + sign, most)
        near = (first + sign * step for step in range(_NEAR) if first + sign * step <= most)
        found = next((n for n in near if n > 0 and admits(with_budget(pod, n))), None)
        if found is not None:
            yield (
                f"ask for {describe_amount(CPU, found)} instead of {budget} for the pod as a whole "
                f"(resources of the pod, requests and limits cpu: {found})"
            )


def with_budget(pod: Pod, cpus: int) -> Pod:
    """The pod with another request and limit of CPUs as a whole."""
    own = pod.resources or PodResources(NO_RESOURCES, NO_RESOURCES)
    amount = {CPU: Quantity(cpus)}
    changed = PodResources({**own.requests, **amount}, {**own.limits, **amount})
    return replace(pod, resources=changed)
