"""What the cgroups of a container and of its pod are limited to, by QoS class and manifest."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from pinfold.core.memory.protection import Protection
from pinfold.core.pod.annotations import CPU_BURST, MEMORY_LIMIT
from pinfold.core.pod.cgroup_values import ContainerCgroup, container_cgroup, pod_cgroup
from pinfold.core.pod.pod import Container, Pod
from pinfold.node.settings import NodeSettings
from pinfold.ports.cgroups import Limits


class PodLimits(Struct, frozen=True):
    """The limits of a pod's containers, and of the pod as a whole."""

    pod: Pod
    settings: NodeSettings

    def of_container(self, container: Container, *, exclusive: bool) -> Limits:
        """Those of one container; ``exclusive``: it has CPUs of its own."""
        own = self._cgroup(container, exclusive=exclusive)
        limited = self._is_limited
        return Limits(
            cpu_shares=own.cpu_shares,
            cpu_quota=own.cpu_quota if own.cpu_quota > 0 else -1,
            cpu_period=own.cpu_period or None,
            memory=(own.memory_limit or None) if limited else None,
            hugepages=self._hugepages(own.hugepage_limits, limited=limited),
            cpu_burst=self._burst(container, own),
            protection=self._protection(container, limited=limited),
        )

    def of_pod(self, *, exclusive: bool) -> Limits:
        """Those of the pod, beside those of its containers.

        ``exclusive``: what its containers own is enough for the pod to have no quota.
        """
        settings, limited = self.settings, self._is_limited
        whole = pod_cgroup(
            self.pod,
            enforce_cpu_limits=settings.cpu_cfs_quota,
            period=settings.cpu_cfs_period,
            exclusive=exclusive,
            uncap_exclusive=settings.uncap_owners,
        )
        bursts = (self._burst(one, self._cgroup(one)) or 0 for one in self.pod.all_containers)
        quota = whole.cpu_quota or 0
        qos = settings.memory_qos
        return Limits(
            cpu_shares=whole.cpu_shares,
            cpu_quota=whole.cpu_quota,
            cpu_period=whole.cpu_period,
            memory=whole.memory if limited else None,
            hugepages=self._hugepages(whole.hugepage_limits, limited=limited),
            # What its containers save, the pod has to save as well, or it holds them back.
            cpu_burst=min(sum(bursts), quota) if quota > 0 else None,
            protection=Protection() if qos is None else qos.of_pod(self.pod),
            pids=settings.pod_pids_limit if settings.pod_pids_limit > 0 else None,
            io_weight=settings.io_weights.of(self.pod.qos),
        )

    def oom_score_adj(self, container: Container) -> int:
        """How readily the kernel ends the container when memory runs out."""
        return self._cgroup(container).oom_score_adj

    def _cgroup(self, container: Container, *, exclusive: bool = False) -> ContainerCgroup:
        settings = self.settings
        return container_cgroup(
            self.pod,
            container,
            memory_capacity=max(settings.machine_memory, 1),
            page_sizes=settings.page_sizes,
            enforce_cpu_limits=settings.cpu_cfs_quota,
            period=settings.cpu_cfs_period,
            exclusive=exclusive,
            uncap_exclusive=settings.uncap_owners,
        )

    def _burst(self, container: Container, own: ContainerCgroup) -> int | None:
        percent = CPU_BURST.of(self.pod.annotations, container.name)
        return own.cpu_quota * percent // 100 if percent and own.cpu_quota > 0 else None

    def _protection(self, container: Container, *, limited: bool) -> Protection:
        if (qos := self.settings.memory_qos) is None:
            return Protection()
        return qos.of_container(self.pod, container, limited=limited)

    @property
    def _is_limited(self) -> bool:
        # One that is for the whole pod says the same of each container.
        return not MEMORY_LIMIT.of(self.pod.annotations, "")

    def _hugepages(self, asked: Mapping[int, int], *, limited: bool) -> dict[int, int]:
        """The limit of every page size of the machine: nothing of those that are not asked for."""
        pages = {size: asked.get(size, 0) for size in self.settings.page_sizes}
        return pages if limited else {size: amount for size, amount in pages.items() if amount}
