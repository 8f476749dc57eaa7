"""The machine that counts describe, built of nothing else: no file, no hardware."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pinfold.core.machine.counts import Numbering, ShortForm
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
_LOCAL, _WITHIN_SOCKET, _REMOTE = 10, 12, 21
_BUSES: Final = 255
_CLASSES: Final = (
    (("gpu",), "0x030200"),
    (("nic", "vf", "net", "rdma", "hca", "eth", "sriov"), "0x020000"),
    (("nvme", "ssd", "disk"), "0x010802"),
)
"""PCI classes by what is in the name of a resource; any other is an accelerator."""
_ACCELERATOR: Final = "0x120000"


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
