"""The settings of a node, in one table: configuration field, kubelet flag, our flag, parser.

Names and defaults are the kubelet's (``kubelet.config.k8s.io/v1beta1``, 1.34).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from pinfold.core.cpuset import CPUSet, CPUSetError
from pinfold.core.node_config import NodeConfig
from pinfold.core.quantity import Quantity, QuantityError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", re.ASCII)
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
RESERVABLE: Final = ("cpu", "memory", "ephemeral-storage", "pid")


class SettingError(ValueError):
    """A value that a setting cannot have; the message says why, the caller says where."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: ``field`` of a KubeletConfiguration, the kubelet's flag, and the same on ours.

    ``parse`` takes the value as YAML or JSON has it and raises :class:`SettingError`.  ``pairs``
    marks a map that is written as ``key=value`` on a command line.
    """

    field: str
    attribute: str
    kubelet_flag: str
    parse: Callable[[Any], Any]
    help: str
    option: str | None = None
    metavar: str = "TEXT"
    pairs: bool = False
    default: str = ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise SettingError(f"must be a string, not {value!r}")
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise SettingError(f"must be true or false, not {value!r}")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SettingError(f"must be a whole number and not negative, not {value!r}")
    return value


def parse_duration(value: object) -> float:
    """Read a Go duration such as ``10s`` or ``1m30s`` into seconds.

    Raises:
        SettingError: anything else.
    """
    text = _text(value)
    parts = _DURATION.findall(text)
    if text == "0":
        return 0.0
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise SettingError(f"must be a duration such as 10s or 1m30s, not {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _cpus(value: object) -> CPUSet:
    try:
        return CPUSet.parse(_text(value))
    except CPUSetError as error:
        raise SettingError(f"unable to parse reservedSystemCPUs: {error}") from None


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingError(f"must be a mapping, not {value!r}")
    return value


def _reserved(value: object) -> Mapping[str, Quantity]:
    reserved: dict[str, Quantity] = {}
    for name, amount in _mapping(value).items():
        if name not in RESERVABLE and not str(name).startswith("hugepages-"):
            raise SettingError(
                f'cannot reserve "{name}" resource; it is one of {", ".join(RESERVABLE)}'
            )
        try:
            quantity = Quantity.parse(str(amount).strip())
        except QuantityError as error:
            raise SettingError(
                f"failed to parse quantity {str(amount)!r} for {name}: {error}"
            ) from None
        if quantity.sign < 0:
            raise SettingError(f'resource quantity for "{name}" cannot be negative: {amount}')
        reserved[str(name)] = quantity
    return MappingProxyType(reserved)


def _texts(value: object) -> Mapping[str, str]:
    for name, text in _mapping(value).items():
        if not isinstance(text, str):
            raise SettingError(f"{name}: must be a string (quote it), not {text!r}")
    return MappingProxyType(dict(_mapping(value)))


def _gates(value: object) -> Mapping[str, bool]:
    gates: dict[str, bool] = {}
    for name, on in _mapping(value).items():
        if isinstance(on, str) and on.lower() in ("true", "false"):
            gates[str(name)] = on.lower() == "true"
        elif isinstance(on, bool):
            gates[str(name)] = on
        else:
            raise SettingError(f"{name}: must be true or false, not {on!r}")
    return MappingProxyType(gates)


def _reserved_memory(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise SettingError("must be a list of {numaNode, limits}")
    return tuple(value)


SETTINGS: Final = (
    Setting(
        "cpuManagerPolicy",
        "cpu_manager_policy",
        "--cpu-manager-policy",
        _text,
        "CPU manager policy: none or static.",
        option="--policy",
        metavar="NAME",
        default="none",
    ),
    Setting(
        "cpuManagerPolicyOptions",
        "cpu_manager_policy_options",
        "--cpu-manager-policy-options",
        _texts,
        "An option of the static policy, such as full-pcpus-only=true.",
        option="--policy-option",
        metavar="K=V",
        pairs=True,
    ),
    Setting(
        "cpuManagerReconcilePeriod",
        "cpu_manager_reconcile_period",
        "--cpu-manager-reconcile-period",
        parse_duration,
        "How often the CPU manager puts right what drifted.",
        default="10s",
    ),
    Setting(
        "reservedSystemCPUs",
        "reserved_system_cpus",
        "--reserved-cpus",
        _cpus,
        "CPUs that are never given exclusively, such as 0,32; outranks the cpu reservations.",
        option="--reserved-cpus",
        metavar="LIST",
    ),
    Setting(
        "kubeReserved",
        "kube_reserved",
        "--kube-reserved",
        _reserved,
        "Reserved for Kubernetes, such as cpu=500m.",
        option="--kube-reserved",
        metavar="K=V",
        pairs=True,
    ),
    Setting(
        "systemReserved",
        "system_reserved",
        "--system-reserved",
        _reserved,
        "Reserved for the system, such as cpu=500m.",
        option="--system-reserved",
        metavar="K=V",
        pairs=True,
    ),
    Setting(
        "evictionHard",
        "eviction_hard",
        "--eviction-hard",
        _texts,
        "Hard eviction thresholds; memory.available reduces allocatable.",
        default="memory.available=100Mi",
    ),
    Setting(
        "topologyManagerPolicy",
        "topology_manager_policy",
        "--topology-manager-policy",
        _text,
        "Topology manager policy: none, best-effort, restricted or single-numa-node.",
        option="--topology-manager-policy",
        metavar="NAME",
        default="none",
    ),
    Setting(
        "topologyManagerScope",
        "topology_manager_scope",
        "--topology-manager-scope",
        _text,
        "What is aligned: container or pod.",
        option="--topology-manager-scope",
        metavar="NAME",
        default="container",
    ),
    Setting(
        "topologyManagerPolicyOptions",
        "topology_manager_policy_options",
        "--topology-manager-policy-options",
        _texts,
        "An option of the topology manager, such as prefer-closest-numa-nodes=true.",
        option="--topology-manager-policy-option",
        metavar="K=V",
        pairs=True,
    ),
    Setting(
        "memoryManagerPolicy",
        "memory_manager_policy",
        "--memory-manager-policy",
        _text,
        "Memory manager policy: None or Static (read, not planned yet).",
        default="None",
    ),
    Setting(
        "reservedMemory",
        "reserved_memory",
        "--reserved-memory",
        _reserved_memory,
        "Memory reserved on each NUMA node (read, not planned yet).",
    ),
    Setting(
        "featureGates",
        "feature_gates",
        "--feature-gates",
        _gates,
        "A feature gate, such as CPUManagerPolicyAlphaOptions=true.",
        option="--feature-gate",
        metavar="K=BOOL",
        pairs=True,
    ),
    Setting(
        "cpuCFSQuota",
        "cpu_cfs_quota",
        "--cpu-cfs-quota",
        _boolean,
        "Whether CPU limits are enforced by quota.",
        default="true",
    ),
    Setting(
        "cpuCFSQuotaPeriod",
        "cpu_cfs_quota_period",
        "--cpu-cfs-quota-period",
        parse_duration,
        "The quota's period.",
        default="100ms",
    ),
    Setting("maxPods", "max_pods", "--max-pods", _count, "Pods on the node.", default="110"),
    Setting(
        "podsPerCore",
        "pods_per_core",
        "--pods-per-core",
        _count,
        "Pods for each CPU; 0 is no limit.",
        default="0",
    ),
)
"""Every setting that is read, in the order of the reference."""


def override(config: NodeConfig, flags: Mapping[str, str | tuple[str, ...] | None]) -> NodeConfig:
    """Apply flags of the command line (by attribute; None and empty are "not given").

    Maps given as ``key=value`` replace the configuration's map as a whole, as the kubelet's do.

    Raises:
        SettingError: a value that cannot be; the message names the flag.
    """
    changes: dict[str, Any] = {}
    for setting in SETTINGS:
        given = flags.get(setting.attribute)
        if setting.option is None or not given:
            continue
        try:
            value = _pairs(given) if setting.pairs and isinstance(given, tuple) else given
            changes[setting.attribute] = setting.parse(value)
        except SettingError as error:
            raise SettingError(f"{setting.option}: {error}") from None
    return replace(config, **changes) if changes else config


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        for item in text.split(","):
            key, equals, value = item.partition("=")
            if not equals or not key:
                raise SettingError(f"{item!r} is no KEY=VALUE")
            if key in pairs:
                raise SettingError(f"{key} is given twice")
            pairs[key] = value
    return pairs
