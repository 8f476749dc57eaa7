"""What a kubelet would tell of its pods: cgroup values, create requests, podresources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pinfold.admission.admission import Node, NodeState
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.feature_gates import DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS
from pinfold.core.memory.protection import Protection
from pinfold.core.pod.cgroup_values import container_cgroup, pod_cgroup
from pinfold.core.pod.isolation_levels import (
    IsolationLevel,
    isolation_levels,
    pod_has_exclusive_cpus,
)
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.observation.pod_resources import allocatable_resources, resources_of
from pinfold.ports.podresources import ContainerDevices, ContainerMemory
from tests.vectors.kubelet.kubelet import Kubelet

Row = dict[str, Any]


def report(kubelet: Kubelet) -> Row:
    """The result of a step ``report``."""
    policies, managers = kubelet.policies, kubelet.managers
    node = Node(policies.cpus, policies.topology_manager, {}, memory_policy=policies.memory)
    state = NodeState(
        managers.cpus.ledger,
        memory=None if managers.memory is None else managers.memory.state,
        devices=DeviceState() if managers.devices is None else managers.devices.state,
    )
    found = allocatable_resources(node, state)
    return {
        "pods": {uid: _pod(kubelet, pod, state) for uid, pod in kubelet.active.items()},
        "allocatable": {
            "cpu_ids": list(found.cpus),
            "devices": _devices(found.devices),
            "memory": _memory(found.memory),
        },
        "listed": sorted(kubelet.active),
    }


def _pod(kubelet: Kubelet, pod: Pod, state: NodeState) -> Row:
    policies = kubelet.policies
    uncap = policies.config.gate(DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS)
    enforce = policies.config.cpu_cfs_quota
    levels = isolation_levels(
        pod, state.ledger.assignments.get(pod.uid, {}), pod_level=policies.pod_level
    )
    exclusive = pod_has_exclusive_cpus(pod, levels)
    cgroup = pod_cgroup(pod, enforce_cpu_limits=enforce, exclusive=exclusive, uncap_exclusive=uncap)
    protection = None if policies.protection is None else policies.protection.of_pod(pod)
    told = resources_of(pod, state).containers
    return {
        "qos": pod.qos.value,
        "has_exclusive_cpus": exclusive,
        "pod_cgroup": {
            "cpu_period": cgroup.cpu_period,
            "cpu_quota": cgroup.cpu_quota,
            "cpu_shares": cgroup.cpu_shares,
            "memory": cgroup.memory,
            "unified": _unified(protection),
        },
        "podresources": [
            {
                "name": one.name,
                "cpu_ids": list(one.cpus),
                "devices": _devices(one.devices),
                "memory": _memory(one.memory),
            }
            for one in told
        ],
        "containers": {
            one.name: _container(kubelet, pod, one, state, levels[one.name])
            for one in pod.all_containers
        },
    }


def _container(
    kubelet: Kubelet, pod: Pod, container: Container, state: NodeState, level: IsolationLevel
) -> Row:
    policies = kubelet.policies
    own = state.ledger.cpus_of(pod.uid, container.name)
    exclusive = level is IsolationLevel.CONTAINER
    cgroup = container_cgroup(
        pod,
        container,
        memory_capacity=1,
        enforce_cpu_limits=policies.config.cpu_cfs_quota,
        exclusive=exclusive,
        uncap_exclusive=policies.config.gate(DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS),
    )
    runs_on = str(state.ledger.default if own is None else own)
    nodes = () if state.memory is None else state.memory.nodes_of(pod.uid, container.name)
    row = {
        "cpuset": runs_on,
        "cpuset_cpus": runs_on,
        "cpuset_mems": ",".join(map(str, nodes)),
        "exclusive": str(own or CPUSet()),
        "has_exclusive_cpus": exclusive,
        "cpu_quota": cgroup.cpu_quota,
        "cpu_period": cgroup.cpu_period,
        "cpu_shares": cgroup.cpu_shares,
        "memory_limit": cgroup.memory_limit,
    }
    if kubelet.case["version"] != "1.35":
        row["isolation"] = level.value
    if policies.protection is not None:
        unified = _unified(policies.protection.of_container(pod, container))
        row |= {} if unified is None else {"unified": unified}
    return row


def _unified(protection: Protection | None) -> dict[str, str] | None:
    return None if protection is None else protection.unified or None


def _devices(entries: Iterable[ContainerDevices]) -> list[Row]:
    return [
        {
            "resource": one.resource_name,
            "device_ids": list(one.device_ids),
            "numa": list(one.numa_nodes or ()),
        }
        for one in entries
    ]


def _memory(blocks: Iterable[ContainerMemory]) -> list[Row]:
    rows = [
        {"memory_type": one.memory_type, "size": one.size, "numa": list(one.numa_nodes)}
        for one in blocks
    ]
    return sorted(rows, key=lambda row: (row["memory_type"], row["numa"]))
