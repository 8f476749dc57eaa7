"""What the pods of a record have, as parts of a state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState
from pinfold.admission.smt_isolation import SMTIsolation
from pinfold.core.devices.state import DeviceState
from pinfold.core.memory.memory import MemoryState
from pinfold.core.memory.policy import StaticMemoryPolicy
from pinfold.core.memory.reservation import NONE, STATIC
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.records import PodRecord, Record
from pinfold.state.ledger import InvariantError, Ledger
from pinfold.state.startup import StartError


def with_unplaced(empty: NodeState, record: Record, unplaced: CPUSet) -> NodeState:
    """An empty node that has those CPUs of the record, too, of which only that they exist is known.

    ``unplaced`` are those that are offline, and in no core or NUMA node that is known.
    """
    if record.node is None:
        return empty
    kept = record.node.machine & unplaced
    bounds = empty.ledger.limits
    bounds = replace(bounds, machine=bounds.machine | kept)
    ledger = Ledger.fresh(empty.ledger.policy_name, bounds)
    return replace(empty, ledger=ledger, offline=empty.offline | kept)


def recorded_ledger(
    record: Record,
    fresh: Ledger,
    pods: Sequence[tuple[PodRecord, Workload]],
    arrived: CPUSet,
    others: Mapping[str, Mapping[str, CPUSet]],
) -> tuple[Ledger, CPUSet]:
    """The record's ledger, within the bounds of today, and the CPUs that are new in its pool.

    ``fresh`` is the node's with nothing on it; ``arrived`` are CPUs that were never online before;
    ``others`` is what is claimed besides the pods.
    """
    if record.node is None:
        return fresh, CPUSet()
    own = {pod.uid: dict(pod.assignments) for pod, _ in pods if pod.assignments}
    assignments: dict[str, Mapping[str, CPUSet]] = {**own, **others}
    bubbles = {pod.uid: pod.bubble for pod, _ in pods if pod.bubble}
    owned = CPUSet.union_of(cpus for sets in assignments.values() for cpus in sets.values())
    owned |= CPUSet.union_of(bubbles.values())
    new = (arrived & fresh.limits.pool) - record.node.machine - owned
    idle = {pod.uid: dict(pod.idle) for pod, _ in pods if pod.idle}
    default = record.node.default | new
    ledger = Ledger(record.node.policy_name, default, assignments, fresh.limits, idle, bubbles)
    return ledger, new


def with_siblings(
    active: Mapping[str, tuple[PodRecord, Workload]], smt: SMTIsolation | None, arrived: CPUSet
) -> dict[str, tuple[PodRecord, Workload]]:
    """The pods, with the siblings of their SMT-isolated CPUs among those that are new.

    Such a sibling was offline when its core was given, and nobody knew whose it is.
    """
    found = dict(active)
    if smt is None or not arrived:
        return found
    for uid, (pod, workload) in active.items():
        cpus, idle = dict(pod.assignments), dict(pod.idle)
        for name in pod.idle:
            used = cpus[name] - idle[name]
            more = (CPUSet.from_mask(smt.siblings_of(used.mask)) & arrived) - cpus[name]
            cpus[name], idle[name] = cpus[name] | more, idle[name] | more
        if cpus != pod.assignments:
            found[uid] = (replace(pod, assignments=cpus, idle=idle), workload)
    return found


def recorded_memory(
    record: Record, node: Node, pods: Iterable[tuple[PodRecord, Workload]]
) -> MemoryState | None:
    """The memory that the pods have, on the NUMA nodes of today.

    Raises:
        StartError: another policy was in force; the message is the kubelet's.
        MemoryStateError: an assignment that does not fit the machine.
    """
    configured = NONE if node.memory_policy is None else STATIC
    if record.node is not None and record.node.memory_policy != configured:
        raise StartError(
            f'[memorymanager] configured policy "{configured}" differs from state checkpoint '
            f'policy "{record.node.memory_policy}"'
        )
    if node.memory_policy is None:
        return None
    return _memory_of(node.memory_policy, [pod for pod, _ in pods])


def _memory_of(policy: StaticMemoryPolicy, pods: Sequence[PodRecord]) -> MemoryState:
    return MemoryState.of(
        policy.nodes,
        {pod.uid: pod.memory for pod in pods if pod.memory},
        {pod.uid: pod.bubble_memory for pod in pods if pod.bubble_memory},
    )


def recorded_devices(state: DeviceState, pods: Iterable[PodRecord]) -> DeviceState:
    """The devices that the pods have; whether they still exist is told by their plugins.

    Raises:
        DeviceOwnershipError: a device that two pods have.
    """
    for pod in pods:
        if pod.devices:
            state = state.with_pod(pod.uid, _ids(pod))
    return state


def _ids(pod: PodRecord) -> dict[str, dict[str, tuple[str, ...]]]:
    return {
        container: {resource: grant.ids for resource, grant in grants.items()}
        for container, grants in pod.devices.items()
    }


def keep(
    state: NodeState, pod: PodRecord, node: Node, kept: Iterable[tuple[PodRecord, Workload]]
) -> NodeState:
    """The state with what a pod has, beside what others have kept.

    Raises:
        InvariantError: CPUs that it cannot have, or a manager that is not in force.
        MemoryStateError: memory that does not fit.
        DeviceOwnershipError: a device that another pod has.
    """
    ledger, memory = state.ledger, state.memory
    if pod.assignments or pod.bubble:
        if node.cpu_policy is None:
            raise InvariantError("policy none gives no exclusive CPUs")
        ledger = (
            ledger.with_bubble(pod.uid, pod.bubble, pod.assignments)
            if pod.bubble
            else ledger.with_pod(pod.uid, dict(pod.assignments), dict(pod.idle))
        )
    if pod.memory or pod.bubble_memory:
        if node.memory_policy is None:
            raise InvariantError("memory manager policy None gives no memory of a NUMA node")
        memory = _memory_of(node.memory_policy, [*(one for one, _ in kept), pod])
    return replace(with_devices_of(state, pod), ledger=ledger, memory=memory)


def with_devices_of(state: NodeState, pod: PodRecord) -> NodeState:
    """The state with a pod's devices.

    Raises:
        DeviceOwnershipError: another pod has one of them.
    """
    return replace(state, devices=recorded_devices(state.devices, [pod]))
