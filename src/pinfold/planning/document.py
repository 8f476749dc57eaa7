"""A plan as a JSON document: what ``pinfold plan -o json`` prints."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import asdict

from pinfold.core.memory.memory import Block
from pinfold.planning.node_use import DeviceUse, NUMANodeUse, device_use, numa_use
from pinfold.planning.planner import ContainerPlacement, Plan, PodPlacement

VERSION: Final = 1


def plan_document(plan: Plan) -> dict[str, Any]:
    """The document, version 1; CPU sets in the kernel's list format.

    ``pods`` are in admission order; ``reason`` and ``message`` are null for admitted pods, and
    the containers of rejected ones have no CPUs.  Sizes are bytes, NUMA nodes lists of numbers.
    """
    config, topology = plan.planner.config, plan.planner.view.topology
    return {
        "version": VERSION,
        "machine": {
            "name": plan.planner.machine.name,
            "cpus": str(topology.cpus),
            "sockets": topology.num_sockets,
            "numa_nodes": topology.num_numa_nodes,
            "cores": topology.num_cores,
            "notes": list(plan.planner.view.notes),
        },
        "config": {
            "cpuManagerPolicy": config.cpu_manager_policy,
            "cpuManagerPolicyOptions": dict(config.cpu_manager_policy_options),
            "topologyManagerPolicy": config.topology_manager_policy,
            "topologyManagerScope": config.topology_manager_scope,
            "topologyManagerPolicyOptions": dict(config.topology_manager_policy_options),
            "memoryManagerPolicy": config.memory_manager_policy,
        },
        "pods": [_pod(pod) for pod in plan.pods],
        "shared": str(plan.shared),
        "reserved": str(plan.reserved),
        "allocatable": str(plan.allocatable),
        "numa": [_node(node) for node in numa_use(plan.planner.view, plan.state)],
        "devices": _device_counts(device_use(plan.state)),
    }


def _pod(placement: PodPlacement) -> dict[str, Any]:
    pod, decision = placement.pod, placement.decision
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "qos": pod.qos.value,
        "admitted": decision.admitted,
        "reason": decision.reason,
        "message": decision.message,
        "kubelet_fault": None if decision.fault is None else decision.fault.slug,
        "notes": list(decision.notes),
        "containers": [_container(container) for container in placement.containers],
    }


def _container(container: ContainerPlacement) -> dict[str, Any]:
    return {
        "name": container.name,
        "kind": container.kind,
        "cpus": str(container.cpus),
        "exclusive": container.exclusive,
        "numa_nodes": list(container.numa_nodes),
        "memory": [block_document(block) for block in container.memory],
        "devices": {resource: list(ids) for resource, ids in container.devices.items()},
    }


def block_document(block: Block) -> dict[str, Any]:
    """Memory of one kind that a container has: ``type``, ``size`` in bytes, ``numa_nodes``."""
    return {
        "type": block.type,
        "size": block.size,
        "numa_nodes": list(block.numa_affinity or ()),
    }


def _node(node: NUMANodeUse) -> dict[str, Any]:
    return {
        "id": node.id,
        "group": list(node.group),
        "memory": [asdict(use) for use in node.memory],
        "devices": _device_counts(node.devices),
    }


def _device_counts(devices: tuple[DeviceUse, ...]) -> dict[str, dict[str, int]]:
    return {
        use.resource: {
            "total": use.total,
            "allocatable": use.allocatable,
            "used": use.used,
            "free": use.free,
        }
        for use in devices
    }
