"""How a node is looked after, from its configuration and its machine."""

from __future__ import annotations

from pinfold.config.agent import AgentConfig
from pinfold.core.kubelet.feature_gates import DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS
from pinfold.core.memory.protection import memory_qos
from pinfold.node.settings import NodeSettings, OwnerOffline
from pinfold.ports.cgroups import Partition


def node_settings(
    config: AgentConfig,
    *,
    memory: int,
    allocatable_memory: int | None,
    page_sizes: tuple[int, ...],
    tree: str,
) -> NodeSettings:
    """The settings of a node.

    ``memory`` is what the machine has and ``allocatable_memory`` what pods may request of it, in
    bytes; ``page_sizes`` are those of its huge pages; ``tree`` is the containers' cgroup tree.
    """
    return NodeSettings(
        reserved_system_cpus=config.node.reserved_system_cpus,
        machine_memory=memory,
        page_sizes=page_sizes,
        memory_qos=memory_qos(config.node, allocatable_memory),
        pod_pids_limit=config.node.pod_pids_limit,
        io_weights=config.own.policies.io_weights,
        cpu_cfs_quota=config.node.cpu_cfs_quota,
        uncap_owners=config.node.gate(DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS),
        cpu_cfs_period=round(config.node.cpu_cfs_quota_period * 1_000_000),
        partition=Partition(config.own.cgroups.partition),
        owner_offline=OwnerOffline(config.own.cgroups.owner_offline),
        kept_pods=config.own.record.max_pods_remembered,
        scale_down_grace_period=config.node.scale_down_grace_period,
        idle_side=config.node.own is not None and config.node.own.need_idle_side,
        runtime=config.own.containers.runtime,
        cgroups=tree,
        kubelet_version=config.node.kubelet_version,
    )
