"""A pod that owns its CPUs, as the books have it at one moment."""

from __future__ import annotations

from msgspec import Struct

from pinfold.core.pod.annotations import BORROW
from pinfold.core.pod.isolation_levels import isolation_levels, pod_has_exclusive_cpus
from pinfold.core.pod.pod import Container, QOSClass, guaranteed_cpus
from pinfold.core.pod.pod_level import cpus_are_shared, exclusive_cpus
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import PodPhase, PodRecord
from pinfold.state.ledger import Ledger


class AdmittedPod(Struct, frozen=True):
    """What is decided and written down of a pod that was admitted and is not gone.

    ``workload`` is what it is to run; ``ends`` tells that its containers are being ended though the
    record does not say so.  Each change makes another one.
    """

    workload: Workload
    record: PodRecord
    ends: bool = False

    @property
    def is_ending(self) -> bool:
        """Whether somebody ends it."""
        return self.ends or self.record.phase is PodPhase.TERMINATING

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.record.uid

    @property
    def name(self) -> str:
        """``namespace/name``."""
        return self.record.full_name

    def key(self, container: Container) -> ContainerKey:
        """The container's key."""
        return ContainerKey(self.uid, container.name)

    def container(self, name: str) -> Container:
        """The container of that name as it is now: a resize has made another one of it."""
        (found,) = (one for one in self.workload.pod.all_containers if one.name == name)
        return found

    def is_mixed(self, container: Container) -> bool:
        """Whether a container uses the shared pool besides the CPUs that it owns, if any."""
        return container.name in self.workload.pod.mixed

    def is_pooled(self, container: Container) -> bool:
        """Whether a container runs on what others of its pod leave of the pod's bubble."""
        return bool(self.record.bubble) and cpus_are_shared(container)

    @property
    def is_uncapped(self) -> bool:
        """Whether the pod as a whole has no CFS quota, for what its containers own.

        That of a pod with resources of its own stays where some container may run elsewhere.
        """
        pod = self.workload.pod
        levels = isolation_levels(pod, self.record.assignments, pod_level=True)
        return pod_has_exclusive_cpus(pod, levels)

    def is_load_driven(self, container: Container) -> bool:
        """Whether a container has CPUs of its own by load, now or at other times."""
        return container.name in self.record.load_driven

    def borrows(self, container: Container) -> bool:
        """Whether a container without CPUs of its own runs on what others lend, where that is."""
        pod = self.workload.pod
        return pod.qos is QOSClass.BEST_EFFORT and BORROW.of(pod.annotations, container.name)

    def exclusive_cpus(self, ledger: Ledger, container: Container) -> CPUSet | None:
        """Where a container runs: its own CPUs, None for the shared pool.

        An init container that ended gave its CPUs back; started again after a reboot, it runs on
        those that its pod still has.
        """
        cpus = ledger.cpus_of(self.uid, container.name)
        if cpus is not None:
            return cpus
        pod = self.workload.pod
        asks = (
            exclusive_cpus(container)
            if pod.has_pod_level_resources
            else guaranteed_cpus(pod, container)
        )
        if asks and any(container.name == init.name for init in pod.init_containers):
            return ledger.cpus_of_pod(self.uid) or None
        return None
