"""The kubelet's view of a machine.

cAdvisor reads sysfs by rules of its own, and the CPU manager builds its topology on what
cAdvisor gives: on some machines other cores, sockets and uncore caches than the hardware has,
and CPUs that it does not see.  Source: cAdvisor ``utils/sysinfo`` and ``machine``, upstream
``cpumanager/topology.Discover``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pinfold.core.cpuset import CPUSet
from pinfold.core.machine import (
    Cpu,
    CpuFacts,
    KubeletFacts,
    Machine,
    MachineError,
    UpperCache,
)
from pinfold.core.topology import CPUInfo, CPUTopology

_GIVES_UP = "cAdvisor gives up on caches ({}): uncore id falls back to the socket id"
_NO_LINKS = "node*/cpu* links are not in the capture; cpulist/cpumap used instead"
_NO_NODES = "no node directories: cAdvisor makes one node per physical_package_id, with that id"
_SEVERAL = (
    "a CPU is in several nodes: the last node in name order wins, and NumCPUs counts it each time"
)


@dataclass(frozen=True, slots=True)
class KubeletView:
    """What a kubelet on this machine works with.

    Attributes:
        topology: the CPU manager's topology.
        numa_nodes: the machine's NUMA node ids, in cAdvisor's order.
        distances: node id -> row, where known.
        uncore_known: whether the source says which caches the kubelet would see.
        unseen: online CPUs that the kubelet does not see.
        notes: where it differs from the hardware, in words.
    """

    topology: CPUTopology
    numa_nodes: tuple[int, ...]
    distances: Mapping[int, tuple[int, ...]] | None
    uncore_known: bool
    unseen: CPUSet
    notes: tuple[str, ...] = ()


def kubelet_view(machine: Machine) -> KubeletView:
    """Derive the kubelet's view.

    Raises:
        MachineError: no CPU is left that a kubelet would see.
    """
    facts = machine.kubelet_facts
    known = facts is not None
    if facts is None:
        facts = _assumed_facts(machine)
    notes: list[str] = []
    nodes = _nodes(machine, facts, notes)
    problem = _cache_problem(facts, nodes)
    if problem is not None and known:
        notes.append(_GIVES_UP.format(problem))
    if facts.links_missing and facts.nodes is not None:
        notes.append(_NO_LINKS)
    rows: dict[int, CPUInfo] = {}
    threads = cores = 0
    for node, cpus in nodes.items():
        groups = _cores(facts, cpus)
        cores += len(groups)
        for group in groups:
            threads += len(group)
            for row in _core_rows(facts, node, group, len(groups), use_caches=problem is None):
                rows[row.cpu] = row
    if threads > len(rows):
        notes.insert(0, _SEVERAL)
    if not rows:
        raise MachineError(
            f"{machine.name}: no CPU has both core_id and physical_package_id, "
            "so a kubelet would see none; capture the machine again with its topology folders"
        )
    sockets = facts.physical_ids or len({c.package_id for c in facts.cpus.values()} - {None})
    topology = CPUTopology(
        rows.values(), num_cpus=threads, num_cores=cores, num_sockets=max(sockets, 1)
    )
    return KubeletView(
        topology=topology,
        numa_nodes=tuple(nodes),
        distances=machine.distances.rows if machine.distances else None,
        uncore_known=known,
        unseen=machine.online - topology.cpus,
        notes=tuple(notes),
    )


def _assumed_facts(machine: Machine) -> KubeletFacts:
    """What cAdvisor would read where the source tells the hardware only."""
    l3 = {cpu: (index, len(c.cpus)) for index, c in enumerate(machine.l3) for cpu in c.cpus}
    by_cpu = {cpu.cpu: cpu for cpu in machine.cpus if cpu.online}
    return KubeletFacts(
        cpus={
            number: CpuFacts(
                core_id=cpu.core,
                package_id=_socket_number(machine, cpu),
                caches=(_assumed_cache(machine, l3[number]),) if number in l3 else (),
            )
            for number, cpu in by_cpu.items()
        },
        # Where several nodes hold a CPU, all but the lowest are memory beside it (hwloc's view).
        nodes={
            node.id: tuple(cpu for cpu in node.cpus if by_cpu[cpu].numa == node.id)
            for node in machine.numa_nodes
        },
    )


def _socket_number(machine: Machine, cpu: Cpu) -> int:
    if cpu.socket is not None:
        return cpu.socket
    return next((i for i, s in enumerate(machine.sockets) if cpu.cpu in s.cpus), 0)


def _nodes(machine: Machine, facts: KubeletFacts, notes: list[str]) -> dict[int, tuple[int, ...]]:
    online = machine.online

    def seen(cpus: Iterable[int]) -> tuple[int, ...]:
        return tuple(
            cpu
            for cpu in cpus
            if cpu in online
            and cpu in facts.cpus
            and facts.cpus[cpu].core_id is not None
            and facts.cpus[cpu].package_id is not None
        )

    if facts.nodes is not None:
        return {node: seen(facts.nodes[node]) for node in sorted(facts.nodes, key=_by_name)}
    notes.append(_NO_NODES)
    packages: dict[int, list[int]] = {}
    for cpu in seen(sorted(facts.cpus, key=_by_name)):
        package = facts.cpus[cpu].package_id
        if package is not None:
            packages.setdefault(package, []).append(cpu)
    return {package: tuple(cpus) for package, cpus in sorted(packages.items())}


def _by_name(number: int) -> str:
    """CAdvisor walks directories in name order: node10 before node2."""
    return str(number)


def _assumed_cache(machine: Machine, l3: tuple[int, int]) -> UpperCache:
    index, size = l3
    cache_id = machine.l3[index].id
    return UpperCache(index if cache_id is None else cache_id, size)


def _cache_problem(facts: KubeletFacts, nodes: Mapping[int, tuple[int, ...]]) -> str | None:
    for cpus in nodes.values():
        for group in _cores(facts, cpus):
            first = facts.cpus[group[0]]
            if first.caches is None:
                return "no cache directory"
            if first.lacks_cache_id:
                return "no cache id file"
    return None


def _cores(facts: KubeletFacts, cpus: tuple[int, ...]) -> list[list[int]]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for cpu in cpus:
        fact = facts.cpus[cpu]
        key = (fact.core_id, fact.package_id, fact.book_id, fact.drawer_id)
        groups.setdefault(key, []).append(cpu)
    return list(groups.values())


def _core_rows(
    facts: KubeletFacts, node: int, group: list[int], cores_in_node: int, *, use_caches: bool
) -> list[CPUInfo]:
    first = facts.cpus[group[0]]
    socket = first.package_id if first.package_id is not None else 0
    uncore = socket
    if use_caches:
        whole_node = cores_in_node * len(group)
        uncore = next(
            (
                cache.id
                for cache in first.caches or ()
                if cache.cpu_count != whole_node and cache.id is not None
            ),
            socket,
        )
    return [CPUInfo(cpu, min(group), socket, node, uncore) for cpu in group]
