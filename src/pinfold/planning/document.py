"""A plan as a JSON document: what ``pinfold plan -o json`` prints."""

from __future__ import annotations

from typing import Any, Final

from pinfold.planning.planner import Plan, PodPlacement

VERSION: Final = 1


def plan_document(plan: Plan) -> dict[str, Any]:
    """The document, version 1; CPU sets in the kernel's list format.

    ``pods`` are in admission order; ``reason`` and ``message`` are null for admitted pods, and
    the containers of rejected ones have no CPUs.
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
        },
        "pods": [_pod(pod) for pod in plan.pods],
        "shared": str(plan.shared),
        "reserved": str(plan.reserved),
        "allocatable": str(plan.allocatable),
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
        "containers": [
            {
                "name": container.name,
                "kind": container.kind,
                "cpus": str(container.cpus),
                "exclusive": container.exclusive,
            }
            for container in placement.containers
        ],
    }
