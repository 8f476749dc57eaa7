"""The feature gates that bear on the resource managers, with their defaults in kubelet 1.34."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.policy_options import Maturity

ALL_ALPHA: Final = "AllAlpha"
ALL_BETA: Final = "AllBeta"
CUSTOM_CPU_CFS_QUOTA_PERIOD: Final = "CustomCPUCFSQuotaPeriod"
MEMORY_QOS: Final = "MemoryQoS"


class FeatureGateError(ValueError):
    """A gate with which no kubelet would start; the message is the kubelet's."""


class FeatureGate(Struct, frozen=True):
    """One row of the table; ``effect`` is what it does to a placement or to cgroups.

    Stable gates are locked: a kubelet refuses to start where they are set to anything but their
    default.
    """

    name: str
    default: bool
    maturity: Maturity
    effect: str


def _alpha(name: str, effect: str) -> FeatureGate:
    return FeatureGate(name, default=False, maturity=Maturity.ALPHA, effect=effect)


def _beta(name: str, effect: str) -> FeatureGate:
    return FeatureGate(name, default=True, maturity=Maturity.BETA, effect=effect)


def _stable(name: str, effect: str) -> FeatureGate:
    return FeatureGate(name, default=True, maturity=Maturity.STABLE, effect=effect)


FEATURE_GATES: Final = (
    _stable("CPUManagerPolicyOptions", "Allows options of the CPU manager."),
    _alpha("CPUManagerPolicyAlphaOptions", "Allows the alpha options of the CPU manager."),
    _beta("CPUManagerPolicyBetaOptions", "Allows the beta options of the CPU manager."),
    _stable("TopologyManagerPolicyOptions", "Allows options of the topology manager."),
    _alpha(
        "TopologyManagerPolicyAlphaOptions", "Allows the alpha options of the topology manager."
    ),
    _beta("TopologyManagerPolicyBetaOptions", "Allows the beta options of the topology manager."),
    _stable("MemoryManager", "Allows the memory manager."),
    _beta(
        "DisableCPUQuotaWithExclusiveCPUs",
        "Leaves containers with exclusive CPUs without a CPU quota.",
    ),
    _alpha(CUSTOM_CPU_CFS_QUOTA_PERIOD, "Allows another CFS period than 100 ms."),
    _alpha(MEMORY_QOS, "Protects and throttles memory on cgroup v2."),
    _beta("PodLevelResources", "Lets a pod ask for resources as a whole."),
    _beta("InPlacePodVerticalScaling", "Lets the resources of a running pod change."),
    _alpha(
        "InPlacePodVerticalScalingExclusiveCPUs",
        "Lets them change where containers have exclusive CPUs.",
    ),
    _alpha(
        "InPlacePodVerticalScalingExclusiveMemory",
        "Lets them change where the memory manager is static.",
    ),
)
"""Other gates are accepted and have no effect on a placement."""

_BY_NAME: Final = {gate.name: gate for gate in FEATURE_GATES}


def gate_enabled(name: str, gates: Mapping[str, bool]) -> bool:
    """Whether a gate of the table is on: as set, else by ``AllAlpha``, ``AllBeta``, else default.

    Raises:
        KeyError: not in the table.
    """
    gate = _BY_NAME[name]
    if name in gates:
        return gates[name]
    group = {Maturity.ALPHA: ALL_ALPHA, Maturity.BETA: ALL_BETA}.get(gate.maturity, "")
    return gates.get(group, gate.default)


def spell_out(gates: Mapping[str, bool]) -> Mapping[str, bool]:
    """The gates with what ``AllAlpha`` and ``AllBeta`` mean for those of the table."""
    if ALL_ALPHA not in gates and ALL_BETA not in gates:
        return gates
    return MappingProxyType({**{name: gate_enabled(name, gates) for name in _BY_NAME}, **gates})


def check_feature_gates(gates: Mapping[str, bool]) -> None:
    """Refuse a locked gate that is set against its lock, and a misspelling of a known one.

    Raises:
        FeatureGateError: naming the gate.
    """
    for name, on in gates.items():
        gate = _BY_NAME.get(name)
        if gate is None:
            meant = _misspelt(name)
            if meant is not None:
                raise FeatureGateError(f"unrecognized feature gate: {name}; did you mean {meant}?")
        elif gate.maturity is Maturity.STABLE and on is not gate.default:
            raise FeatureGateError(
                f"cannot set feature gate {name} to {str(on).lower()}, "
                f"feature is locked to {str(gate.default).lower()}"
            )


def _misspelt(name: str) -> str | None:
    """The gate that was surely meant: the same letters in another case, or with a few off."""
    import difflib  # noqa: PLC0415 - 1.0 ms: for gates that are not in the table only

    known = {gate.lower(): gate for gate in (*_BY_NAME, ALL_ALPHA, ALL_BETA)}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.95)
    return known[near[0]] if near else None
