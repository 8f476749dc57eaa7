"""Memory that the kernel leaves to containers, and where it slows them down: MemoryQoS.

Source: the kubelet's ``kuberuntime_container_linux.go``, ``cm/helpers_linux.go`` and
``cm/qos_container_manager_linux.go`` (1.36; before, :attr:`Reservation.UNTIERED`).  All numbers are
bytes, of files that only cgroup v2 has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.feature_gates import MEMORY_QOS
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.version_rules import (
    MEMORY_RESERVATION_TIERS,
    MEMORY_THROTTLED_IF_ASKED,
)
from pinfold.core.pod.pod import MEMORY, Container, Pod, QOSClass, Resources, pod_requests
from pinfold.core.values.quantity import ZERO

MEMORY_MIN: Final = "memory.min"
MEMORY_LOW: Final = "memory.low"
MEMORY_HIGH: Final = "memory.high"
DEFAULT_THROTTLING_FACTOR: Final = 0.9
PAGE: Final = 4096


class Reservation(Enum):
    """What is done with memory requests: the field ``memoryReservationPolicy``, and none before."""

    NONE = "None"
    """They protect nothing."""
    TIERED = "TieredReservation"
    """Those of Guaranteed pods are never reclaimed, those of Burstable ones last."""
    UNTIERED = "before 1.36"
    """Those of all pods are never reclaimed."""


class Protection(Struct, frozen=True):
    """What a cgroup is set to; None is "not set", which of a new cgroup is no protection."""

    min: int | None = None
    low: int | None = None
    high: int | None = None

    @property
    def unified(self) -> dict[str, str]:
        """The files of cgroup v2 that are written, as a runtime is told them."""
        rows = {MEMORY_HIGH: self.high, MEMORY_LOW: self.low, MEMORY_MIN: self.min}
        return {file: str(value) for file, value in rows.items() if value is not None}


class MemoryQoS(Struct, frozen=True):
    """How a node protects and throttles memory: the feature gate MemoryQoS is on.

    Attributes:
        reservation: what memory requests protect.
        throttling_factor: ``memoryThrottlingFactor``: which part of the way from its request to its
            limit a container goes before it is slowed down; above 0, at most 1; None: it is not.
        allocatable: the node's allocatable memory, the limit of who has none; None: not known.
    """

    reservation: Reservation = Reservation.NONE
    throttling_factor: float | None = DEFAULT_THROTTLING_FACTOR
    allocatable: int | None = None

    @property
    def has_effect(self) -> bool:
        """Whether anybody is protected or slowed down by these rules."""
        return self.reservation is not Reservation.NONE or self.throttling_factor is not None

    def of_container(self, pod: Pod, container: Container, *, limited: bool = True) -> Protection:
        """The protection of one container's cgroup.

        One that is not ``limited`` is not slowed down on the way to its limit either.
        """
        requested = _bytes(container.requests)
        high = self._high(requested, _bytes(container.limits)) if limited else None
        if self.reservation is Reservation.UNTIERED:
            return Protection(min=requested or None, high=high)
        if self.reservation is Reservation.NONE or not requested:
            # What another policy has left is taken away.
            return Protection(min=0, low=0, high=high)
        if pod.qos is QOSClass.GUARANTEED:
            return Protection(min=requested, high=high)
        return Protection(low=requested, high=high)

    def of_pod(self, pod: Pod) -> Protection:
        """The protection of a pod's cgroup, overhead counted."""
        requested = _bytes(pod_requests(pod))
        if not requested or self.reservation is Reservation.NONE:
            return Protection()
        if self.reservation is Reservation.UNTIERED or pod.qos is QOSClass.GUARANTEED:
            return Protection(min=requested)
        return Protection(low=requested if pod.qos is QOSClass.BURSTABLE else None)

    def of_classes(self, pods: Iterable[Pod]) -> tuple[Protection, Protection]:
        """The protection of the cgroup of all pods, and of that of the Burstable ones.

        A cgroup has no more protection than those above it.
        """
        sums = dict.fromkeys(QOSClass, 0)
        for pod in pods:
            sums[pod.qos] += _bytes(pod_requests(pod))
        burstable = sums[QOSClass.BURSTABLE]
        everybody = burstable + sums[QOSClass.GUARANTEED]
        if self.reservation is Reservation.UNTIERED:
            return Protection(min=everybody or None), Protection(min=burstable or None)
        if self.reservation is Reservation.NONE:
            everybody = burstable = 0
        return Protection(min=everybody), Protection(low=burstable)

    def _high(self, requested: int, limit: int) -> int | None:
        """Where the kernel slows a container down, whole pages; None: nowhere below its limit."""
        most = limit or self.allocatable or 0
        if self.throttling_factor is None or requested == limit or not most:
            return None
        beyond = (float(most) - float(requested)) * self.throttling_factor
        high = math.floor((float(requested) + beyond) / PAGE) * PAGE
        return high if high > requested else None


def _bytes(resources: Resources) -> int:
    return resources.get(MEMORY, ZERO).value()


def memory_qos(config: NodeConfig, allocatable: int | None) -> MemoryQoS | None:
    """How a node with this configuration protects memory; None: the gate MemoryQoS is off."""
    if not config.gate(MEMORY_QOS):
        return None
    reservation = Reservation.UNTIERED
    if MEMORY_RESERVATION_TIERS.at(config.kubelet_version):
        reservation = Reservation(config.memory_reservation_policy)
    factor = config.memory_throttling_factor
    if factor is None and not MEMORY_THROTTLED_IF_ASKED.at(config.kubelet_version):
        factor = DEFAULT_THROTTLING_FACTOR
    return MemoryQoS(reservation, factor, allocatable)
