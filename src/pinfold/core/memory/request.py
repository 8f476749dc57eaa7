"""What a container or a pod asks of the memory manager, and what it takes over within the pod.

A container that runs after a regular init container uses that one's memory again, where it is on
the same NUMA nodes.  Source: upstream ``memorymanager/policy_static.go`` (kubelet 1.34).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pinfold.core.memory.hints import Reusable
from pinfold.core.memory.memory import UINT64, Block, MemoryState
from pinfold.core.pod.pod import MEMORY, Container, Pod, Resources, container_requests, is_hugepages
from pinfold.core.topology_manager.hints import AllocationError, numa_mask

_NOT_INT64: Final = "[memorymanager] failed to represent quantity as int64"


def requested_memory(state: MemoryState, requests: Resources) -> dict[str, int]:
    """Bytes by resource, in the order of the names; raises AllocationError."""
    requested = {}
    for name, quantity in sorted(requests.items()):
        if name != MEMORY and not is_hugepages(name):
            continue
        size = quantity.as_int64()
        if size is None:
            raise AllocationError(_NOT_INT64)
        if size or state.has(name):
            requested[name] = size & UINT64
    return requested


def pod_requested_memory(state: MemoryState, pod: Pod) -> dict[str, int]:
    """What the pod needs at any one time, of what its long-running containers ask for.

    Of a pod with resources of its own it is these, whatever its containers ask for.

    Raises:
        AllocationError: an amount that is no whole 64-bit number.
    """
    if pod.resources is not None and pod.has_pod_level_resources:
        return requested_memory(state, pod.resources.requests)
    for init in pod.init_containers:
        requested_memory(state, init.requests)
    names = {
        name for container in pod.containers for name in requested_memory(state, container.requests)
    }
    total = container_requests(pod)
    return {name: total[name].value() & UINT64 for name in sorted(names)}


def _earlier_init_blocks(
    state: MemoryState, pod: Pod, container: Container
) -> Iterator[tuple[str, tuple[Block, ...]]]:
    """What the regular init containers have that are finished before this container starts."""
    assigned = state.assignments.get(pod.uid, {})
    for init in pod.init_containers:
        if init.name == container.name:
            return
        if not init.is_sidecar and init.name in assigned:
            yield init.name, assigned[init.name]


def reusable_memory(state: MemoryState, pod: Pod, container: Container) -> Reusable:
    """What the container may take over from earlier init containers.

    Upstream keeps a sum of its own; that is the sum of these blocks, unless it was lost.
    """
    reusable: dict[int, dict[str, int]] = {}
    for _, blocks in _earlier_init_blocks(state, pod, container):
        for block in blocks:
            left = reusable.setdefault(numa_mask(block.numa_affinity or ()), {})
            left[block.type] = left.get(block.type, 0) + block.size
    return reusable


def remembered_after(
    remembered: Reusable, pod: Pod, container: Container, blocks: Iterable[Block]
) -> Reusable:
    """What a kubelet has in mind as reusable once a container has ``blocks``, new or old ones.

    A regular init container leaves what it has, any other takes it over.
    """
    after = {mask: dict(left) for mask, left in remembered.items()}
    leaves = not container.is_sidecar and container in pod.init_containers
    for block in blocks:
        left = after.setdefault(numa_mask(block.numa_affinity or ()), {})
        before = left.get(block.type, 0)
        left[block.type] = max(before, block.size) if leaves else max(before - block.size, 0)
    return after


def shrunk_assignments(
    state: MemoryState, pod: Pod, container: Container, blocks: Iterable[Block]
) -> dict[str, tuple[Block, ...]]:
    """The pod's assignments, less what ``blocks`` take over from earlier init containers.

    So the blocks of a pod add up to what is reserved for it.
    """
    assigned = dict(state.assignments.get(pod.uid, {}))
    left = {(numa_mask(b.numa_affinity or ()), b.type): b.size for b in blocks}
    for name, earlier in _earlier_init_blocks(state, pod, container):
        kept = []
        for block in earlier:
            key = numa_mask(block.numa_affinity or ()), block.type
            taken = min(left.get(key, 0), block.size)
            if taken:
                left[key] -= taken
            kept.append(Block(block.numa_affinity, block.type, block.size - taken))
        assigned[name] = tuple(kept)
    return assigned
