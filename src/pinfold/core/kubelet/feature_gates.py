"""The feature gates that bear on the resource managers, with their defaults by version.

Source: upstream ``pkg/features/kube_features.go`` of 1.34 to 1.36; 1.37 from the proposals
(KEP-5526, KEP-2570).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.policy_options import Maturity
from pinfold.core.kubelet.versions import (
    DEFAULT_VERSION,
    ByVersion,
    KubeletVersion,
)

ALL_ALPHA: Final = "AllAlpha"
ALL_BETA: Final = "AllBeta"
CUSTOM_CPU_CFS_QUOTA_PERIOD: Final = "CustomCPUCFSQuotaPeriod"
DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS: Final = "DisableCPUQuotaWithExclusiveCPUs"
MEMORY_QOS: Final = "MemoryQoS"
POD_LEVEL_RESOURCES: Final = "PodLevelResources"
POD_LEVEL_RESOURCE_MANAGERS: Final = "PodLevelResourceManagers"
RESIZE: Final = "InPlacePodVerticalScaling"
RESIZE_EXCLUSIVE_CPUS: Final = "InPlacePodVerticalScalingExclusiveCPUs"
RESIZE_EXCLUSIVE_MEMORY: Final = "InPlacePodVerticalScalingExclusiveMemory"


class FeatureGateError(ValueError):
    """A gate with which no kubelet would start; the message is the kubelet's."""


class GateSpec(Struct, frozen=True):
    """What a gate is in one version; a kubelet refuses to start with a locked one set otherwise."""

    maturity: Maturity
    default: bool
    locked: bool = False


class FeatureGate(Struct, frozen=True):
    """One row of the table; ``effect`` is what it does, None in ``specs`` is "there is none"."""

    name: str
    effect: str
    specs: ByVersion[GateSpec | None]

    def at(self, version: KubeletVersion) -> GateSpec | None:
        """What the gate is in this version; None: there is no such gate."""
        return self.specs.at(version)


_ALPHA: Final = GateSpec(Maturity.ALPHA, default=False)
_BETA: Final = GateSpec(Maturity.BETA, default=True)
_STABLE: Final = GateSpec(Maturity.STABLE, default=True)
_LOCKED: Final = GateSpec(Maturity.STABLE, default=True, locked=True)
_BETA_OFF: Final = GateSpec(Maturity.BETA, default=False)
_DEPRECATED_ON: Final = GateSpec(Maturity.DEPRECATED, default=True)
_DEPRECATED_OFF: Final = GateSpec(Maturity.DEPRECATED, default=False)


def _gate(name: str, effect: str, history: Mapping[int, GateSpec | None]) -> FeatureGate:
    """A row; ``history`` is what the gate is from a minor version on."""
    specs = tuple((KubeletVersion(minor), spec) for minor, spec in history.items())
    return FeatureGate(name, effect, ByVersion(specs))


FEATURE_GATES: Final = (
    _gate("CPUManagerPolicyOptions", "Allows options of the CPU manager.", {34: _LOCKED}),
    _gate(
        "CPUManagerPolicyAlphaOptions", "Allows the alpha options of the CPU manager.", {34: _ALPHA}
    ),
    _gate(
        "CPUManagerPolicyBetaOptions", "Allows the beta options of the CPU manager.", {34: _BETA}
    ),
    _gate(
        "TopologyManagerPolicyOptions",
        "Allows options of the topology manager.",
        {34: _STABLE, 36: _LOCKED},
    ),
    _gate(
        "TopologyManagerPolicyAlphaOptions",
        "Allows the alpha options of the topology manager.",
        {34: _ALPHA},
    ),
    _gate(
        "TopologyManagerPolicyBetaOptions",
        "Allows the beta options of the topology manager.",
        {34: _BETA},
    ),
    _gate("MemoryManager", "Allows the memory manager.", {34: _LOCKED, 36: None}),
    _gate(
        DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS,
        "Leaves containers with exclusive CPUs without a CPU quota.",
        {34: _BETA, 36: _DEPRECATED_ON},
    ),
    _gate(
        CUSTOM_CPU_CFS_QUOTA_PERIOD,
        "Allows another CFS period than 100 ms.",
        {34: _ALPHA, 36: _STABLE},
    ),
    _gate(MEMORY_QOS, "Protects and throttles memory on cgroup v2.", {34: _ALPHA, 37: _BETA}),
    _gate(POD_LEVEL_RESOURCES, "Lets a pod ask for resources as a whole.", {34: _BETA}),
    _gate(
        POD_LEVEL_RESOURCE_MANAGERS,
        "Gives such a pod CPUs and memory of its own, which its containers divide.",
        {34: None, 36: _ALPHA, 37: _BETA_OFF},  # kubernetes/kubernetes#141209
    ),
    _gate(RESIZE, "Lets the resources of a running pod change.", {34: _BETA, 35: _LOCKED}),
    _gate(
        RESIZE_EXCLUSIVE_CPUS,
        "Lets them change where containers have exclusive CPUs.",
        {34: _ALPHA},
    ),
    _gate(
        RESIZE_EXCLUSIVE_MEMORY,
        "Lets them change where the memory manager is static.",
        {34: _ALPHA},
    ),
    _gate(
        "InPlacePodVerticalScalingAllocatedStatus",
        "Tells in a pod's status what its containers were allocated.",
        {34: _DEPRECATED_OFF, 36: None},
    ),
    _gate(
        "InPlacePodVerticalScalingInitContainers",
        "Lets the resources of running init containers change.",
        {34: None, 36: _BETA},
    ),
    _gate(
        "InPlacePodLevelResourcesVerticalScaling",
        "Lets the resources of a running pod as a whole change.",
        {34: None, 35: _ALPHA, 36: _BETA},
    ),
    _gate(
        "DynamicResourceAllocation",
        "Gives devices by ResourceClaims.",
        {34: _STABLE, 35: _LOCKED},
    ),
    _gate(
        "DRAExtendedResource",
        "Gives devices of a DeviceClass for an extended resource.",
        {34: _ALPHA, 36: _BETA},
    ),
    _gate(
        "DRANodeAllocatableResources",
        "Counts CPUs and memory that are given by ResourceClaims.",
        {34: None, 36: _ALPHA},
    ),
    _gate(
        "KubeletPodResourcesGet", "Serves Get of the podresources API.", {34: _BETA, 36: _LOCKED}
    ),
    _gate(
        "KubeletPodResourcesDynamicResources",
        "Lists ResourceClaims in the podresources API.",
        {34: _BETA, 36: _LOCKED},
    ),
    _gate(
        "KubeletPodResourcesListUseActivePods",
        "Lists only pods that are active in the podresources API.",
        {34: _DEPRECATED_ON},
    ),
    _gate("KubeletPSI", "Tells how long containers waited.", {34: _BETA, 36: _LOCKED}),
    _gate("NodeDeclaredFeatures", "Tells what the node can do.", {34: None, 35: _ALPHA, 36: _BETA}),
    _gate("NodeSwap", "Lets pods use swap.", {34: _LOCKED}),
    _gate(
        "PodAndContainerStatsFromCRI",
        "Asks the runtime what containers use.",
        {34: _ALPHA},
    ),
    _gate(
        "ReduceDefaultCrashLoopBackOffDecay",
        "Starts containers that fail again sooner.",
        {34: _ALPHA},
    ),
    _gate(
        "ResourceHealthStatus",
        "Tells in a pod's status how its devices are.",
        {34: _ALPHA, 36: _BETA},
    ),
    _gate(
        "ResourceHealthStatusMessage",
        "Tells why a device is not healthy.",
        {34: None, 36: _BETA},
    ),
    _gate(
        "TopologyAwareHints",
        "Has services prefer endpoints nearby.",
        {34: _LOCKED, 36: None},
    ),
    _gate(
        "TopologyAwareWorkloadScheduling",
        "Has pods of a workload scheduled together.",
        {34: None, 36: _ALPHA},
    ),
    _gate(
        "WindowsCPUAndMemoryAffinity",
        "Lets the managers work on Windows.",
        {34: _ALPHA},
    ),
)
"""Other gates are accepted and have no effect on a placement."""

_BY_NAME: Final = {gate.name: gate for gate in FEATURE_GATES}


def gate_enabled(
    name: str, gates: Mapping[str, bool], version: KubeletVersion = DEFAULT_VERSION
) -> bool:
    """Whether a gate of the table is on: as set, else by ``AllAlpha``, ``AllBeta``, else default.

    A gate that a version does not have is off.

    Raises:
        KeyError: not in the table.
    """
    spec = _BY_NAME[name].at(version)
    if spec is None:
        return False
    if name in gates:
        return gates[name]
    group = {Maturity.ALPHA: ALL_ALPHA, Maturity.BETA: ALL_BETA}.get(spec.maturity, "")
    return gates.get(group, spec.default)


def has_gate(name: str, version: KubeletVersion = DEFAULT_VERSION) -> bool:
    """Whether a version has a gate of the table; raises KeyError: not in the table."""
    return _BY_NAME[name].at(version) is not None


def spell_out(
    gates: Mapping[str, bool], version: KubeletVersion = DEFAULT_VERSION
) -> Mapping[str, bool]:
    """The gates with what ``AllAlpha`` and ``AllBeta`` mean for those of the table."""
    if ALL_ALPHA not in gates and ALL_BETA not in gates:
        return gates
    known = [gate.name for gate in FEATURE_GATES if gate.at(version) is not None]
    return MappingProxyType(
        {**{name: gate_enabled(name, gates, version) for name in known}, **gates}
    )


def check_feature_gates(
    gates: Mapping[str, bool], version: KubeletVersion = DEFAULT_VERSION
) -> None:
    """Refuse a locked gate that is set against its lock, and one that is not (yet) or misspelt.

    Raises:
        FeatureGateError: naming the gate.
    """
    for name in gates:
        if name not in _BY_NAME and (meant := _misspelt(name, version)) is not None:
            raise FeatureGateError(f"unrecognized feature gate: {name}; did you mean {meant}?")
    for refusal in refused_gates(gates, version).values():
        raise FeatureGateError(refusal)


def refused_gates(gates: Mapping[str, bool], version: KubeletVersion) -> Mapping[str, str]:
    """The gates of the table with which no kubelet of this version starts, and its words."""
    refused = {}
    for name, on in gates.items():
        gate = _BY_NAME.get(name)
        if gate is None:
            continue
        spec = gate.at(version)
        if spec is None:
            refused[name] = f"unrecognized feature gate: {name}; kubelet {version} has no such gate"
        elif spec.locked and on is not spec.default:
            refused[name] = (
                f"cannot set feature gate {name} to {str(on).lower()}, "
                f"feature is locked to {str(spec.default).lower()}"
            )
    return refused


def _misspelt(name: str, version: KubeletVersion) -> str | None:
    """The gate that was surely meant: the same letters in another case, or with a few off."""
    import difflib  # noqa: PLC0415 - 1.0 ms: for gates that are not in the table only

    names = [gate.name for gate in FEATURE_GATES if gate.at(version) is not None]
    known = {gate.lower(): gate for gate in (*names, ALL_ALPHA, ALL_BETA)}
    if known.get(name.lower()) == name:
        return None
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.95)
    return known[near[0]] if near else None
