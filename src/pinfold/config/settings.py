"""The settings of a node, in one table: configuration field, kubelet flag, our flag, parser.

Names and defaults are the kubelet's (``kubelet.config.k8s.io/v1beta1``, 1.34 to 1.36).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.config.values import (
    SettingError,
    boolean,
    choice,
    count,
    cpus,
    duration,
    eviction_hard,
    feature_gates,
    flag_booleans,
    policy,
    process_ids,
    reserved,
    reserved_memory,
    texts,
    throttling_factor,
)
from pinfold.core.kubelet.feature_gates import (
    CUSTOM_CPU_CFS_QUOTA_PERIOD,
    MEMORY_QOS,
    FeatureGateError,
    check_feature_gates,
    refused_gates,
    spell_out,
)
from pinfold.core.kubelet.node_config import STATIC, NodeConfig
from pinfold.core.kubelet.own_policies import OWN_POLICIES
from pinfold.core.kubelet.version_rules import MEMORY_RESERVATION_TIERS, VersionRule
from pinfold.core.kubelet.versions import DEFAULT_VERSION, KubeletVersion, VersionSource
from pinfold.core.memory.protection import Reservation
from pinfold.core.topology_manager.policy import Policy, Scope

_DEFAULT_CFS_PERIOD: Final = NodeConfig().cpu_cfs_quota_period

__all__ = ["SETTINGS", "Setting", "SettingError", "check", "override"]


class Setting(Struct, frozen=True):
    """One row: ``field`` of a KubeletConfiguration, the kubelet's flag ("": none), and ours.

    ``parse`` takes the value as YAML or JSON has it and raises :class:`SettingError`.  ``pairs``
    marks a map that is written as ``key=value`` on a command line, ``merges`` one that adds to the
    file's instead of replacing it.  ``unset`` is the value that means "not set" in a file.
    """

    field: str
    attribute: str
    kubelet_flag: str
    parse: Callable[[Any], Any]
    help: str
    option: str | None = None
    metavar: str = "TEXT"
    pairs: bool = False
    merges: bool = False
    default: str = ""
    unset: str | float | None = None
    parse_own: Callable[[Any], Any] | None = None
    """How a file with a section ``pinfold`` is read, where that makes a difference."""
    else_field: str = ""
    """The field whose value it has where it is not set itself."""
    known_with: VersionRule | None = None
    """The rule that a kubelet goes by which knows the field; None: every one knows it."""

    def is_known(self, version: KubeletVersion) -> bool:
        """Whether a kubelet of this version has the field."""
        return self.known_with is None or self.known_with.at(version)

    def reader(self, *, own: bool) -> Callable[[Any], Any]:
        """What reads the value; ``own``: the file has a section ``pinfold``."""
        return self.parse_own if own and self.parse_own is not None else self.parse

    def is_unset(self, value: object) -> bool:
        """Whether a value of the file, as written or as read, stands for the default."""
        return type(value) is type(self.unset) and value == self.unset


SETTINGS: Final = (
    Setting(
        "cpuManagerPolicy",
        "cpu_manager_policy",
        "--cpu-manager-policy",
        policy("none", STATIC, own=OWN_POLICIES),
        "CPU manager policy: none or static; dynamic or configurable with a section pinfold.",
        option="--policy",
        metavar="NAME",
        unset="",
        default="none",
        parse_own=policy("none", STATIC, *OWN_POLICIES),
    ),
    Setting(
        "cpuManagerPolicyOptions",
        "cpu_manager_policy_options",
        "--cpu-manager-policy-options",
        texts,
        "An option of the static policy, such as full-pcpus-only=true.",
        option="--policy-option",
        metavar="K=V",
        pairs=True,
    ),
    Setting(
        "cpuManagerReconcilePeriod",
        "cpu_manager_reconcile_period",
        "--cpu-manager-reconcile-period",
        duration,
        "How often the CPU manager puts right what drifted; not set, as nodeStatusUpdateFrequency.",
        default="10s",
        unset=0.0,
        else_field="nodeStatusUpdateFrequency",
    ),
    Setting(
        "reservedSystemCPUs",
        "reserved_system_cpus",
        "--reserved-cpus",
        cpus,
        "CPUs that are never given exclusively, such as 0,32; outranks the cpu reservations.",
        option="--reserved-cpus",
        metavar="LIST",
    ),
    Setting(
        "kubeReserved",
        "kube_reserved",
        "--kube-reserved",
        reserved,
        "Reserved for Kubernetes, such as cpu=500m.",
        option="--kube-reserved",
        metavar="K=V",
        pairs=True,
    ),
    Setting(
        "systemReserved",
        "system_reserved",
        "--system-reserved",
        reserved,
        "Reserved for the system, such as cpu=500m.",
        option="--system-reserved",
        metavar="K=V",
        pairs=True,
    ),
    Setting(
        "evictionHard",
        "eviction_hard",
        "--eviction-hard",
        eviction_hard,
        "Hard eviction thresholds; memory.available and nodefs.available reduce allocatable.",
        default="memory.available=100Mi, nodefs.available=10%",
    ),
    Setting(
        "topologyManagerPolicy",
        "topology_manager_policy",
        "--topology-manager-policy",
        choice(
            "topologyManagerPolicy",
            "--topology-manager-policy",
            tuple(one.value for one in Policy),
            '["none" "best-effort" "restricted" "single-numa-node"]',
        ),
        "Topology manager policy: none, best-effort, restricted or single-numa-node.",
        option="--topology-manager-policy",
        metavar="NAME",
        unset="",
        default="none",
    ),
    Setting(
        "topologyManagerScope",
        "topology_manager_scope",
        "--topology-manager-scope",
        choice(
            "topologyManagerScope",
            "--topology-manager-scope",
            tuple(one.value for one in Scope),
            '"container", or "pod"',
        ),
        "What is aligned: container or pod.",
        option="--topology-manager-scope",
        metavar="NAME",
        unset="",
        default="container",
    ),
    Setting(
        "topologyManagerPolicyOptions",
        "topology_manager_policy_options",
        "--topology-manager-policy-options",
        texts,
        "An option of the topology manager, such as prefer-closest-numa-nodes=true.",
        option="--topology-manager-policy-option",
        metavar="K=V",
        pairs=True,
    ),
    Setting(
        "memoryManagerPolicy",
        "memory_manager_policy",
        "--memory-manager-policy",
        policy("None", "Static"),
        "Memory manager policy: None or Static.",
        unset="",
        default="None",
    ),
    Setting(
        "reservedMemory",
        "reserved_memory",
        "--reserved-memory",
        reserved_memory,
        "Memory and huge pages kept from pods on each NUMA node, for memory manager policy Static.",
    ),
    Setting(
        "memoryReservationPolicy",
        "memory_reservation_policy",
        "",
        choice(
            "memoryReservationPolicy",
            "no flag",
            tuple(one.value for one in Reservation if one is not Reservation.UNTIERED),
            '["None" "TieredReservation"]',
        ),
        "What memory requests protect with the gate MemoryQoS (from 1.36): nothing, or "
        "memory.min of Guaranteed and memory.low of Burstable pods.",
        unset="",
        default="None",
        known_with=MEMORY_RESERVATION_TIERS,
    ),
    Setting(
        "memoryThrottlingFactor",
        "memory_throttling_factor",
        "",
        throttling_factor,
        "How far from its request to its limit a container goes before memory.high slows it "
        "down, with the gate MemoryQoS; above 0, at most 1. From 1.37 on it has no default: nobody "
        "is slowed down.",
        default="0.9",
    ),
    Setting(
        "featureGates",
        "feature_gates",
        "--feature-gates",
        feature_gates,
        "A feature gate, such as CPUManagerPolicyAlphaOptions=true.",
        option="--feature-gate",
        metavar="K=BOOL",
        pairs=True,
        merges=True,
    ),
    Setting(
        "cpuCFSQuota",
        "cpu_cfs_quota",
        "--cpu-cfs-quota",
        boolean,
        "Whether CPU limits are enforced by quota.",
        default="true",
    ),
    Setting(
        "cpuCFSQuotaPeriod",
        "cpu_cfs_quota_period",
        "--cpu-cfs-quota-period",
        duration,
        "The quota's period.",
        default="100ms",
        unset=0.0,
    ),
    Setting(
        "maxPods",
        "max_pods",
        "--max-pods",
        count,
        "Pods on the node.",
        unset=0,
        default="110",
    ),
    Setting(
        "podsPerCore", "pods_per_core", "--pods-per-core", count, "Pods per CPU, or 0.", default="0"
    ),
    Setting(
        "podPidsLimit",
        "pod_pids_limit",
        "--pod-max-pids",
        process_ids,
        "Processes and threads of a pod; -1 or 0: no limit.",
        default="-1",
    ),
)
"""Every setting that is read, in the order of the reference."""


def override(config: NodeConfig, flags: Mapping[str, str | tuple[str, ...] | None]) -> NodeConfig:
    """Apply flags of the command line (by attribute; None and empty are "not given").

    Maps given as ``key=value`` replace the configuration's map as a whole, as the kubelet's do;
    feature gates add to it.

    Raises:
        SettingError: a value that cannot be; the message names the flag.
    """
    changes: dict[str, Any] = {}
    for setting in SETTINGS:
        given = flags.get(setting.attribute)
        if setting.option is None or not given:
            continue
        parse = setting.reader(own=config.own is not None)
        try:
            if setting.merges:
                parsed = parse(flag_booleans(_pairs(given)))
            else:
                parsed = parse(_pairs(given) if setting.pairs else given)
        except SettingError as error:
            raise SettingError(f"{setting.option}: {error}") from None
        if setting.merges:
            parsed = {**getattr(config, setting.attribute), **parsed}
        changes[setting.attribute] = parsed
    return check(replace(config, **changes)) if changes else config


def flag_gates(flags: Mapping[str, str | tuple[str, ...] | None]) -> Mapping[str, bool]:
    """The feature gates among flags of the command line.

    Raises:
        SettingError: a value that cannot be.
    """
    given = flags.get("feature_gates")
    return flag_booleans(_pairs(given)) if given else {}


def _why_this_version(config: NodeConfig) -> str:
    """Where a version comes from that nobody here has written, and what mends its refusal."""
    if config.kubelet_version_from is not VersionSource.RECORD:
        return ""
    meant = "a section pinfold with kubeletVersion names another"
    if not refused_gates(config.feature_gates, DEFAULT_VERSION):
        meant = (
            f'kubeletVersion: "{DEFAULT_VERSION}" in the section pinfold decides as one that has'
        )
    return f" (the agent's record was begun as {config.kubelet_version}; {meant})"


def check(config: NodeConfig) -> NodeConfig:
    """Check what takes more than one field to tell, and spell the feature gates out.

    Raises:
        SettingError: what a kubelet would refuse.
    """
    version = config.kubelet_version
    try:
        check_feature_gates(config.feature_gates, version)
    except FeatureGateError as error:
        raise SettingError(f"featureGates: {error}{_why_this_version(config)}") from None
    gates = spell_out(config.feature_gates, version)
    period = config.cpu_cfs_quota_period
    if config.gate(CUSTOM_CPU_CFS_QUOTA_PERIOD):
        if not 0.001 <= period <= 1:
            raise SettingError(
                f"invalid configuration: cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period:g}s "
                "must be between 1ms and 1sec, inclusive"
            )
    elif period != _DEFAULT_CFS_PERIOD:
        raise SettingError(
            f"invalid configuration: cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period:g}s "
            f"requires feature gate {CUSTOM_CPU_CFS_QUOTA_PERIOD}"
        )
    reservation = config.memory_reservation_policy
    tiers = MEMORY_RESERVATION_TIERS.at(version)
    if tiers and reservation != Reservation.NONE.value and not config.gate(MEMORY_QOS):
        raise SettingError(
            f"invalid configuration: memoryReservationPolicy {reservation} "
            f"requires feature gate {MEMORY_QOS}"
        )
    return replace(config, feature_gates=gates)


def _pairs(given: str | tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in ",".join((given,) if isinstance(given, str) else given).split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key:
            raise SettingError(f"{item!r} is no KEY=VALUE")
        if key in pairs:
            raise SettingError(f"{key} is given twice")
        pairs[key] = value
    return pairs
