"""A machine from pinfold's own JSON: what ``pinfold topology -o json`` prints.

The document says what cAdvisor made of the machine, not what it read; the facts are rebuilt so
that the same document comes out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec import UNSET, UnsetType

from pinfold.adapters.machines.json_document import convert, cpu_set
from pinfold.core.machine.machine import (
    Cpu,
    CpuFacts,
    CpuKind,
    Distances,
    HugepagePool,
    Hugepages,
    KubeletFacts,
    L3Cache,
    Machine,
    MachineError,
    NUMANode,
    PCIFunction,
    Socket,
    UpperCache,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.resource_names import is_extended
from pinfold.documents import machine as form
from pinfold.documents.records import VERSION, Pages

_WHAT: Final = "pinfold's own JSON; write it again with: pinfold topology -o json"
_NODE_DIRECTORIES: Final = "no node directories"
_LINKS: Final = "node*/cpu* links are not in the capture"
_NO_CACHES: Final = "(no cache directory)"
_NO_CACHE_ID: Final = "(no cache id file)"

_T = TypeVar("_T")


def machine_from_own_json(value: object, *, file: str) -> Machine:
    """Read a decoded document, version 1; ``file`` is its name, for messages.

    Raises:
        MachineError: another version, a missing or malformed field, or groups of CPUs that the
            rows of the CPUs contradict.
    """
    fields = value if isinstance(value, dict) else {}
    version = fields.get("version", fields.get("schema"))
    if version != VERSION or isinstance(version, bool):
        raise MachineError(
            f"{file}: version {str(version)[:20]} of pinfold's JSON is not known, only {VERSION} "
            "is; use the version of pinfold that wrote it"
        )
    document = convert({**fields, "version": VERSION}, form.Machine, name=file, what=_WHAT)
    return _Reader(document, file).machine()


def _known(value: _T | UnsetType | None) -> _T | None:
    return None if value is UNSET else value


class _Reader:
    def __init__(self, document: form.Machine, file: str) -> None:
        self.document = document
        self.file = file
        self.rows = {row.cpu: row for row in document.cpus}
        if len(self.rows) != len(document.cpus):
            raise MachineError(f"{file}: a CPU appears twice in cpus; write the file again")
        self.online = CPUSet(row.cpu for row in document.cpus if row.online)

    def machine(self) -> Machine:
        document = self.document
        self._check_nodes()
        return Machine(
            name=document.name,
            source=document.source,
            cpus=tuple(self._cpu(self.rows[cpu]) for cpu in sorted(self.rows)),
            numa_nodes=tuple(self._node(node) for node in document.numa),
            sockets=tuple(
                Socket(socket.id, self._set(socket.cpus, f"sockets[{i}]"))
                for i, socket in enumerate(document.sockets)
            ),
            cores=tuple(self._set(cpus, f"cores[{i}]") for i, cpus in enumerate(document.cores)),
            l3=tuple(
                L3Cache(self._set(cache.cpus, f"l3[{i}]"), cache.size, cache.id)
                for i, cache in enumerate(document.l3)
            ),
            distances=self._distances(),
            cpu_kinds=tuple(
                CpuKind(kind.kind, self._set(kind.cpus, f"cpu_kinds[{i}]"), kind.info)
                for i, kind in enumerate(document.cpu_kinds)
            ),
            architecture=document.architecture,
            cpu_model=document.cpu_model,
            memory_bytes=document.memory_bytes,
            hugepages=self._pools(document.hugepages_machine, "hugepages_machine"),
            pci=tuple(self._pci(i, pci) for i, pci in enumerate(document.pci)),
            allowed=None
            if document.allowed is None
            else self._set(document.allowed, "allowed", within=False),
            nohz_full=self._set(document.nohz_full or "", "nohz_full", within=False),
            rcu_nocbs=self._set(document.rcu_nocbs or "", "rcu_nocbs", within=False),
            kubelet_facts=self._facts(),
        )

    def _check_nodes(self) -> None:
        ids = [node.id for node in self.document.numa]
        if len(set(ids)) != len(ids):
            raise MachineError(f"{self.file}: a NUMA node appears twice; write the file again")

    def _cpu(self, row: form.CPURow) -> Cpu:
        if not row.online:
            return Cpu(row.cpu, online=False)
        return Cpu(
            row.cpu,
            core=_known(row.core),
            core_id=_known(row.core_id),
            socket=_known(row.socket),
            die=_known(row.die),
            numa=_known(row.numa),
            l3=_known(row.l3),
            l3_id=_known(row.l3_id),
            kind=_known(row.kind),
            allowed=row.allowed is not False,
            isolated=row.isolated is True,
            numa_all=tuple(row.numa_all or ()),
        )

    def _node(self, node: form.NUMARow) -> NUMANode:
        place = f"numa node {node.id}"
        return NUMANode(
            node.id,
            self._set(node.cpus, place),
            memory_bytes=node.memory_bytes,
            hugepages=self._pools(node.hugepages, place),
            memory_kind=_known(node.memory_kind),
            local_cpus=None
            if node.hwloc_local_cpus is UNSET
            else self._set(node.hwloc_local_cpus, place, within=False),
            synthetic=node.synthetic is True,
        )

    def _pci(self, index: int, pci: form.PCIRow) -> PCIFunction:
        local = pci.local_cpus
        return PCIFunction(
            address=pci.address,
            device_class=pci.device_class,
            numa_node=pci.numa_node,
            local_cpus=None if local is None else self._set(local, f"pci[{index}]", within=False),
            names=tuple(pci.names or ()),
            physical_function=_known(pci.physical_function),
            resource=self._resource(index, pci),
        )

    def _resource(self, index: int, pci: form.PCIRow) -> str | None:
        name = _known(pci.resource)
        if name is not None and not is_extended(name):
            raise MachineError(
                f"{self.file}: pci[{index}]: {name[:60]!r} is no name of a device plugin's "
                "resource; it is a domain, a slash and a name, such as example.com/gpu"
            )
        return name

    def _distances(self) -> Distances | None:
        distances = self.document.numa_distances
        if distances is None:
            return None
        rows = {
            self._number(node, "numa_distances"): tuple(row) for node, row in distances.rows.items()
        }
        return Distances(tuple(distances.nodes), rows, name=_known(distances.name))

    def _pools(self, pools: Mapping[str, Pages], place: str) -> Hugepages:
        return {
            self._number(size, place): HugepagePool(pool.total, pool.free)
            for size, pool in pools.items()
        }

    def _facts(self) -> KubeletFacts | None:
        """Facts that give the kubelet's part of the document again; None where it is derived."""
        kubelet = self.document.kubelet
        seen = [
            row for row in self.document.cpus if row.online and _known(row.kubelet_core) is not None
        ]
        if kubelet is not None and not seen:
            return KubeletFacts(cpus={}, nodes={})
        if kubelet is None or all(_known(row.kubelet_uncore) is None for row in seen):
            return None
        notes = "\n".join(kubelet.notes)
        facts: dict[int, CpuFacts] = {}
        by_node: dict[int, list[int]] = {node: [] for node in kubelet.machine_nodes}
        for row in seen:
            uncore, socket = _known(row.kubelet_uncore), _known(row.kubelet_socket)
            caches = () if uncore in (None, socket) else (UpperCache(uncore, -1),)
            facts[row.cpu] = CpuFacts(
                core_id=_known(row.kubelet_core),
                package_id=socket,
                caches=None if _NO_CACHES in notes else caches,
                lacks_cache_id=_NO_CACHE_ID in notes,
            )
            if (numa := _known(row.kubelet_numa)) is not None:
                by_node.setdefault(numa, []).append(row.cpu)
        for node in self.document.numa:
            # Nodes that overlap: the rows only have the one that won.
            if node.id in by_node:
                cpus = self._set(node.cpus, f"numa node {node.id}")
                by_node[node.id] = sorted({*by_node[node.id], *(c for c in cpus if c in facts)})
        return KubeletFacts(
            cpus=facts,
            nodes=None
            if _NODE_DIRECTORIES in notes
            else {node: tuple(cpus) for node, cpus in by_node.items()},
            links_missing=_LINKS in notes,
            physical_ids=kubelet.num_sockets,
        )

    def _number(self, text: str, place: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            raise MachineError(f"{self.file}: {place}: {text[:20]!r} is no number")
        return int(text)

    def _set(self, text: str, place: str, *, within: bool = True) -> CPUSet:
        cpus = cpu_set(text, name=self.file, place=place)
        if within and not cpus <= self.online:
            raise MachineError(
                f"{self.file}: {place}: CPUs {cpus - self.online} are not among the online cpus"
            )
        return cpus
