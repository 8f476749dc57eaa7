"""The counts that describe a machine, and how they are written.

:mod:`pinfold.core.machine.short_form` reads what is written, and :mod:`.planned_machine` builds the
machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet

UNITS: Final = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
_MEMORY_PER_CPU: Final = 4 << 30


class Numbering(Enum):
    """Which numbers the CPUs have."""

    ADJACENT = "adjacent"
    """The threads of a core are neighbours, the cores go socket by socket."""
    HALF = "half"
    """The first threads of all cores come first, socket by socket, then the second ones."""
    ALTERNATE = "alternate"
    """As ``HALF``, but CPUs are dealt to the sockets in turn, and so are the NUMA nodes' ids."""


class ShortForm(Struct, frozen=True):
    """The counts of a short form; per socket as in the text, ``memory`` in bytes per NUMA node.

    ``hugepages`` are the sizes in bytes, each with its pages at each NUMA node; ``devices`` are the
    names of resources, each with its devices at each NUMA node.  ``str()`` is a text that
    reads as the same, without what is usual.
    """

    sockets: int
    nodes: int
    caches: int
    cores: int
    threads: int
    numbering: Numbering
    memory: int
    hugepages: tuple[tuple[int, tuple[int, ...]], ...] = ()
    devices: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def cpus(self) -> int:
        """CPUs of the machine."""
        return self.sockets * self.cores * self.threads

    @property
    def numa_nodes(self) -> int:
        """NUMA nodes of the machine."""
        return self.sockets * self.nodes

    def __str__(self) -> str:
        parts = (
            (self.sockets, "s", 1),
            (self.nodes, "n", 1),
            (self.caches, "l", self.nodes),
            (self.cores, "c", 0),
            (self.threads, "t", 1),
        )
        text = "".join(f"{count}{letter}" for count, letter, unsaid in parts if count != unsaid)
        if self.numbering is not Numbering.ADJACENT:
            text += f"@{self.numbering.value}"
        if self.memory != default_memory(self.cores, self.threads, self.nodes):
            text += f"@{_size(self.memory)}"
        for size, pages in self.hugepages:
            same = len(set(pages)) == 1
            text += "".join(
                f"+hp{_size(size)}={count}" + ("" if same else f"@{nodes}")
                for count, nodes in _alike(pages)
            )
        for name, counts in self.devices:
            if counts == spread(sum(counts), range(self.numa_nodes), self.numa_nodes):
                text += f"+{name}={sum(counts)}"
            else:
                text += "".join(f"+{name}={n}@{node}" for node, n in enumerate(counts) if n)
        return text


def default_memory(cores: int, threads: int, nodes: int) -> int:
    """The bytes of a NUMA node of which nothing is said."""
    return _MEMORY_PER_CPU * (cores * threads // nodes)


def spread(count: int, nodes: range | CPUSet, all_nodes: int) -> tuple[int, ...]:
    """So many things over some NUMA nodes, as evenly as can be: the first have one more."""
    here = list(nodes)
    shares = dict.fromkeys(range(all_nodes), 0)
    for at, node in enumerate(here):
        shares[node] = count // len(here) + (at < count % len(here))
    return tuple(shares.values())


def _alike(counts: tuple[int, ...]) -> Iterator[tuple[int, CPUSet]]:
    """The numbers that there are, each with its NUMA nodes; no zero."""
    for count in sorted(set(counts) - {0}):
        yield count, CPUSet(node for node, here in enumerate(counts) if here == count)


def _size(count: int) -> str:
    """Bytes in the largest unit that they are whole in."""
    unit, shift = next(
        (unit, shift) for unit, shift in reversed(UNITS.items()) if count % (1 << shift) == 0
    )
    return f"{count >> shift}{unit}"
