"""The devices of one resource as bits: who is healthy, who is near which NUMA nodes.

A set of devices is an ``int`` in which bit ``n`` is the ``n``-th device in natural order of the
ids (``gpu-2`` before ``gpu-10``), so the lowest bits of a set are the devices to take first, and
ten thousand of them are counted, joined or left out in one step.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import compress
from typing import Final, NamedTuple

from msgspec import Struct

from pinfold.core.devices.devices import DeviceResource
from pinfold.core.topology_manager.hints import MAX_NUMA_ID, numa_mask
from pinfold.core.values.cpuset import iter_bits

_split: Final = re.compile("([0-9]{2,})").split
_BETWEEN: Final = "\0"
_NO_NODE: Final = -1
_FEW: Final = 64
_BITS: Final = bytes.maketrans(b"01", b"\x00\x01")


class Locality(NamedTuple):
    """The devices that name the same NUMA nodes; both are bitmasks.

    ``nodes`` is 0 where a plugin names only nodes that no machine can have.
    """

    nodes: int
    devices: int


class Tiers(NamedTuple):
    """Devices by their distance from an affinity: in it, elsewhere, nobody knows."""

    aligned: int
    unaligned: int
    no_affinity: int


class DeviceTable(Struct, frozen=True):
    """The bits of one resource; make one with :meth:`of`.

    Attributes:
        ids: the device ids, in natural order.
        positions: id -> its bit.
        healthy: the devices that may be given away; none while the plugin is gone.
        localities: the devices that name a NUMA node, by the nodes they name.
        unlocated: the devices that name none.
        nowhere: those of them that have a locality nevertheless: one without any node.
        has_topology: whether NUMA nodes matter to this resource at all.
    """

    ids: tuple[str, ...]
    positions: Mapping[str, int]
    healthy: int
    localities: tuple[Locality, ...]
    unlocated: int
    nowhere: int
    has_topology: bool

    @classmethod
    def of(cls, resource: DeviceResource, before: DeviceTable | None = None) -> DeviceTable:
        """Build the table of a resource.

        Its table ``before`` saves the sorting when only health has changed.
        """
        devices = resource.devices
        if before is not None and before.positions.keys() == devices.keys():
            ids, positions = before.ids, before.positions
        else:
            ids = tuple(in_natural_order(devices))
            positions = {device: bit for bit, device in enumerate(ids)}
        sick: list[int] = []
        nowhere: list[int] = []
        groups: dict[tuple[int, ...], list[int]] = {}
        for bit, id_ in enumerate(ids):
            device = devices[id_]
            if not device.healthy:
                sick.append(bit)
            if device.located_nowhere:
                nowhere.append(bit)
            groups.setdefault(device.numa_nodes, []).append(bit)
        every = (1 << len(ids)) - 1
        localities: dict[int, int] = {}
        unlocated = 0
        for nodes, bits in groups.items():
            members = _mask(bits)
            real = [node for node in nodes if node != _NO_NODE]
            if real:
                # Upstream's masks hold no such ids either, and never have them set.
                near = numa_mask(node for node in real if 0 <= node <= MAX_NUMA_ID)
                localities[near] = localities.get(near, 0) | members
            else:
                unlocated |= members
                if nodes:
                    nowhere += bits
        return cls(
            ids,
            positions,
            every ^ _mask(sick) if resource.connected else 0,
            tuple(Locality(nodes, localities[nodes]) for nodes in sorted(localities)),
            unlocated,
            _mask(nowhere),
            has_topology=bool(groups.keys() - {()}),
        )

    @property
    def every(self) -> int:
        """All devices."""
        return (1 << len(self.ids)) - 1

    def mask(self, ids: Iterable[str]) -> int:
        """The bits of these devices; ids that the plugin does not list (any more) have none."""
        positions = self.positions
        return _mask([positions[device] for device in ids if device in positions])

    def names(self, mask: int) -> tuple[str, ...]:
        """The ids of these devices, in natural order."""
        if mask.bit_count() <= _FEW:
            return tuple(self.ids[bit] for bit in iter_bits(mask))
        return tuple(compress(self.ids, f"{mask:b}"[::-1].encode().translate(_BITS)))

    def tiers(self, available: int, affinity: int | None) -> Tiers:
        """Split devices by NUMA affinity (upstream ``filterByAffinity``).

        ``affinity`` is a bitmask of NUMA nodes; None when there is no decision.
        """
        if affinity is None or not self.has_topology:
            return Tiers(0, 0, available)
        near = 0
        for nodes, devices in self.localities:
            if nodes & affinity:
                near |= devices
        aligned = available & near
        no_affinity = available & self.unlocated
        return Tiers(aligned, available & ~(aligned | no_affinity), no_affinity)


EMPTY_TABLE: Final = DeviceTable((), {}, 0, (), 0, 0, has_topology=False)
"""The table of a resource that nobody lists."""


def in_natural_order(ids: Iterable[str]) -> list[str]:
    """Sort ids with the numbers in them compared as numbers; equal ones by their characters."""
    unsorted = list(ids)
    # All at once: a plugin may list ten thousand, with ten numbers in each.
    parts = _split(_BETWEEN.join(unsorted))
    sortable = {digits: _sortable(digits) for digits in set(parts[1::2])}
    parts[1::2] = map(sortable.__getitem__, parts[1::2])
    keys = "".join(parts).split(_BETWEEN)
    if len(keys) != len(unsorted):
        # Some id holds the separator, as no decent one does (or there is no id at all).
        keys = unsorted
    return [id_ for _, id_ in sorted(zip(keys, unsorted, strict=True))]


def _sortable(digits: str) -> str:
    """A text that sorts as the number; one digit is such a text, and sorts before ``:``."""
    # A number is as long as it has digits: no conversion, which very long ones would refuse.
    short = digits.lstrip("0")
    return f":{len(short):09}{short}" if len(short) > 1 else short or "0"


def _mask(bits: Collection[int]) -> int:
    if len(bits) <= _FEW:
        mask = 0
        for bit in bits:
            mask |= 1 << bit
        return mask
    # One bit after the other would copy the whole number each time.
    digits = bytearray(b"0") * (max(bits) + 1)
    for bit in bits:
        digits[-1 - bit] = 49  # "1"
    return int(digits, 2)
