"""Node allocatable: what is left of the machine for pods.

Source: upstream ``cm/node_container_manager_linux.go``, ``nodestatus/setters.go`` and the
container manager's set-up (1.34): capacity - systemReserved - kubeReserved - hard eviction
thresholds; pre-allocated huge pages reduce memory; ``reservedSystemCPUs`` takes the place of both
cpu reservations.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.eviction import (
    MEMORY_AVAILABLE,
    NODEFS_AVAILABLE,
    EvictionError,
    parse_thresholds,
)
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.pod.cgroup_values import PodCgroup, milli_cpu_to_shares
from pinfold.core.pod.hugepages import resource_name
from pinfold.core.pod.pod import CPU, MEMORY, NO_RESOURCES, Resources, is_hugepages
from pinfold.core.values.quantity import ZERO, Format, Quantity, QuantityError

PODS: Final = "pods"
PID: Final = "pid"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
RESERVABLE: Final = (CPU, MEMORY, EPHEMERAL_STORAGE, PID)
"""What ``kubeReserved`` and ``systemReserved`` may hold."""


class AllocatableError(ValueError):
    """A reservation or threshold with which no kubelet would start; in the kubelet's words."""


class NotReservableError(AllocatableError):
    """A reservation of a resource that is none of :data:`RESERVABLE`."""


class MachineCapacity(Struct, frozen=True):
    """The machine as node status sees it: CPUs, bytes, and pages by size in bytes.

    ``ephemeral_storage`` and ``pids`` (process ids) are None where nobody measured them.
    ``device_capacity`` and ``device_allocatable`` are what device plugins offer.
    """

    cpus: int
    memory_bytes: int
    hugepages: Mapping[int, int]
    ephemeral_storage: Quantity | None = None
    pids: int | None = None
    device_capacity: Resources = NO_RESOURCES
    device_allocatable: Resources = NO_RESOURCES


def parse_reserved(reserved: Mapping[str, str]) -> Resources:
    """Read ``kubeReserved`` or ``systemReserved``.

    Raises:
        AllocatableError: a resource that cannot be reserved, or an amount that cannot be.
    """
    parsed: dict[str, Quantity] = {}
    for name, text in reserved.items():
        if name not in RESERVABLE:
            raise NotReservableError(f'cannot reserve "{name}" resource')
        try:
            quantity = Quantity.parse(text)
        except QuantityError as error:
            raise AllocatableError(
                f'failed to parse quantity "{text}" for "{name}" resource: {error}'
            ) from None
        if quantity.sign < 0:
            raise AllocatableError(f'resource quantity for "{name}" cannot be negative: {text}')
        parsed[name] = quantity
    return MappingProxyType(parsed)


def reservation(config: NodeConfig) -> dict[str, Quantity]:
    """SystemReserved plus kubeReserved, after ``reservedSystemCPUs`` has had its say.

    It takes the place of both cpu reservations, as with a kubelet, or of that of the system alone
    (``reserved_cpus_add_up``), as the document says that proposed it.
    """
    total = dict(config.system_reserved)
    kube = dict(config.kube_reserved)
    if config.reserved_system_cpus:
        if not config.reserved_cpus_add_up:
            kube.pop(CPU, None)
        total[CPU] = Quantity(len(config.reserved_system_cpus))
    for name, quantity in kube.items():
        total[name] = total[name] + quantity if name in total else quantity
    return total


def reserved_cpu_count(config: NodeConfig) -> int:
    """The whole CPUs that the static policy reserves: the ceiling of the cpu reservation.

    Where they are named, what is withheld besides is of the shared pool, and no more CPUs are.

    Raises:
        AllocatableError: no cpu is reserved; the message is the kubelet's.
    """
    if config.reserved_system_cpus:
        return len(config.reserved_system_cpus)
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


def machine_capacity(machine: MachineCapacity) -> dict[str, Quantity]:
    """What the container manager starts from: no pods, no devices."""
    capacity = {
        CPU: Quantity(machine.cpus * 1000, -3),
        MEMORY: Quantity(machine.memory_bytes, 0, Format.BINARY_SI),
    }
    for size, pages in sorted(machine.hugepages.items()):
        capacity[resource_name(size)] = Quantity(size * pages, 0, Format.BINARY_SI)
    if machine.ephemeral_storage is not None:
        capacity[EPHEMERAL_STORAGE] = machine.ephemeral_storage
    if machine.pids is not None:
        capacity[PID] = Quantity(machine.pids)
    return capacity


def allocatable_reservation(machine: MachineCapacity, config: NodeConfig) -> dict[str, Quantity]:
    """What is withheld from pods of each resource that the machine has; zeros are left out.

    Raises:
        AllocatableError: a threshold that cannot be.
    """
    capacity = machine_capacity(machine)
    total = reservation(config)
    for name, quantity in _evicted_at(capacity, config).items():
        total[name] = total[name] + quantity if name in total else quantity
    return {name: total[name] for name in capacity if name in total and not total[name].is_zero}


def enforced_limits(machine: MachineCapacity, config: NodeConfig) -> dict[str, Quantity]:
    """What the cgroup of all pods may use together: capacity less reservations, no thresholds."""
    reserved = reservation(config)
    return {
        name: _less(quantity, reserved.get(name, ZERO))
        for name, quantity in machine_capacity(machine).items()
    }


def pods_cgroup(machine: MachineCapacity, config: NodeConfig) -> tuple[PodCgroup, int | None]:
    """The settings of the cgroup of all pods (``kubepods``), and its limit of process ids."""
    limits = enforced_limits(machine, config)
    cgroup = PodCgroup(
        cpu_shares=milli_cpu_to_shares(limits[CPU].milli_value()),
        cpu_quota=None,
        cpu_period=None,
        memory=limits[MEMORY].value(),
        hugepage_limits={size: limits[resource_name(size)].value() for size in machine.hugepages},
    )
    pids = limits[PID].value() if PID in limits else 0
    return cgroup, pids or None


def check_allocatable(machine: MachineCapacity, config: NodeConfig) -> None:
    """Refuse to reserve more than there is, as the container manager does when it starts.

    Raises:
        AllocatableError: naming the resources.
    """
    capacity = machine_capacity(machine)
    problems = [
        f'Resource "{name}" has a reservation of {quantity} but capacity of {capacity[name]}. '
        "Expected capacity >= reservation."
        for name, quantity in allocatable_reservation(machine, config).items()
        if quantity > capacity[name]
    ]
    if problems:
        raise AllocatableError(f"invalid Node Allocatable configuration. {' '.join(problems)}")


def node_capacity(machine: MachineCapacity, config: NodeConfig) -> dict[str, Quantity]:
    """What the node status reports as capacity."""
    pods = config.max_pods
    if config.pods_per_core > 0:
        pods = min(pods, config.pods_per_core * machine.cpus)
    capacity = machine_capacity(machine)
    capacity.pop(PID, None)
    return {**capacity, PODS: Quantity(pods), **machine.device_capacity}


def node_allocatable(machine: MachineCapacity, config: NodeConfig) -> dict[str, Quantity]:
    """What the node status reports as allocatable; never below zero.

    Raises:
        AllocatableError: a threshold that cannot be.
    """
    withheld = allocatable_reservation(machine, config)
    allocatable = {
        name: _less(quantity, withheld[name]) if name in withheld else quantity
        for name, quantity in node_capacity(machine, config).items()
    }
    allocatable.update(machine.device_allocatable)
    for name, quantity in allocatable.items():
        if is_hugepages(name):
            allocatable[MEMORY] = _less(allocatable[MEMORY], quantity)
    return allocatable


def _evicted_at(capacity: Resources, config: NodeConfig) -> dict[str, Quantity]:
    """The thresholds that take something away, on this capacity."""
    signals = {MEMORY_AVAILABLE: MEMORY, NODEFS_AVAILABLE: EPHEMERAL_STORAGE}
    try:
        thresholds = parse_thresholds(config.eviction_hard)
    except EvictionError as error:
        raise AllocatableError(f"evictionHard: {error}") from None
    return {
        name: threshold.of(capacity[name].value())
        for threshold in thresholds
        if (name := signals.get(threshold.signal, "")) in capacity
    }


def _less(quantity: Quantity, taken: Quantity) -> Quantity:
    left = quantity - taken
    return left if left.sign >= 0 else Quantity(0, 0, left.format)
