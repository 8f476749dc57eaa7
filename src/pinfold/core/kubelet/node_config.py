"""What a node is configured to do: the parts of a KubeletConfiguration that decide placements."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from pinfold.core.kubelet.eviction import DEFAULT_EVICTION_HARD
from pinfold.core.pod.pod import NO_RESOURCES, Resources
from pinfold.core.values.cpuset import CPUSet

NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})


class NodeConfig(Struct, frozen=True):
    """A kubelet's resource management settings, named as its configuration names them.

    ``reserved_memory`` is the list of ``{numaNode, limits}`` as read; durations are seconds;
    maps are as in the file, with the quantities parsed.
    """

    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: Mapping[str, str] = NO_OPTIONS
    cpu_manager_reconcile_period: float = 10.0
    reserved_system_cpus: CPUSet = CPUSet()
    kube_reserved: Resources = NO_RESOURCES
    system_reserved: Resources = NO_RESOURCES
    eviction_hard: Mapping[str, str] = DEFAULT_EVICTION_HARD
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: Mapping[str, str] = NO_OPTIONS
    memory_manager_policy: str = "None"
    reserved_memory: tuple[Mapping[str, Any], ...] = ()
    feature_gates: Mapping[str, bool] = NO_OPTIONS
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period: float = 0.1
    max_pods: int = 110
    pods_per_core: int = 0
