"""Where devices are: the NUMA nodes and CPUs nearest to a PCI function, by any of its names.

Source: the kernel's ABI documentation of ``/sys/bus/pci/devices/*/{numa_node,local_cpus}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, Self

from msgspec import Struct, field

from pinfold.core.machine.machine import Distances, Machine, PCIFunction
from pinfold.core.values.cpuset import CPUSet

_ADDRESS: Final = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<rest>[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE
)
_DEVICE_FOLDER: Final = "/dev/"
_LISTED: Final = 6
"""Names that a message lists where nothing is alike."""


_KINDS: Final = {
    "0x01": "storage",
    "0x02": "network",
    "0x03": "display",
    "0x12": "accelerator",
    "0x0b40": "co-processor",
}
OTHER_DEVICE: Final = "other"


def device_kind(device_class: str) -> str:
    """What a class code such as ``0x020000`` stands for, in a word."""
    for prefix, kind in _KINDS.items():
        if device_class.startswith(prefix):
            return kind
    return OTHER_DEVICE


class LocalityError(ValueError):
    """A device that the machine does not have; the message names it, and what there is instead."""


class Locality(Struct, frozen=True):
    """Where one device is, or several are.

    Attributes:
        name: as it was asked for; several are joined by commas.
        functions: the addresses of its PCI functions; a bond has several.  Where ``nodes`` is
            ``None``, those of which the firmware does not say where they are.
        nodes: bitmask of the nearest NUMA nodes that have CPUs; ``None`` where the firmware does
            not say.
        cpus: the nearest online CPUs; all of them where the firmware does not say.
    """

    name: str
    functions: tuple[str, ...]
    nodes: int | None
    cpus: CPUSet

    @property
    def unknown(self) -> str | None:
        """Why there is no answer, for people; ``None`` where there is one."""
        if self.nodes is not None:
            return None
        return (
            f"{self.name}: the firmware does not say at which NUMA node "
            f"{', '.join(self.functions)} is; update it, or leave the device out"
        )


class Localities(Struct, frozen=True, dict=True):
    """The devices of a machine, to be asked for by name; make it with :meth:`of`.

    Attributes:
        functions: the PCI functions.
        nodes: NUMA node id -> its online CPUs; nodes without CPUs have empty sets.
        distances: NUMA distances, for nodes without CPUs.
    """

    functions: tuple[PCIFunction, ...] = ()
    nodes: Mapping[int, CPUSet] = field(default_factory=dict)
    distances: Distances | None = None

    @cached_property
    def mask(self) -> int:
        """Bitmask of the nodes that have CPUs."""
        return _mask(node for node, cpus in self.nodes.items() if cpus)

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[PCIFunction, ...]]:
        names: dict[str, list[PCIFunction]] = {}
        for function in self.functions:
            for name in (function.address, *function.names):
                if name.isprintable():  # messages list them
                    names.setdefault(name, []).append(function)
        return {name: tuple(found) for name, found in names.items()}

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """The devices of a machine."""
        nodes = {node.id: node.cpus for node in machine.numa_nodes}
        return cls(machine.pci, nodes, machine.distances)

    @property
    def online(self) -> CPUSet:
        """The online CPUs of all nodes."""
        return CPUSet.union_of(self.nodes.values())

    def cpus_at(self, nodes: int) -> CPUSet:
        """The online CPUs of some nodes (a bitmask)."""
        return CPUSet.union_of(cpus for node, cpus in self.nodes.items() if nodes >> node & 1)

    def resolve(self, name: str) -> Locality:
        """Where a device is.

        Args:
            name: a PCI address (``0000:3b:00.0`` or ``3b:00.0``), or the kernel's name of a
                network interface, block device, RDMA device, NVMe controller or graphics card,
                with or without ``/dev/`` before it.

        Raises:
            LocalityError: the machine has no such device.
        """
        return self.resolve_all((name,))

    def place(self, function: PCIFunction) -> int | None:
        """The nodes nearest to a function (a bitmask); None where the firmware does not say."""
        place = self._place(function)
        return None if place is None else place[0]

    def resolve_all(self, names: Sequence[str]) -> Locality:
        """The smallest set of nodes that holds all of one or more devices.

        Where one of them is unknown, so is the whole.  Raises as :meth:`resolve`.
        """
        places = {one.address: self._place(one) for name in names for one in self._find(name)}
        asked = ",".join(name.strip() for name in names)
        unknown = tuple(address for address, place in places.items() if place is None)
        if unknown:
            return Locality(asked, unknown, None, self.online)
        nodes = 0
        cpus = []
        for place in places.values():
            if place is not None:
                nodes |= place[0]
                cpus.append(place[1])
        return Locality(asked, tuple(places), nodes, CPUSet.union_of(cpus))

    def _find(self, name: str) -> tuple[PCIFunction, ...]:
        wanted = name.strip()
        if wanted.startswith(_DEVICE_FOLDER):
            wanted = wanted.rpartition("/")[2]
        address = _ADDRESS.fullmatch(wanted)
        if address is not None:
            domain, rest = address["domain"], address["rest"].lower()
            if domain is not None:
                wanted = f"{domain.lower()}:{rest}"
            else:
                domains = [f.address for f in self.functions if f.address.endswith(f":{rest}")]
                # Other domains are what lspci -D shows; alone, such a function is meant.
                wanted = domains[0] if len(domains) == 1 else f"0000:{rest}"
        found = self._by_name.get(wanted)
        if found is None:
            raise LocalityError(self._missing(name.strip(), wanted))
        return found

    def _missing(self, name: str, wanted: str) -> str:
        from difflib import get_close_matches  # noqa: PLC0415 - 1.0 ms: only for the message

        if not self.functions:
            return (
                f"{name!r}: no PCI device is known of this machine; short forms, lscpu and "
                "cAdvisor have none: use the machine itself, a capture, or hwloc XML"
            )
        alike = get_close_matches(wanted, self._by_name, n=3, cutoff=0.6)
        if alike:
            instead = f"did you mean {' or '.join(alike)}?"
        else:
            known = [one.names[0] for one in self.functions if one.names]
            known = list(dict.fromkeys(known or [one.address for one in self.functions]))
            more = ", ..." if len(known) > _LISTED else ""
            instead = f"there are {', '.join(known[:_LISTED])}{more}:"
        return (
            f"{name!r} is no device with a PCI function on this machine (virtual interfaces have "
            f"none); {instead} 'pinfold topology' lists them"
        )

    def _place(self, function: PCIFunction) -> tuple[int, CPUSet] | None:
        """Nodes and CPUs of one function; None where the firmware does not say."""
        online = self.online
        local = CPUSet() if function.local_cpus is None else function.local_cpus & online
        if local == online:
            local = CPUSet()  # what the kernel says of a device that is nowhere in particular
        cpus = self.nodes.get(function.numa_node)
        if cpus:
            return 1 << function.numa_node, (local & cpus) or cpus
        nodes = _mask(node for node, held in self.nodes.items() if local & held)
        if nodes:
            return nodes, local
        if cpus is not None and (near := self._closest_to(function.numa_node)):
            return near, self.cpus_at(near)
        if self.mask.bit_count() == 1:
            return self.mask, online  # there is only one place to be
        return None

    def _closest_to(self, node: int) -> int:
        """The nodes with CPUs that are closest to one without; 0 where nothing tells."""
        if self.distances is None:
            return 0
        row = self.distances.rows.get(node, ())
        known = {
            other: distance
            for other, distance in zip(self.distances.nodes, row, strict=False)
            if self.nodes.get(other)
        }
        least = min(known.values(), default=0)
        return _mask(other for other, distance in known.items() if distance == least)


def resolve(machine: Machine, name: str) -> Locality:
    """Where a device of a machine is; see :meth:`Localities.resolve`; raises LocalityError."""
    return Localities.of(machine).resolve(name)


def _mask(nodes: Iterable[int]) -> int:
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask
