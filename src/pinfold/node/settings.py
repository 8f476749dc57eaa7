"""How a node is looked after, whoever runs its containers, beside the policies."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.own_policies import IOWeights
from pinfold.core.kubelet.versions import DEFAULT_VERSION, KubeletVersion
from pinfold.core.memory.protection import MemoryQoS
from pinfold.core.pod.annotations import LOAD_BALANCE
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Partition
from pinfold.retry.backoff import pause_after

DEFAULT_PERIOD_MICROSECONDS: Final = 100_000


class OwnerOffline(Enum):
    """What becomes of a container all of whose own CPUs are offline."""

    SHARE = "share"
    """It runs in the shared pool."""
    FREEZE = "freeze"
    """It does not run."""


class NodeSettings(Struct, frozen=True):
    """Times are seconds.

    Attributes:
        reserved_system_cpus: ``reservedSystemCPUs``: no container runs on these while the shared
            pool has others, under every policy.
        machine_memory: bytes, for OOM scores.
        page_sizes: of the machine's huge pages, in bytes; a pod may use only those it asks for.
        memory_qos: how memory is protected; None: the gate MemoryQoS is off.
        pod_pids_limit: processes of a pod (``podPidsLimit``); none is limited below 1.
        io_weights: the weights of pods for block devices, by QoS class; 0: not set.
        cpu_cfs_quota: whether CPU limits are enforced (``cpuCFSQuota``).
        uncap_owners: whether who has CPUs of its own has no quota (the gate
            DisableCPUQuotaWithExclusiveCPUs).
        cpu_cfs_period: microseconds (``cpuCFSQuotaPeriod``).
        partition: the cpuset partition that exclusive sets should be (cgroup v2); see
            :meth:`partition_of`.
        backoff: the wait before the second restart; it doubles each time, the first is at once.
        longest_backoff: where the doubling ends.
        calm: a container that ran this long is restarted at once again.
        kept_pods: how many ended pods are remembered.
        owner_offline: what becomes of a container all of whose own CPUs are offline.
        scale_down_grace_period: for how long an application is told before CPUs are taken from
            it, where its pod does not say (:func:`pinfold.core.pod.grace.grace_of`).
        idle_side: whether best-effort containers are on the idle side of the tree, on which they
            may borrow and can be capped together.
        runtime: what runs the containers (``process``, ``cri``, ``nri``), for the record.
        cgroups: the cgroup tree that they are in, for the record; "" where there is none.
        kubelet_version: the kubelet as which is decided, for the record and the metrics.
    """

    reserved_system_cpus: CPUSet = CPUSet()
    machine_memory: int = 0
    page_sizes: tuple[int, ...] = ()
    memory_qos: MemoryQoS | None = None
    pod_pids_limit: int = -1
    io_weights: IOWeights = IOWeights()
    cpu_cfs_quota: bool = True
    uncap_owners: bool = True
    cpu_cfs_period: int = DEFAULT_PERIOD_MICROSECONDS
    partition: Partition = Partition.MEMBER
    backoff: float = 10.0
    longest_backoff: float = 300.0
    calm: float = 600.0
    kept_pods: int = 500
    owner_offline: OwnerOffline = OwnerOffline.SHARE
    scale_down_grace_period: float = 0.0
    idle_side: bool = False
    runtime: str = ""
    cgroups: str = ""
    kubelet_version: KubeletVersion = DEFAULT_VERSION

    def partition_of(self, annotations: Mapping[str, str], container: str) -> Partition:
        """The partition that a container with CPUs of its own should be.

        ``isolated`` are those that have opted in only: threads that do not pin themselves pile up
        on one CPU where nobody balances them.
        """
        if self.partition is Partition.ISOLATED and LOAD_BALANCE.of(annotations, container):
            return Partition.MEMBER
        return self.partition

    def pause_before(self, attempt: int) -> float:
        """Seconds to wait before an attempt (the first start is attempt 0)."""
        return pause_after(attempt - 1, self.backoff, self.longest_backoff) if attempt > 1 else 0.0
