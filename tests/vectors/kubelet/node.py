"""A recorded node: its policies by version and gates, and the start of its managers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from pinfold.core.cpu.choice import ReservationError
from pinfold.core.cpu.static_policy import StaticPolicy
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS, POD_LEVEL_RESOURCES
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.policy_options import PolicyOptionError, StaticPolicyOptions
from pinfold.core.kubelet.versions import named_version
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.memory.memory import NodeMemory
from pinfold.core.memory.policy import StaticMemoryPolicy
from pinfold.core.memory.protection import MemoryQoS, memory_qos
from pinfold.core.pod.pod import Pod, pass_over_resources
from pinfold.core.topology_manager.hints import NUMAInfo
from pinfold.core.topology_manager.manager import TopologyManager, TopologyManagerError
from pinfold.core.values.cpuset import CPUSet
from tests.vectors import Case

_ALL_OPTIONS = {"CPUManagerPolicyAlphaOptions": True, "TopologyManagerPolicyAlphaOptions": True}
_ALLOCATABLE_MEMORY = 60 << 30


class StartFailedError(Exception):
    """The kubelet exits: in which phase of its start, and what it prints."""

    def __init__(self, phase: str, error: Exception) -> None:
        super().__init__(str(error))
        self.phase = phase


class Policies(Struct, frozen=True):
    """What a kubelet of one version is configured with, checked in its order."""

    config: NodeConfig
    topology: CPUTopology
    topology_manager: TopologyManager
    cpus: StaticPolicy | None
    memory: StaticMemoryPolicy | None
    devices: DeviceState | None
    protection: MemoryQoS | None
    pod_level: bool
    """Whether the gate PodLevelResourceManagers is on."""

    def told(self, pod: Pod) -> Pod:
        """A pod as this kubelet sees it: by the gate PodLevelResources."""
        return pod if self.config.gate(POD_LEVEL_RESOURCES) else pass_over_resources(pod)


def policies(case: Case, topology: CPUTopology, gates: Mapping[str, bool]) -> Policies:
    """The policies of a case's node; raises StartFailedError."""
    node = case["node"]
    config = NodeConfig(
        cpu_manager_policy=node["cpu_policy"],
        cpu_manager_policy_options=node["cpu_options"],
        cpu_cfs_quota=node.get("cpu_quota", True),
        topology_manager_policy=node["tm_policy"],
        topology_manager_scope=node["tm_scope"],
        topology_manager_policy_options=node["tm_options"],
        memory_manager_policy="Static" if "memory" in node else "None",
        memory_reservation_policy=node.get("memory_reservation_policy") or "None",
        memory_throttling_factor=node.get("memory_throttling_factor"),
        feature_gates={**_ALL_OPTIONS, "MemoryQoS": node.get("memory_qos", False), **gates},
        kubelet_version=named_version(case["version"]).version,
    )
    pod_level = config.gate(POD_LEVEL_RESOURCE_MANAGERS)
    return Policies(
        config,
        topology,
        _topology_manager(config, topology, node),
        _cpu_policy(config, topology, node) if config.cpu_manager_policy == "static" else None,
        StaticMemoryPolicy(_nodes(node["memory"]), pod_level) if "memory" in node else None,
        _devices(node["devices"]) if "devices" in node else None,
        memory_qos(config, _ALLOCATABLE_MEMORY),
        pod_level,
    )


def _topology_manager(config: NodeConfig, topology: CPUTopology, node: Case) -> TopologyManager:
    rows = node.get("distances")
    distances = None if rows is None else {int(id_): row for id_, row in rows.items()}
    try:
        return TopologyManager.create(
            NUMAInfo(tuple(topology.numa_nodes), distances),
            config.topology_manager_policy,
            config.topology_manager_scope,
            config.topology_manager_policy_options,
            config.feature_gates,
            config.kubelet_version,
        )
    except (PolicyOptionError, TopologyManagerError) as error:
        raise StartFailedError("topology_manager", error) from None


def _cpu_policy(config: NodeConfig, topology: CPUTopology, node: Case) -> StaticPolicy:
    try:
        return StaticPolicy.create(
            topology,
            StaticPolicyOptions.parse(
                config.cpu_manager_policy_options, config.feature_gates, config.kubelet_version
            ),
            reserved_count=node["reserved_count"],
            reserved_cpus=CPUSet.parse(node["reserved_cpus"]),
            topology_manager_policy=config.topology_manager_policy,
            pod_level=config.gate(POD_LEVEL_RESOURCE_MANAGERS),
        )
    except (PolicyOptionError, ReservationError) as error:
        raise StartFailedError("cpu_new", error) from None


def _nodes(rows: list[Case]) -> dict[int, NodeMemory]:
    return {
        row["id"]: NodeMemory(
            row["memory"],
            {pool["page_size_kb"]: pool["num_pages"] for pool in row["hugepages"]},
            row["reserved"],
        )
        for row in rows
    }


def _devices(rows: list[Case]) -> DeviceState:
    return DeviceState(
        {
            row["resource"]: DeviceResource(
                row["resource"],
                {
                    one["id"]: Device(one["id"], healthy=True, numa_nodes=tuple(one["numa"] or ()))
                    for one in row["devices"]
                },
            )
            for row in rows
        }
    )
