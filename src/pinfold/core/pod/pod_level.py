"""Pods that get CPUs and memory as a whole (gate ``PodLevelResourceManagers``).

Such a pod is Guaranteed and has resources of its own (``spec.resources``), which are its budget.
Under topology manager scope ``pod`` it gets one set of CPUs of that size, its *bubble*: some of its
containers have exclusive parts of it, all others share what is left, the *pod shared pool*.

Whether the gate is on is for the caller to know.  Source: observed of kubelet 1.36.2 (KEP-5526).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pinfold.core.pod.pod import (
    CPU,
    MEMORY,
    NO_RESOURCES,
    Container,
    Pod,
    QOSClass,
    Resources,
    is_hugepages,
)


def takes_part(pod: Pod) -> bool:
    """Whether a pod is served by its own resources, where the gate is on."""
    return pod.has_pod_level_resources and pod.qos is QOSClass.GUARANTEED


def is_exclusive(container: Container) -> bool:
    """Whether a container of such a pod may have something for itself.

    Its request of CPUs is its limit, and so is that of memory; neither is zero.
    """
    return all(
        name in container.requests
        and not container.requests[name].is_zero
        and container.limits.get(name) == container.requests[name]
        for name in (CPU, MEMORY)
    )


def exclusive_cpus(container: Container) -> int:
    """The exclusive CPUs of a container of such a pod; 0: it shares."""
    return _whole_cpus(container.requests) if is_exclusive(container) else 0


def exclusive_memory(container: Container) -> dict[str, int]:
    """The bytes of memory and of huge pages that a container of such a pod has for itself.

    Empty: it shares; one that asks for a fraction of a CPU does not.
    """
    return _memory(container.requests) if is_exclusive(container) else {}


def cpu_budget(pod: Pod) -> int:
    """The CPUs of the pod as a whole; 0: no whole number, and all of it is on the shared pool."""
    return _whole_cpus(_requests(pod))


def memory_budget(pod: Pod) -> dict[str, int]:
    """The bytes of memory and of huge pages of the pod as a whole, in the order of the names."""
    return _memory(_requests(pod))


def cpu_shortage(pod: Pod) -> str | None:
    """Why the pod is unsound, in the kubelet's words: who shares its CPUs would have none.

    None: it is sound.  So is one without a budget.  Containers that ask for more than the budget
    are no part of this where nobody shares.
    """
    return _shortage(pod, cpu_budget(pod), exclusive_cpus, cpus_are_shared, (CPU, "cpus", "cpus"))


def memory_shortage(pod: Pod) -> dict[str, str]:
    """The kinds of memory in the budget of which nothing is left for who shares them, and why."""
    found = {}
    for kind, budget in memory_budget(pod).items():
        amount = partial(_exclusive_amount, kind)
        if why := _shortage(pod, budget, amount, memory_is_shared, (kind, kind, MEMORY)):
            found[kind] = why
    return found


def cpus_are_shared(container: Container) -> bool:
    """Whether a container of such a pod runs on the CPUs that its pod's others leave."""
    return not exclusive_cpus(container)


def memory_is_shared(container: Container) -> bool:
    """Whether a container of such a pod uses the memory that its pod's others leave."""
    return not is_exclusive(container)


def _shortage(
    pod: Pod,
    budget: int,
    amount: Callable[[Container], int],
    shares: Callable[[Container], bool],
    names: tuple[str, str, str],
) -> str | None:
    """``names`` are those of the resource, of what init containers lack, and of what others do."""
    if budget == 0:
        return None
    resource, for_init, for_others = names
    sidecars, shared_runs = 0, any(map(shares, pod.containers))
    for init in pod.init_containers:
        if init.is_sidecar:
            sidecars += amount(init)
            shared_runs = shared_runs or shares(init)
        elif shares(init) and sidecars >= budget:
            return (
                f"pod rejected, pod has shared init containers but no {for_init} available for them"
            )
    if shared_runs and sidecars + sum(map(amount, pod.containers)) >= budget:
        return (
            f"pod rejected, sum of exclusive container {resource} requests equals pod budget, "
            f"leaving no {for_others} for shared containers"
        )
    return None


def _exclusive_amount(kind: str, container: Container) -> int:
    return exclusive_memory(container).get(kind, 0)


def _requests(pod: Pod) -> Resources:
    return NO_RESOURCES if pod.resources is None else pod.resources.requests


def _whole_cpus(requests: Resources) -> int:
    request = requests.get(CPU)
    milli = 0 if request is None else request.milli_value()
    return milli // 1000 if milli % 1000 == 0 else 0


def _memory(requests: Resources) -> dict[str, int]:
    sizes = {
        name: quantity.value()
        for name, quantity in sorted(requests.items())
        if name == MEMORY or is_hugepages(name)
    }
    return {name: size for name, size in sizes.items() if size > 0}
