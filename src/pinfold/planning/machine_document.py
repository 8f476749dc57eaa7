"""A machine as a JSON document: what ``pinfold topology -o json`` prints."""

from __future__ import annotations

from typing import TypeVar

from msgspec import UNSET, UnsetType

from pinfold.core.machine.kubelet_view import KubeletView, UnseenMachineError, kubelet_view
from pinfold.core.machine.machine import Cpu, Distances, Hugepages, Machine, NUMANode, PCIFunction
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents import machine as form
from pinfold.documents.records import Pages

_T = TypeVar("_T")


def machine_document(machine: Machine, view: KubeletView | None = None) -> form.Machine:
    """The document of a machine.

    Where a kubelet would see no CPU, its fields of every CPU are null.
    """
    try:
        view = view or kubelet_view(machine)
        kubelet = _kubelet(view)
    except UnseenMachineError as error:
        kubelet = _unseen(error)
    return form.Machine(
        name=machine.name,
        source=machine.source,
        architecture=machine.architecture,
        cpu_model=machine.cpu_model,
        online=str(machine.online),
        offline=str(machine.offline),
        isolated=str(machine.isolated),
        nohz_full=str(machine.nohz_full) or UNSET,
        rcu_nocbs=str(machine.rcu_nocbs) or UNSET,
        allowed=_listed(machine.allowed),
        memory_bytes=machine.memory_bytes,
        hugepages_machine=_hugepages(machine.hugepages),
        sockets=[form.SocketRow(id=s.id, cpus=str(s.cpus)) for s in machine.sockets],
        numa=[_numa(node) for node in machine.numa_nodes],
        numa_distances=None if machine.distances is None else _distances(machine.distances),
        l3=[form.L3Row(cpus=str(c.cpus), size=c.size, id=c.id) for c in machine.l3],
        cores=[str(core) for core in machine.cores],
        cpu_kinds=[
            form.CPUKind(kind=k.kind, cpus=str(k.cpus), info=dict(k.info))
            for k in machine.cpu_kinds
        ],
        pci=[_pci(function) for function in machine.pci],
        kubelet=kubelet,
        cpus=[_cpu(cpu, machine, view) for cpu in machine.cpus],
    )


def _hugepages(pools: Hugepages) -> dict[str, Pages]:
    return {str(size): Pages(total=p.total, free=p.free) for size, p in sorted(pools.items())}


def _distances(distances: Distances) -> form.NUMADistances:
    return form.NUMADistances(
        nodes=distances.nodes,
        name=_told(distances.name),
        rows={str(node): row for node, row in distances.rows.items()},
    )


def _numa(node: NUMANode) -> form.NUMARow:
    return form.NUMARow(
        id=node.id,
        cpus=str(node.cpus),
        memory_bytes=node.memory_bytes,
        hugepages=_hugepages(node.hugepages),
        memory_kind=_told(node.memory_kind),
        hwloc_local_cpus=_told(_listed(node.local_cpus)),
        synthetic=_told(node.synthetic or None),
    )


def _pci(function: PCIFunction) -> form.PCIRow:
    return form.PCIRow(
        address=function.address,
        device_class=function.device_class,
        numa_node=function.numa_node,
        local_cpus=_listed(function.local_cpus),
        names=_told(function.names or None),
        physical_function=_told(function.physical_function),
        resource=_told(function.resource),
    )


def _kubelet(view: KubeletView) -> form.KubeletView:
    topology = view.topology
    return form.KubeletView(
        num_cpus=topology.num_cpus,
        num_cores=topology.num_cores,
        num_sockets=topology.num_sockets,
        num_numa_nodes=topology.num_numa_nodes,
        num_uncore_caches=topology.num_uncore_caches,
        machine_nodes=list(view.numa_nodes),
        notes=view.notes,
    )


def _unseen(error: UnseenMachineError) -> form.KubeletView:
    return form.KubeletView(
        num_cpus=error.num_cpus,
        num_cores=0,
        num_sockets=error.num_sockets,
        num_numa_nodes=0,
        num_uncore_caches=0,
        machine_nodes=list(error.numa_nodes),
        notes=error.notes,
    )


def _listed(cpus: CPUSet | None) -> str | None:
    return None if cpus is None else str(cpus)


def _told(value: _T | None) -> _T | UnsetType:
    """Left out where it is not known."""
    return UNSET if value is None else value


def _cpu(cpu: Cpu, machine: Machine, view: KubeletView | None) -> form.CPURow:
    if not cpu.online:
        return form.CPURow(cpu=cpu.cpu, online=False)
    seen = view.topology.by_cpu.get(cpu.cpu) if view else None
    uncore_known = view is not None and view.uncore_known
    return form.CPURow(
        cpu=cpu.cpu,
        online=True,
        core=cpu.core,
        core_id=cpu.core_id,
        socket=cpu.socket,
        die=cpu.die,
        numa=cpu.numa,
        l3=cpu.l3,
        l3_id=_told(cpu.l3_id),
        kind=_told(cpu.kind),
        allowed=UNSET if cpu.allowed else False,
        isolated=_told(cpu.isolated or None),
        # Node maps that overlap are told by the nodes themselves; hwloc's XML has no other place.
        numa_all=(cpu.numa_all or UNSET) if machine.source != "sysfs" else UNSET,
        kubelet_core=seen.core if seen else None,
        kubelet_socket=seen.socket if seen else None,
        kubelet_numa=seen.numa_node if seen else None,
        kubelet_uncore=seen.uncore_cache if seen and uncore_known else None,
    )
