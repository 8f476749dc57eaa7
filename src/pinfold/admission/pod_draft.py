"""One pod's draft: what every manager would give it, until it is known whether all of them can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from pinfold.admission.cpu_manager import CPUManager
from pinfold.admission.devices.locality import GivenDevices
from pinfold.admission.devices.manager import DeviceManager
from pinfold.admission.memory_manager import MemoryManager
from pinfold.admission.nearness import NearAttempt
from pinfold.admission.refusal import UnmetWishError
from pinfold.core.cpu.hints import TooManyNUMANodesError
from pinfold.core.devices.state import DeviceState
from pinfold.core.pod.pod import Container, Pod, QOSClass, pod_guaranteed_cpus
from pinfold.core.topology_manager.manager import (
    UNEXPECTED_ADMISSION_ERROR,
    Admission,
    HintProvider,
)
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
        if self.devices is not None and self._wants_devices(self.devices.state):
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

    def admit(self, containers: Sequence[Container]) -> Admission:
        """Let the topology manager admit some containers of the pod.

        Raises:
            PreferenceNeededError: a device plugin has to be asked first.
        """
        providers = list(self.providers().values())
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

    def _wants_devices(self, state: DeviceState) -> bool:
        return any(
            state.manages(resource)
            for container in self.pod.all_containers
            for resource in container.limits
        )
