"""A machine that is described by its counts, and what it is built from: no file, no hardware.

:mod:`pinfold.core.machine.short_form` reads the counts from a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.core.machine.machine import (
    CpuFacts,
    Distances,
    HugepagePool,
    KubeletFacts,
    Machine,
    NUMANode,
    PCIFunction,
    UpperCache,
)
from pinfold.core.machine.rows import CacheFacts, CpuRow, group_rows
from pinfold.core.values.cpuset import CPUSet

SOURCE: Final = "short-form"
UNITS: Final = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
_MEMORY_PER_CPU: Final = 4 << 30
_LOCAL, _WITHIN_SOCKET, _REMOTE = 10, 12, 21
_BUSES: Final = 255
_CLASSES: Final = (
    (("gpu",), "0x030200"),
    (("nic", "vf", "net", "rdma", "hca", "eth", "sriov"), "0x020000"),
    (("nvme", "ssd", "disk"), "0x010802"),
)
"""PCI classes by what is in the name of a resource; any other is an accelerator."""
_ACCELERATOR: Final = "0x120000"


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
    names of resources, each with its devices at each NUMA node.  ``str()`` is the shortest text
    that reads as the same.
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


def build(form: ShortForm, *, name: str) -> Machine:
    """The machine of counts that make sense (as :func:`.short_form.parse_counts` has checked)."""
    caches: dict[object, CacheFacts] = {
        i: CacheFacts(id=i) for i in range(form.sockets * form.cores)
    }
    rows = list(_rows(form))
    facts: dict[int, CpuFacts] = {}
    nodes: dict[int, list[int]] = {node: [] for node in range(form.numa_nodes)}
    for row in rows:
        l3 = row.l3
        size = form.cores // form.caches * form.threads if form.caches else 0
        upper = (UpperCache(l3, size),) if isinstance(l3, int) else ()
        facts[row.cpu] = CpuFacts(core_id=row.core_id, package_id=row.socket, caches=upper)
        nodes[row.numa[0]].append(row.cpu)
    groups = group_rows(rows, caches=caches)
    return Machine(
        name=name,
        source=SOURCE,
        cpus=groups.cpus,
        numa_nodes=tuple(
            NUMANode(
                node,
                CPUSet(cpus),
                memory_bytes=form.memory,
                hugepages={size: _pool(pages[node]) for size, pages in form.hugepages},
            )
            for node, cpus in nodes.items()
        ),
        sockets=groups.sockets,
        cores=groups.cores,
        l3=groups.l3,
        distances=_distances(form),
        memory_bytes=form.memory * len(nodes),
        hugepages={size: _pool(sum(pages)) for size, pages in form.hugepages},
        pci=tuple(_functions(form, nodes)),
        kubelet_facts=KubeletFacts(
            cpus=facts, nodes={node: tuple(sorted(cpus)) for node, cpus in nodes.items()}
        ),
    )


def _rows(form: ShortForm) -> Iterator[CpuRow]:
    cores = form.sockets * form.cores
    cores_of_node = form.cores // form.nodes
    cores_of_cache = form.cores // form.caches if form.caches else 0
    for core in range(cores):
        socket = core // form.cores
        part = core % form.cores // cores_of_node
        node, first = socket * form.nodes + part, core
        if form.numbering is Numbering.ALTERNATE:
            node = part * form.sockets + socket
            first = core % cores_of_node * form.numa_nodes + node
        for thread in range(form.threads):
            adjacent = form.numbering is Numbering.ADJACENT
            yield CpuRow(
                first * form.threads + thread if adjacent else thread * cores + first,
                core=core,
                package=socket,
                l3=core // cores_of_cache if cores_of_cache else None,
                core_id=core % form.cores,
                socket=socket,
                numa=(node,),
            )


def _functions(form: ShortForm, nodes: dict[int, list[int]]) -> Iterator[PCIFunction]:
    """One function for each device, in the order of the resources and of the nodes."""
    at = 0
    for name, counts in form.devices:
        word = name.rpartition("/")[2]
        number = 0
        for node, count in enumerate(counts):
            for _ in range(count):
                yield PCIFunction(
                    address=f"{at // _BUSES:04x}:{at % _BUSES + 1:02x}:00.0",
                    device_class=_class(word),
                    numa_node=node,
                    local_cpus=CPUSet(nodes[node]),
                    names=(f"{word}-{number}",),
                    resource=name,
                )
                at, number = at + 1, number + 1


def _class(word: str) -> str:
    found = (code for parts, code in _CLASSES if any(part in word.lower() for part in parts))
    return next(found, _ACCELERATOR)


def _pool(pages: int) -> HugepagePool:
    return HugepagePool(total=pages, free=pages)


def _distances(form: ShortForm) -> Distances:
    count = form.numa_nodes
    alternate = form.numbering is Numbering.ALTERNATE
    sockets = [node % form.sockets if alternate else node // form.nodes for node in range(count)]
    rows: dict[int, tuple[int, ...]] = {}
    for node in range(count):
        row = [_WITHIN_SOCKET if socket == sockets[node] else _REMOTE for socket in sockets]
        row[node] = _LOCAL
        rows[node] = tuple(row)
    return Distances(tuple(range(count)), rows)


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
