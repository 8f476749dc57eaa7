"""kube-scheduler's scores of how full a node is, in its integers (``NodeResourcesFit``).

Of each resource what all pods request, the newcomer among them, is seen as a share of what the
node has.  The score of a node is the mean over cpu and memory, each with weight 1; what a node has
nothing of does not count.  A container counts with 100m and 200 MiB where it requests none, so that
a node with many such pods is not taken for empty; only scores see it so, the filter does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from pinfold.admission.capacity import amounts
from pinfold.core.pod.pod import CPU, MEMORY, Container, Pod
from pinfold.core.values.quantity import Format, Quantity

BEST: Final = 100
"""The best score."""
UNREQUESTED_CPU: Final = 100
"""Milli-CPUs that a container without a request counts with."""
UNREQUESTED_MEMORY: Final = 200 * 1024 * 1024
"""Bytes that a container without a request counts with."""


def least_allocated(requested: int, capacity: int) -> int:
    """How much of a resource stays free, from 0 to 100; 0 where there is nothing of it."""
    return (capacity - requested) * BEST // capacity if 0 < capacity >= requested else 0


def most_allocated(requested: int, capacity: int) -> int:
    """How much of a resource is requested, from 0 to 100; 0 where there is nothing of it."""
    return min(requested, capacity) * BEST // capacity if capacity else 0


def scored_amounts(pod: Pod) -> Mapping[str, int]:
    """What a pod counts with in scores, in the units of :func:`.amounts`."""
    return amounts(
        replace(
            pod,
            containers=tuple(map(_scored, pod.containers)),
            init_containers=tuple(map(_scored, pod.init_containers)),
        )
    )


_UNREQUESTED: Final = {
    CPU: Quantity(UNREQUESTED_CPU, -3),
    MEMORY: Quantity(UNREQUESTED_MEMORY, 0, Format.BINARY_SI),
}


def _scored(container: Container) -> Container:
    return replace(container, requests={**_UNREQUESTED, **container.requests})
