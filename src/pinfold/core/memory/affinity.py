"""From the topology manager's answer to the NUMA nodes that a container's memory comes from.

Source: upstream ``memorymanager/policy_static.go`` (``Allocate``, kubelet 1.34).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pinfold.core.cpu.hints import TooManyNUMANodesError
from pinfold.core.memory.hints import NodeGroups, Reusable, best_hint, memory_hints
from pinfold.core.memory.memory import UINT64, MemoryState
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint
from pinfold.core.values.cpuset import iter_bits

_NO_DEFAULT: Final = (
    "[memorymanager] failed to get the default NUMA affinity, "
    "no NUMA nodes with enough memory is available"
)
_DEFAULT_NOT_PREFERRED: Final = "[memorymanager] failed to find the default preferred hint"
_NO_EXTENSION: Final = (
    "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
)
_EXTENSION_NOT_PREFERRED: Final = "[memorymanager] failed to find the extended preferred hint"
_VIOLATION: Final = "[memorymanager] preferred hint violates NUMA node allocation"


def choose_nodes(
    state: MemoryState, requested: Mapping[str, int], reusable: Reusable, affinity: TopologyHint
) -> int:
    """The NUMA nodes that an allocation under ``affinity`` uses (a bitmask).

    Without a mask the best hint decides; a mask with too little free memory is widened.

    Args:
        state: what is assigned by now.
        requested: resource name -> bytes; the machine knows every name.
        reusable: what the container can take over.
        affinity: the topology manager's answer.

    Raises:
        AllocationError: there are none; the message is the kubelet's.
    """
    mask, preferred = affinity
    if mask is None:
        hints = _candidates(state, requested, reusable)
        if not hints:
            raise AllocationError(_NO_DEFAULT)
        default = best_hint(hints)
        if preferred and not default.preferred:
            raise AllocationError(_DEFAULT_NOT_PREFERRED)
        mask, preferred = default.mask or 0, default.preferred
    if not _satisfies(state, mask, requested):
        hints = _candidates(state, requested, reusable)
        wider = [hint for hint in hints if mask & ~(hint.mask or 0) == 0]
        if not wider:
            raise AllocationError(_NO_EXTENSION)
        extended = best_hint(wider)
        if preferred and not extended.preferred:
            raise AllocationError(_EXTENSION_NOT_PREFERRED)
        mask = extended.mask or 0
    if mask & (mask - 1) and not NodeGroups.of(state.machine).may_span(mask):
        raise AllocationError(_VIOLATION)
    return mask


def _candidates(
    state: MemoryState, requested: Mapping[str, int], reusable: Reusable
) -> list[TopologyHint]:
    if not requested:
        # Upstream has hints by resource, so none for nothing.
        return []
    try:
        return memory_hints(state.machine, requested, reusable)
    except TooManyNUMANodesError as error:
        raise AllocationError(f"[memorymanager] {error}") from None


def _satisfies(state: MemoryState, mask: int, requested: Mapping[str, int]) -> bool:
    """Whether the nodes have enough free, what can be reused not counted."""
    unknown = [node for node in iter_bits(mask) if node not in state.machine]
    if unknown:
        raise AllocationError(
            f"[memorymanager] the topology manager's answer has NUMA node {unknown[0]}, which "
            "the memory manager does not know"
        )
    nodes = [state.machine[node] for node in iter_bits(mask)]
    return all(
        sum(node.table(resource).free for node in nodes) & UINT64 >= size
        for resource, size in requested.items()
    )
