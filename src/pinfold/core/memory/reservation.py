"""``reservedMemory``: what of each NUMA node's memory is kept from pods, and the node itself.

Source: upstream ``memorymanager/memory_manager.go`` (kubelet 1.34).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.memory.memory import UINT64, NodeMemory
from pinfold.core.pod.hugepages import resource_name
from pinfold.core.pod.pod import MEMORY, Resources, is_hugepages
from pinfold.core.values.quantity import ZERO, Format, Quantity

NONE: Final = "None"
STATIC: Final = "Static"
_WINDOWS_ONLY: Final = "BestEffort"
_KIB: Final = 1024


class MemoryPolicyError(ValueError):
    """A memory manager with which no kubelet starts; the message is the kubelet's."""


class MemoryReservationError(MemoryPolicyError):
    """``reservedMemory`` that does not fit the machine or the node's reservation."""


def check_policy_name(name: str) -> None:
    """Make sure that there is such a ``memoryManagerPolicy`` on Linux; raises MemoryPolicyError."""
    if name == _WINDOWS_ONLY:
        raise MemoryPolicyError(f'policy "{name}" is not available for platform "linux"')
    if name not in (NONE, STATIC):
        raise MemoryPolicyError(f'unknown policy: "{name}"')


def reserved_by_node(
    nodes: Iterable[int], reserved_memory: Iterable[Mapping[str, Any]], reservation: Resources
) -> dict[int, dict[str, int]]:
    """Check ``reservedMemory`` and give bytes by NUMA node and resource.

    Where several resources are wrong, upstream names one at random, this the first by name.

    Args:
        nodes: the ids of the machine's NUMA nodes.
        reserved_memory: ``{numaNode, limits}``, the limits being quantities.
        reservation: what node allocatable withholds of each resource; others than memory and
            huge pages are not looked at.

    Raises:
        MemoryReservationError: a node that is not there, sums that differ from ``reservation``,
            amounts that are no whole number, or no memory at all.
    """
    reserved: dict[int, dict[str, int]] = {node: {} for node in nodes}
    limits = [
        (int(item["numaNode"]), str(name), quantity)
        for item in _known(reserved_memory, reserved)
        for name, quantity in sorted(item["limits"].items())
    ]
    _check_totals(limits, reservation)
    for node, name, quantity in limits:
        size = quantity.as_int64()
        if size is None:
            raise MemoryReservationError("could not covert a variable of type Quantity to int64")
        reserved[node][name] = size & UINT64
    if not sum(of_node.get(MEMORY, 0) for of_node in reserved.values()) & UINT64:
        raise MemoryReservationError(
            "[memorymanager] you should specify the system reserved memory"
        )
    return reserved


def _known(
    reserved_memory: Iterable[Mapping[str, Any]], nodes: Mapping[int, object]
) -> list[Mapping[str, Any]]:
    items = list(reserved_memory)
    for item in items:
        if item["numaNode"] not in nodes:
            raise MemoryReservationError(
                "the reserved memory configuration references a NUMA node "
                f"{item['numaNode']} that does not exist on this machine"
            )
    return items


def _check_totals(limits: Iterable[tuple[int, str, Quantity]], reservation: Resources) -> None:
    totals: dict[str, Quantity] = {}
    for _, name, quantity in limits:
        totals[name] = quantity + totals[name] if name in totals else quantity
    names = totals.keys() | {name for name in reservation if name == MEMORY or is_hugepages(name)}
    for name in sorted(names):
        total = ZERO + totals.get(name, ZERO)
        wanted = ZERO + reservation.get(name, ZERO)
        if total != wanted:
            raise MemoryReservationError(
                f'the total amount "{total}" of type "{name}" is not equal to the value '
                f'"{wanted}" determined by Node Allocatable feature'
            )


def check_reserved_fits(nodes: Mapping[int, NodeMemory]) -> None:
    """Make sure that every NUMA node has what is reserved of it.

    Raises:
        MemoryReservationError: naming the node, the resource and both sizes.
    """
    for node_id, node in nodes.items():
        pools = {resource_name(kb * _KIB): kb * _KIB * n for kb, n in node.hugepages.items()}
        for name, size in {**pools, MEMORY: node.memory - sum(pools.values())}.items():
            reserved = node.reserved.get(name, 0)
            if reserved > size:
                kept, had = (Quantity(n, 0, Format.BINARY_SI) for n in (reserved, size))
                raise MemoryReservationError(
                    f"reservedMemory keeps {kept} of {name} of NUMA node {node_id}, "
                    f"which has {had} (huge pages taken off memory); reserve less of it, or give "
                    "sizes that fit"
                )


def node_memory(view: KubeletView) -> dict[int, NodeMemory]:
    """The memory of the NUMA nodes that a kubelet sees, by id; nothing is reserved yet.

    A node of which cAdvisor reads no memory has zero bytes.
    """
    return {
        node: NodeMemory(
            view.memory.get(node, 0),
            {size // _KIB: pages for size, pages in sorted(view.hugepages.get(node, {}).items())},
        )
        for node in view.numa_nodes
    }
