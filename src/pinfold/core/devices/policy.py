"""Which devices a container gets, and which NUMA nodes could serve it.

Source: upstream ``devicemanager.ManagerImpl``: ``devicesToAllocate``,
``generateDeviceTopologyHints``.  Where the kubelet takes any device of a tier (in the order of a
Go map), the first in natural order of the ids is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from operator import add

from msgspec import Struct

from pinfold.core.cpu.allocation import lowest_bits
from pinfold.core.cpu.hints import MAX_HINT_NODES, TooManyNUMANodesError
from pinfold.core.devices.devices import PreferenceQuestion
from pinfold.core.devices.table import DeviceTable, Locality
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint, iter_numa_masks

Ask = Callable[[PreferenceQuestion], Collection[str]]
"""Answers a question with the ids that the plugin would rather give away."""


class PreferenceNeededError(Exception):
    """The decision needs a plugin's answer that nobody has got yet.

    No :class:`AllocationError`, so that the topology manager passes it on: ask the plugin
    ``question``, and decide anew with its answer.
    """

    def __init__(self, question: PreferenceQuestion) -> None:
        self.question = question
        super().__init__(
            f"the plugin of {question.resource} has to say which {question.size} of "
            f"{len(question.available)} devices it prefers to give away"
        )


class DeviceRequest(Struct, frozen=True):
    """What one container asks of one resource; sets of devices are bitmasks of the table.

    Attributes:
        pod_uid, container: for messages.
        resource: the resource's name.
        required: how many devices the container is to have.
        held: the ids that it has already; ``None`` when it has not asked before.
        in_use: the devices of every container of the node.
        reusable: those of this pod's init containers that it may take over.
        affinity: the topology manager's decision, a bitmask of NUMA nodes; ``None`` for none.
        name: what the container asks for, where that is not the resource's own name.
    """

    pod_uid: str
    container: str
    resource: str
    required: int
    held: Collection[str] | None = None
    in_use: int = 0
    reusable: int = 0
    affinity: int | None = None
    name: str | None = None

    @property
    def asked_as(self) -> str:
        """The name in the container's limits."""
        return self.name or self.resource


def devices_to_allocate(
    table: DeviceTable | None, request: DeviceRequest, ask: Ask | None = None
) -> int:
    """The devices that the container is to get now; 0 when it has all that it needs.

    Args:
        table: the resource; ``None`` when its plugin is not registered.
        request: what is asked for.
        ask: how to learn of the plugin's preference; ``None`` when it offers none.

    Raises:
        AllocationError: they are not to be had; the message is the kubelet's.
    """
    held = request.held
    needed = request.required - len(held or ())
    if held is not None and needed != 0:
        raise AllocationError(
            f'pod "{request.pod_uid}" container "{request.container}" changed request for '
            f'resource "{request.asked_as}" from {len(held)} to {request.required}'
        )
    if table is None:
        raise AllocationError(f"cannot allocate unregistered device {request.asked_as}")
    if not table.healthy:
        raise AllocationError(
            f"no healthy devices present; cannot allocate unhealthy devices {request.asked_as}"
        )
    if held and (table.mask(held) & table.healthy).bit_count() < len(held):
        raise AllocationError(
            "previously allocated devices are no longer healthy; "
            f"cannot allocate unhealthy devices {request.asked_as}"
        )
    return _choose(table, request, ask) if needed > 0 else 0


def _choose(table: DeviceTable, request: DeviceRequest, ask: Ask | None) -> int:
    reused = lowest_bits(request.reusable, request.required)
    needed = request.required - reused.bit_count()
    if needed == 0:
        return reused
    free = table.healthy & ~request.in_use & ~reused
    if free.bit_count() < needed:
        raise AllocationError(
            f"requested number of devices unavailable for {request.asked_as}. "
            f"Requested: {needed}, Available: {free.bit_count()}"
        )
    tiers = table.tiers(free, request.affinity)
    enough = needed < tiers.aligned.bit_count()
    taken = reused
    if not enough:
        # What is aligned has to be taken; the plugin has a say in the rest only.
        taken |= lowest_bits(tiers.aligned, needed)
        if taken.bit_count() == request.required:
            return taken
    choice = tiers.aligned if enough else free & ~taken
    preferred = 0
    if ask is not None:
        question = PreferenceQuestion(
            request.resource,
            table.names((choice if enough else free) | taken),
            table.names(taken),
            request.required,
        )
        preferred = table.mask(ask(question)) & choice
    for tier in (preferred, choice & ~tiers.no_affinity, choice):
        taken |= lowest_bits(tier & ~taken, request.required - taken.bit_count())
    return taken


def nodes_with_devices(table: DeviceTable, nodes: Sequence[int]) -> Sequence[int]:
    """Those of the machine's NUMA nodes that some device of the resource names, in its order.

    Whoever has the device, and whether it is healthy, does not matter.  All nodes where no device
    names any of them.  Source: upstream ``devicemanager.deviceNUMANodes``.
    """
    near = 0
    for names, _ in table.localities:
        near |= names
    return [node for node in nodes if near >> node & 1] or nodes


def device_hints(
    table: DeviceTable, nodes: Sequence[int], available: int, reusable: int, request: int
) -> list[TopologyHint]:
    """The NUMA node combinations that can serve ``request`` devices, in the kubelet's order.

    Args:
        table: the resource.
        nodes: the NUMA nodes that are considered, in the machine's order: all of them, or
            :func:`nodes_with_devices`.
        available: the devices that may be taken.
        reusable: devices that this pod has already; a hint must touch each that has a
            locality.
        request: how many devices are wanted.

    Raises:
        TooManyNUMANodesError: the kubelet would try all ``2**n`` combinations of them too.
    """
    if len(nodes) > MAX_HINT_NODES:
        raise TooManyNUMANodesError(
            f"{len(nodes)} NUMA nodes have 2^{len(nodes)} combinations, which the kubelet would "
            "try for each device resource and never finish; use topology manager policy none"
        )
    order = _combinations(tuple(nodes))
    local = [Locality(_pack(near, nodes), devices) for near, devices in table.localities]
    every = _devices_near(local, -1, len(nodes))
    least = next((s.bit_count() for _, s in order if every[s] >= request), len(nodes))
    found = _devices_near(local, available, len(nodes))
    if reusable & table.nowhere:
        return []
    if reusable:
        again = _devices_near(local, reusable, len(nodes))
        touched = [near for near, devices in local if devices & reusable]
        return [
            TopologyHint(mask, s.bit_count() == least)
            for mask, s in order
            if found[s] + again[s] >= request and all(s & near for near in touched)
        ]
    return [TopologyHint(mask, s.bit_count() == least) for mask, s in order if found[s] >= request]


@lru_cache(maxsize=16)
def _combinations(nodes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """All combinations in order of size: (mask of node ids, mask of positions in ``nodes``)."""
    masks = iter_numa_masks(nodes)
    positions = iter_numa_masks(range(len(nodes)))
    return tuple(zip(masks, positions, strict=True))


def _pack(mask: int, nodes: Sequence[int]) -> int:
    return sum(1 << at for at, node in enumerate(nodes) if mask >> node & 1)


def _devices_near(local: Sequence[Locality], devices: int, count: int) -> list[int]:
    """For each combination of the nodes, how many of ``devices`` are near any of them.

    Devices of one node are added up.  Of those near several (or none of these) the ones that are
    near none of the *other* nodes are counted, by sums over subsets, and taken from all.
    """
    single = [0] * count
    several: dict[int, int] = {}
    for near, members in local:
        here = (members & devices).bit_count()
        if near and not near & (near - 1):
            single[near.bit_length() - 1] += here
        elif near:
            several[near] = several.get(near, 0) + here
    sums = [0]
    for here in single:
        sums += [other + here for other in sums]
    if not any(several.values()):
        return sums
    inside = [0] * (1 << count)
    for near, here in several.items():
        inside[near] = here
    for at in range(count):
        _add_without(inside, 1 << at)
    total = inside[-1]
    return [near_one + total - out for near_one, out in zip(sums, reversed(inside), strict=True)]


def _add_without(sums: list[int], bit: int) -> None:
    """Add to each combination that has ``bit`` the one that differs only in not having it."""
    period = 2 * bit
    if bit < len(sums) // period:
        parts = [slice(start, None, period) for start in range(period)]
        pairs = zip(parts[:bit], parts[bit:], strict=True)
    else:
        starts = range(0, len(sums), period)
        pairs = zip(
            [slice(start, start + bit) for start in starts],
            [slice(start + bit, start + period) for start in starts],
            strict=True,
        )
    for without, having in pairs:
        sums[having] = map(add, sums[without], sums[having])
