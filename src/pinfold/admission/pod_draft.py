"""One pod's draft: what every manager would give it, until it is known whether all of them can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from pinfold.admission.cpu_manager import CPUManager
from pinfold.admission.decision import Decision
from pinfold.admission.devices.locality import GivenDevices
from pinfold.admission.devices.manager import DeviceManager
from pinfold.admission.memory_manager import MemoryManager
from pinfold.admission.nearness import NearAttempt
from pinfold.admission.pod_level import Bubble
from pinfold.admission.refusal import UnmetWishError
from pinfold.core.cpu.hints import TooManyNUMANodesError
from pinfold.core.pod.pod import Container, Pod, QOSClass, pod_guaranteed_cpus
from pinfold.core.topology_manager.manager import (
    UNEXPECTED_ADMISSION_ERROR,
    Admission,
    HintProvider,
)
from pinfold.core.values.cpuset import NO_CPUS
from pinfold.documents.explanation import MEMORY_MANAGER

Provider: TypeAlias = HintProvider[Pod, Container]

DEVICE_MANAGER: Final = "device manager"
CPU_MANAGER: Final = "cpu manager"
NEARNESS: Final = "nearness"


class PodDraft(Struct, frozen=True):
    """The managers at work on one pod, each on a draft of its own; None where there is none."""

    pod: Pod
    cpus: CPUManager | None
    memory: MemoryManager | None
    devices: DeviceManager | None
    nearness: NearAttempt
    given: GivenDevices | None = None
    """Where a kubelet has given the devices: they are aligned with, and not given here."""
    pod_level: bool = False
    """The gate ``PodLevelResourceManagers``: whether pods are served by resources of their own."""

    def providers(self) -> dict[str, Provider]:
        """The managers that the pod wants something of, by name, in the kubelet's order.

        The first that fails is the one that is told of.
        """
        pod, found = self.pod, dict[str, Provider]()
        if self.devices is not None:
            found[DEVICE_MANAGER] = self.devices
        is_whole = pod.has_pod_level_resources
        if is_whole and not self.pod_level:
            return found
        if self.cpus is not None and (
            self.cpus.policy.heeds_pod_level(pod) if is_whole else pod_guaranteed_cpus(pod) > 0
        ):
            found[CPU_MANAGER] = self.cpus
        if self.memory is not None and pod.qos is QOSClass.GUARANTEED:
            found[MEMORY_MANAGER] = self.memory
        if found and self.given is not None:
            found = {DEVICE_MANAGER: self.given, **found}
        if found:
            given = {} if self.cpus is None else self.cpus.allocations
            for nearness in self.nearness.providers(given):
                found[NEARNESS] = nearness
        return found

    def decide(self, containers: Sequence[Container]) -> Decision:
        """Decide about some containers of the pod.

        Raises:
            PreferenceNeededError: a device plugin has to be asked first.
        """
        providers = self.providers()
        admission = self.admit(containers, tuple(providers.values()))
        return self._decision(tuple(providers), admission)

    def admit(self, containers: Sequence[Container], providers: Sequence[Provider]) -> Admission:
        """Let the topology manager admit some containers of the pod, which has these providers.

        Raises:
            PreferenceNeededError: a device plugin has to be asked first.
        """
        if not providers:
            # Nobody would have an opinion, and then every policy admits.
            return Admission(admitted=True, reason=None, message=None, affinity={}, decisions=())
        try:
            return self.nearness.manager.admit(
                self.pod,
                containers,
                providers,
                pod_level=self.pod_level and self.pod.has_pod_level_resources,
            )
        except TooManyNUMANodesError as error:
            # A node is not configured so, but a device plugin registers when it likes.
            return Admission(
                admitted=False,
                reason=UNEXPECTED_ADMISSION_ERROR,
                message=str(error),
                affinity={},
                decisions=(),
            )
        except UnmetWishError as error:
            # No hints can be made.
            return Admission(
                admitted=False,
                reason=error.reason,
                message=str(error),
                affinity={},
                decisions=(),
            )

    def _decision(self, providers: tuple[str, ...], admission: Admission) -> Decision:
        cpus, memory, devices = self.cpus, self.memory, self.devices
        fault = (cpus and cpus.fault) or (memory and memory.fault) or None
        if not admission.admitted:
            failed = admission.failed_provider
            return Decision(
                self.pod,
                admitted=False,
                reason=admission.reason,
                message=admission.message,
                affinities=admission.decisions,
                providers=providers,
                notes=self._notes(admitted=False),
                affinity=admission.affinity,
                failed_container=admission.failed_container,
                failed_provider=None if failed is None else providers[failed],
                fault=fault,
                leaked=NO_CPUS if cpus is None else cpus.leaked,
            )
        return Decision(
            self.pod,
            admitted=True,
            allocations={} if cpus is None else cpus.own_of(self.pod),
            affinities=admission.decisions,
            providers=providers,
            notes=self._notes(admitted=True),
            affinity=admission.affinity,
            fault=fault,
            memory={} if memory is None else memory.allocations,
            memory_state=None if memory is None else memory.transaction.state,
            devices={} if devices is None else devices.allocations,
            by_class={} if devices is None else devices.by_class,
            bubble=self._bubble(),
        )

    def _notes(self, *, admitted: bool) -> tuple[str, ...]:
        """What was wished for in vain, and what comes to light after the admission."""
        of_cpus = self.cpus.notes if self.cpus is not None and admitted else ()
        late = () if self.devices is None else self.devices.late or ()
        return (*self.nearness.notes, *of_cpus, *late)

    def _bubble(self) -> Bubble | None:
        given = None if self.cpus is None else self.cpus.whole
        return Bubble.of(given, () if self.memory is None else self.memory.whole)


def first_admitted(drafts: Iterable[PodDraft], containers: Sequence[Container]) -> Decision:
    """The decision on the first draft that admits the pod, else on the last; there is one."""
    for draft in drafts:
        decision = draft.decide(containers)
        if decision.admitted:
            break
    return decision
