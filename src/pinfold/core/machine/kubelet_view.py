"""The kubelet's view of a machine.

cAdvisor reads sysfs by rules of its own, and the CPU manager builds its topology on what
cAdvisor gives: on some machines other cores, sockets and uncore caches than the hardware has,
and CPUs that it does not see.  Source: cAdvisor ``utils/sysinfo`` and ``machine``, upstream
``cpumanager/topology.Discover``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from pinfold.core.machine.machine import (
    Cpu,
    CpuFacts,
    KubeletFacts,
    Machine,
    MachineError,
    UpperCache,
)
from pinfold.core.machine.topology import CPUInfo, CPUTopology
from pinfold.core.values.cpuset import CPUSet

_UNSEEN = (
    "no CPU has both core_id and physical_package_id in a NUMA node, so a kubelet would see none"
)
_UNSEEN_REMEDY = (
    "capture the machine again with its topology folders, or look at its hardware with pinfold "
    "topology"
)
_SEES_NONE = "the kubelet sees no CPU: no core_id or physical_package_id in any NUMA node"
_GIVES_UP = "cAdvisor gives up on caches ({}): uncore id falls back to the socket id"
_NO_LINKS = "node*/cpu* links are not in the capture; cpulist/cpumap used instead"
_NO_NODES = "no node directories: cAdvisor makes one node per physical_package_id, with that id"
_SEVERAL = (
    "a CPU is in several nodes: the last node in name order wins, and NumCPUs counts it each time"
)


class KubeletView(Struct, frozen=True):
    """What a kubelet on this machine works with.

    Attributes:
        topology: the CPU manager's topology.
        numa_nodes: the machine's NUMA node ids, in cAdvisor's order, memory-only ones too.
        distances: node id -> row as read, where known.
        memory: node id -> bytes; 0 where cAdvisor reads none.
        hugepages: node id -> page size in bytes -> pages.
        memory_bytes: the machine's memory, ``MemTotal`` of ``/proc/meminfo``; None if unknown.
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
    memory: Mapping[int, int] = field(default_factory=dict)
    hugepages: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    memory_bytes: int | None = None


class UnseenMachineError(MachineError):
    """A machine of which a kubelet would see no CPU.

    Attributes:
        num_cpus, num_sockets, numa_nodes, notes: what it would see nevertheless.
        unseen: the online CPUs of the hardware, all of them.
    """

    def __init__(self, machine: Machine, facts: KubeletFacts, nodes: Iterable[int]) -> None:
        super().__init__(f"{machine.name}: {_UNSEEN}; {_UNSEEN_REMEDY}")
        self.num_cpus = len(facts.cpus) if facts.nodes is None else 0
        self.num_sockets = _sockets(facts)
        self.numa_nodes = tuple(nodes)
        self.unseen = machine.online
        self.notes = (_SEES_NONE, *_node_notes(facts))


def kubelet_view(machine: Machine) -> KubeletView:
    """Derive the kubelet's view.

    Raises:
        UnseenMachineError: it would see no CPU.
    """
    facts = machine.kubelet_facts
    known = facts is not None
    if facts is None:
        facts = _assumed_facts(machine)
    nodes = _nodes(facts)
    rows: dict[int, CPUInfo] = {}
    problems: list[str] = []
    threads = cores = 0
    for node, cpus in nodes.items():
        groups = _cores(facts, cpus)
        cores += len(groups)
        problem: str | None = None
        for group in groups:
            threads += len(group)
            # cAdvisor goes through a node's cores and gives up at the first that it cannot read.
            problem = problem or _cache_problem(facts.cpus[group[0]])
            uncore = None if problem else _uncore_cache(facts, group, len(groups))
            rows |= {row.cpu: row for row in _core_rows(facts, node, group, uncore)}
        if problem:
            problems.append(problem)
    if not rows:
        raise UnseenMachineError(machine, facts, nodes)
    notes: list[str] = []
    if threads > len(rows):
        notes.append(_SEVERAL)
    if problems and known:
        notes.append(_GIVES_UP.format(problems[0]))
    notes += _node_notes(facts)
    if facts.nodes is None:
        # In place of the threads of the nodes, cAdvisor then counts the CPUs' folders.
        threads = len(facts.cpus)
    topology = CPUTopology(
        rows.values(), num_cpus=threads, num_cores=cores, num_sockets=max(_sockets(facts), 1)
    )
    memory, hugepages = _node_memory(machine, nodes, facts)
    capacity = facts.memory_capacity
    return KubeletView(
        topology=topology,
        numa_nodes=tuple(nodes),
        distances=machine.distances.rows if machine.distances else None,
        uncore_known=known,
        unseen=machine.online - topology.cpus,
        notes=tuple(notes),
        memory=memory,
        hugepages=hugepages,
        memory_bytes=machine.memory_bytes if capacity is None else capacity,
    )


def _node_notes(facts: KubeletFacts) -> tuple[str, ...]:
    if facts.nodes is None:
        return (_NO_NODES,)
    return (_NO_LINKS,) if facts.links_missing else ()


def _node_memory(
    machine: Machine, nodes: Iterable[int], facts: KubeletFacts
) -> tuple[Mapping[int, int], Mapping[int, Mapping[int, int]]]:
    # Nodes that cAdvisor makes of packages have neither memory nor hugepages.
    found = {} if facts.nodes is None else {node.id: node for node in machine.numa_nodes}
    return (
        {id_: found[id_].memory_bytes or 0 if id_ in found else 0 for id_ in nodes},
        {
            id_: {size: pool.total for size, pool in found[id_].hugepages.items()}
            if id_ in found
            else {}
            for id_ in nodes
        },
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


def _seen(facts: KubeletFacts, cpus: Iterable[int]) -> tuple[int, ...]:
    """The CPUs that cAdvisor does not skip."""
    return tuple(
        cpu
        for cpu in cpus
        if (facts.online is None or cpu in facts.online)
        and cpu in facts.cpus
        and facts.cpus[cpu].core_id is not None
        and facts.cpus[cpu].package_id is not None
    )


def _nodes(facts: KubeletFacts) -> dict[int, tuple[int, ...]]:
    if facts.nodes is not None:
        return {n: _seen(facts, facts.nodes[n]) for n in sorted(facts.nodes, key=_by_name)}
    packages: dict[int, list[int]] = {}
    for cpu in sorted(facts.cpus, key=_by_name):
        package = facts.cpus[cpu].package_id
        if package is not None:
            packages.setdefault(package, []).append(cpu)
    return {package: _seen(facts, cpus) for package, cpus in sorted(packages.items())}


def _sockets(facts: KubeletFacts) -> int:
    """By the lines of ``/proc/cpuinfo``; where it has none, by the online CPUs' package ids."""
    return facts.physical_ids or len(
        {
            fact.package_id
            for cpu, fact in facts.cpus.items()
            if fact.package_id is not None and (facts.online is None or cpu in facts.online)
        }
    )


def _by_name(number: int) -> str:
    """CAdvisor walks directories in name order: node10 before node2."""
    return str(number)


def _assumed_cache(machine: Machine, l3: tuple[int, int]) -> UpperCache:
    index, size = l3
    cache_id = machine.l3[index].id
    return UpperCache(index if cache_id is None else cache_id, size)


def _cache_problem(fact: CpuFacts) -> str | None:
    if fact.caches is None:
        return "no cache directory"
    return "no cache id file" if fact.lacks_cache_id else None


def _cores(facts: KubeletFacts, cpus: tuple[int, ...]) -> list[list[int]]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for cpu in cpus:
        fact = facts.cpus[cpu]
        key = (fact.core_id, fact.package_id, fact.book_id, fact.drawer_id)
        groups.setdefault(key, []).append(cpu)
    return list(groups.values())


def _uncore_cache(facts: KubeletFacts, group: list[int], cores_in_node: int) -> int | None:
    """The first cache above level 2 that is not the whole node's, by cAdvisor's arithmetic."""
    whole_node = cores_in_node * len(group)
    for cache in facts.cpus[group[0]].caches or ():
        if cache.cpu_count != whole_node and cache.id is not None:
            return cache.id
    return None


def _core_rows(
    facts: KubeletFacts, node: int, group: list[int], uncore: int | None
) -> list[CPUInfo]:
    socket = facts.cpus[group[0]].package_id
    if socket is None:
        raise AssertionError(f"CPU {group[0]} has no package and was not skipped")
    return [
        CPUInfo(cpu, min(group), socket, node, socket if uncore is None else uncore)
        for cpu in group
    ]
