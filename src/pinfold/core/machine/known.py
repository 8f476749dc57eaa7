"""A machine some of whose CPUs are offline, with what was known of them while they were online.

The kernel tells no core, socket, cache or NUMA node of an offline CPU.  Who starts at such a moment
would see a smaller machine, and give the kubelet's verdict on a record that has the CPU: that it
``doesn't match``.  A CPU that is present is part of the machine, so the machine is remembered.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.machine.machine import Machine, NUMANode, PCIFunction
from pinfold.core.values.cpuset import CPUSet


class KnownMachine(Struct, frozen=True):
    """A machine as it is known.

    ``machine`` has every CPU whose place is known for an online one; ``unplaced`` are CPUs that
    are present and have never been seen online; ``arrived`` are CPUs that were such the last time,
    and whose place is known now.
    """

    machine: Machine
    unplaced: CPUSet
    arrived: CPUSet = CPUSet()


def known_machine(now: Machine, before: Machine | None) -> KnownMachine:
    """Put together what is seen now and what was known before.

    ``before`` is the machine that came of this the last time, None at the first time; that of
    another machine is passed over.
    """
    if before is None or not _is_same(now, before):
        return KnownMachine(now, now.offline)
    arrived = now.online - before.online
    if arrived or not now.offline:
        return KnownMachine(now, now.offline, arrived)
    facts = before.kubelet_facts
    if facts is not None and now.kubelet_facts is not None:
        facts = replace(facts, memory_capacity=now.kubelet_facts.memory_capacity)
    machine = replace(
        before,
        name=now.name,
        cpus=tuple(replace(cpu, isolated=cpu.cpu in now.isolated) for cpu in before.cpus),
        nohz_full=now.nohz_full,
        rcu_nocbs=now.rcu_nocbs,
        numa_nodes=_nodes(now, before),
        memory_bytes=now.memory_bytes,
        hugepages=now.hugepages,
        pci=_functions(now, before),
        allowed=now.allowed,
        kubelet_facts=facts,
    )
    return KnownMachine(machine, machine.offline)


def _is_same(now: Machine, before: Machine) -> bool:
    """Whether both have the same CPUs, in the same places as far as both know them."""
    places = {cpu.cpu: (cpu.socket, cpu.core_id) for cpu in before.cpus if cpu.online}
    return [cpu.cpu for cpu in now.cpus] == [cpu.cpu for cpu in before.cpus] and all(
        places.get(cpu.cpu, (cpu.socket, cpu.core_id)) == (cpu.socket, cpu.core_id)
        for cpu in now.cpus
        if cpu.online
    )


def _nodes(now: Machine, before: Machine) -> tuple[NUMANode, ...]:
    """The nodes with their CPUs of before, and their memory of now."""
    seen = {node.id: node for node in now.numa_nodes}
    return tuple(
        node
        if (found := seen.get(node.id)) is None
        else replace(node, memory_bytes=found.memory_bytes, hugepages=found.hugepages)
        for node in before.numa_nodes
    )


def _functions(now: Machine, before: Machine) -> tuple[PCIFunction, ...]:
    """The PCI functions of now; the kernel lists only online CPUs as near to one."""
    local = {(one.address, one.numa_node): one.local_cpus for one in before.pci}
    return tuple(
        replace(one, local_cpus=local.get((one.address, one.numa_node), one.local_cpus))
        for one in now.pci
    )
