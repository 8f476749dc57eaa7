"""Node allocatable: what is left of the machine for pods.

Source: upstream ``cm/node_container_manager_linux.go`` and the container manager's set-up (1.34):
capacity - kubeReserved - systemReserved - hard eviction thresholds; pre-allocated huge pages
reduce memory; ``reservedSystemCPUs`` takes the place of both cpu reservations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pinfold.core.node_config import NodeConfig
from pinfold.core.pod import CPU, HUGEPAGES_PREFIX, MEMORY
from pinfold.core.quantity import Format, Quantity, QuantityError

PODS = "pods"


class AllocatableError(ValueError):
    """A reservation or threshold with which no kubelet would start."""


@dataclass(frozen=True, slots=True)
class MachineCapacity:
    """The machine as node status sees it: CPUs, bytes, and pages by size in bytes."""

    cpus: int
    memory_bytes: int
    hugepages: Mapping[int, int]


def reservation(config: NodeConfig) -> dict[str, Quantity]:
    """KubeReserved plus systemReserved, after ``reservedSystemCPUs`` has had its say."""
    kube, system = dict(config.kube_reserved), dict(config.system_reserved)
    if config.reserved_system_cpus:
        kube.pop(CPU, None)
        system[CPU] = Quantity(len(config.reserved_system_cpus))
    total = dict(kube)
    for name, quantity in system.items():
        total[name] = total[name] + quantity if name in total else quantity
    return total


def reserved_cpu_count(config: NodeConfig) -> int:
    """The whole CPUs that the static policy reserves: the ceiling of the cpu reservation.

    Raises:
        AllocatableError: no cpu is reserved; the message is the kubelet's.
    """
    reserved = reservation(config).get(CPU)
    if reserved is None:
        raise AllocatableError(
            "[cpumanager] unable to determine reserved CPU resources for static policy"
        )
    if reserved.is_zero:
        raise AllocatableError(
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu "
            "to be greater than zero"
        )
    return -(-reserved.milli_value() // 1000)


def node_capacity(machine: MachineCapacity, config: NodeConfig) -> dict[str, Quantity]:
    """What the node status reports as capacity."""
    pods = config.max_pods
    if config.pods_per_core > 0:
        pods = min(pods, config.pods_per_core * machine.cpus)
    capacity = {
        CPU: Quantity(machine.cpus),
        MEMORY: Quantity(machine.memory_bytes, 0, Format.BINARY_SI),
        PODS: Quantity(pods),
    }
    for size, pages in sorted(machine.hugepages.items()):
        capacity[hugepages_name(size)] = Quantity(size * pages, 0, Format.BINARY_SI)
    return capacity


def node_allocatable(machine: MachineCapacity, config: NodeConfig) -> dict[str, Quantity]:
    """What the node status reports as allocatable; never below zero.

    Raises:
        AllocatableError: an eviction threshold that is neither a quantity nor a percentage.
    """
    allocatable = node_capacity(machine, config)
    taken = reservation(config)
    threshold = _memory_threshold(machine, config)
    if threshold is not None:
        taken[MEMORY] = taken[MEMORY] + threshold if MEMORY in taken else threshold
    for name, quantity in taken.items():
        if name in allocatable:
            left = allocatable[name] - quantity
            allocatable[name] = left if left.sign >= 0 else Quantity(0, 0, left.format)
    for name, quantity in list(allocatable.items()):
        if name.startswith(HUGEPAGES_PREFIX):
            left = allocatable[MEMORY] - quantity
            allocatable[MEMORY] = left if left.sign >= 0 else Quantity(0, 0, left.format)
    return allocatable


def hugepages_name(size: int) -> str:
    """The resource name of a page size in bytes, such as ``hugepages-2Mi``."""
    return f"{HUGEPAGES_PREFIX}{Quantity(size, 0, Format.BINARY_SI)}"


def _memory_threshold(machine: MachineCapacity, config: NodeConfig) -> Quantity | None:
    text = config.eviction_hard.get("memory.available")
    if text is None:
        return None
    try:
        if not text.endswith("%"):
            return Quantity.parse(text)
        percentage = float(text[:-1]) / 100
    except (QuantityError, ValueError):
        raise AllocatableError(
            f'evictionHard["memory.available"]: {text!r} is neither a quantity nor a percentage'
        ) from None
    return Quantity(int(machine.memory_bytes * percentage), 0, Format.BINARY_SI)
