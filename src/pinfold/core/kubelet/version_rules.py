"""What kubelets decide otherwise from one version to the next, in one table.

Gates and options have tables of their own (:mod:`.feature_gates`, :mod:`.policy_options`); here is
what no setting tells.  Whoever decides asks the row: ``DEVICE_HINTS_BY_DEVICES.at(version)``.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.feature_gates import MEMORY_QOS
from pinfold.core.kubelet.versions import V1_35, V1_36, V1_37, ByVersion, KubeletVersion, since


class VersionRule(Struct, frozen=True):
    """One row: what holds from some version on, in a sentence for people, and where it is from."""

    slug: str
    text: str
    source: str
    holds: ByVersion[bool]
    gate: str = ""
    """The feature gate without which it is of no account, if any."""

    def at(self, version: KubeletVersion) -> bool:
        """Whether a kubelet of this version does so."""
        return self.holds.at(version)


DEVICE_HINTS_BY_DEVICES: Final = VersionRule(
    slug="device-hints-by-devices",
    text="Devices make hints only of the NUMA nodes that have a device of the resource; before, of "
    "all NUMA nodes.",
    source="kubernetes/kubernetes#138244 (1.35.6, 1.36.2)",
    holds=since(V1_35, V1_36),
)

MEMORY_RESERVATION_TIERS: Final = VersionRule(
    slug="memory-reservation-tiers",
    text="With MemoryQoS, requests are protected by memoryReservationPolicy: memory.min of "
    "Guaranteed and memory.low of Burstable pods, or nothing; before, by memory.min of both.",
    source="KEP-2570 (1.36)",
    holds=since(KubeletVersion(36)),
    gate=MEMORY_QOS,
)

MEMORY_THROTTLED_IF_ASKED: Final = VersionRule(
    slug="memory-throttled-if-asked",
    text="With MemoryQoS, memory.high is written only where memoryThrottlingFactor is set; before, "
    "it is 0.9 where it is not.",
    source="kubernetes/kubernetes#140007 (1.37)",
    holds=since(V1_37),
    gate=MEMORY_QOS,
)

PODRESOURCES_TELL_POOLS_ONCE: Final = VersionRule(
    slug="podresources-tell-pools-once",
    text="In podresources, a container that shares CPUs or memory with others of its pod has none "
    "of its own: they are the pod's `cpu_ids` and `memory`; before, each of them has all of it.",
    source="kubernetes/kubernetes#138738 (1.37)",
    holds=since(V1_37),
)

CGROUP_V1_IS_REFUSED: Final = VersionRule(
    slug="cgroup-v1-is-refused",
    text="On a machine with cgroup v1 a kubelet does not start unless failCgroupV1 is false.",
    source="KEP-5573, kubernetes/kubernetes#134298 (1.35)",
    holds=since(KubeletVersion(35)),
)
"""Told, and asked by nobody: it is no matter of places."""

VERSION_RULES: Final = (
    DEVICE_HINTS_BY_DEVICES,
    MEMORY_RESERVATION_TIERS,
    MEMORY_THROTTLED_IF_ASKED,
    PODRESOURCES_TELL_POOLS_ONCE,
    CGROUP_V1_IS_REFUSED,
)
"""Every row, in the order of the documentation."""
