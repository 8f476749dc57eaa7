"""A machine as a JSON document: what ``pinfold topology -o json`` prints."""

from __future__ import annotations

from typing import Any, Final

from pinfold.core.machine.kubelet_view import KubeletView, UnseenMachineError, kubelet_view
from pinfold.core.machine.machine import Cpu, Hugepages, Machine, NUMANode, PCIFunction
from pinfold.core.values.cpuset import CPUSet

VERSION: Final = 1

_UNSEEN: Final = "the kubelet sees no CPU: no core_id or physical_package_id in any NUMA node"


def machine_document(machine: Machine, view: KubeletView | None = None) -> dict[str, Any]:
    """The document, version 1; CPU sets in the kernel's list format, absent values null.

    Where a kubelet would see no CPU, its fields of every CPU are null.
    """
    try:
        view = view or kubelet_view(machine)
        kubelet = _kubelet(view)
    except UnseenMachineError as error:
        kubelet = _unseen(error)
    return {
        "version": VERSION,
        "name": machine.name,
        "source": machine.source,
        "architecture": machine.architecture,
        "cpu_model": machine.cpu_model,
        "online": str(machine.online),
        "offline": str(machine.offline),
        "isolated": str(machine.isolated),
        "allowed": None if machine.allowed is None else str(machine.allowed),
        "memory_bytes": machine.memory_bytes,
        "hugepages_machine": hugepages_document(machine.hugepages),
        "sockets": [{"id": s.id, "cpus": str(s.cpus)} for s in machine.sockets],
        "numa": [_numa(node) for node in machine.numa_nodes],
        "numa_distances": None
        if machine.distances is None
        else {
            "nodes": list(machine.distances.nodes),
            **({} if machine.distances.name is None else {"name": machine.distances.name}),
            "rows": {str(node): list(row) for node, row in machine.distances.rows.items()},
        },
        "l3": [{"cpus": str(c.cpus), "size": c.size, "id": c.id} for c in machine.l3],
        "cores": [str(core) for core in machine.cores],
        "cpu_kinds": [
            {"kind": k.kind, "cpus": str(k.cpus), "info": dict(k.info)} for k in machine.cpu_kinds
        ],
        "pci": [_pci(function) for function in machine.pci],
        "kubelet": kubelet,
        "cpus": [_cpu(cpu, machine, view) for cpu in machine.cpus],
    }


def hugepages_document(pools: Hugepages) -> dict[str, dict[str, int]]:
    """Page size in bytes (as text) -> ``total`` and ``free`` pages."""
    return {str(size): {"total": p.total, "free": p.free} for size, p in sorted(pools.items())}


def _numa(node: NUMANode) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": node.id,
        "cpus": str(node.cpus),
        "memory_bytes": node.memory_bytes,
        "hugepages": hugepages_document(node.hugepages),
    }
    optional = {
        "memory_kind": node.memory_kind,
        "hwloc_local_cpus": _listed(node.local_cpus),
        "synthetic": node.synthetic or None,
    }
    return row | {key: value for key, value in optional.items() if value is not None}


def _pci(function: PCIFunction) -> dict[str, Any]:
    row: dict[str, Any] = {
        "address": function.address,
        "class": function.device_class,
        "numa_node": function.numa_node,
        "local_cpus": _listed(function.local_cpus),
    }
    optional = {
        "names": list(function.names) or None,
        "physical_function": function.physical_function,
    }
    return row | {key: value for key, value in optional.items() if value is not None}


def _kubelet(view: KubeletView) -> dict[str, Any]:
    topology = view.topology
    return {
        "num_cpus": topology.num_cpus,
        "num_cores": topology.num_cores,
        "num_sockets": topology.num_sockets,
        "num_numa_nodes": topology.num_numa_nodes,
        "num_uncore_caches": topology.num_uncore_caches,
        "machine_nodes": list(view.numa_nodes),
        "notes": list(view.notes),
    }


def _unseen(error: UnseenMachineError) -> dict[str, Any]:
    return {
        "num_cpus": error.num_cpus,
        "num_cores": 0,
        "num_sockets": error.num_sockets,
        "num_numa_nodes": 0,
        "num_uncore_caches": 0,
        "machine_nodes": list(error.numa_nodes),
        "notes": [_UNSEEN, *error.notes],
    }


def _listed(cpus: CPUSet | None) -> str | None:
    return None if cpus is None else str(cpus)


def _cpu(cpu: Cpu, machine: Machine, view: KubeletView | None) -> dict[str, Any]:
    row: dict[str, Any] = {"cpu": cpu.cpu, "online": cpu.online}
    if not cpu.online:
        return row
    seen = view.topology.by_cpu.get(cpu.cpu) if view else None
    uncore_known = view is not None and view.uncore_known
    row |= {
        "core": cpu.core,
        "core_id": cpu.core_id,
        "socket": cpu.socket,
        "die": cpu.die,
        "numa": cpu.numa,
        "l3": cpu.l3,
    }
    optional = {
        "l3_id": cpu.l3_id,
        "kind": cpu.kind,
        "allowed": None if cpu.allowed else False,
        "isolated": cpu.isolated or None,
        # Node maps that overlap are told by the nodes themselves; hwloc's XML has no other place.
        "numa_all": (list(cpu.numa_all) or None) if machine.source != "sysfs" else None,
    }
    row |= {key: value for key, value in optional.items() if value is not None}
    row |= {
        "kubelet_core": seen.core if seen else None,
        "kubelet_socket": seen.socket if seen else None,
        "kubelet_numa": seen.numa_node if seen else None,
        "kubelet_uncore": seen.uncore_cache if seen and uncore_known else None,
    }
    return row
