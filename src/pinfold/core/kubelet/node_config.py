"""What a node is configured to do: the parts of a KubeletConfiguration that decide placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.kubelet.eviction import DEFAULT_EVICTION_HARD
from pinfold.core.kubelet.feature_gates import gate_enabled
from pinfold.core.kubelet.own_policies import (
    DYNAMIC,
    OWN_POLICIES,
    DynamicOptions,
    OwnPolicies,
    ParkingOptions,
)
from pinfold.core.kubelet.versions import (
    DEFAULT_VERSION,
    KubeletVersion,
    NamedVersion,
    VersionSource,
)
from pinfold.core.pod.pod import NO_RESOURCES, Resources, check_resources
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.errors import is_number, wrong_type

NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})


STATIC: Final = "static"

_FIELDS: Final[tuple[tuple[tuple[str, ...], Callable[[object], bool], str], ...]] = (
    (
        (
            "cpu_manager_policy",
            "topology_manager_policy",
            "topology_manager_scope",
            "memory_manager_policy",
            "memory_reservation_policy",
        ),
        lambda value: isinstance(value, str),
        "a text, the kubelet's word",
    ),
    (
        (
            "cpu_manager_policy_options",
            "topology_manager_policy_options",
            "eviction_hard",
        ),
        lambda value: isinstance(value, Mapping),
        "a mapping, as in a KubeletConfiguration",
    ),
    (
        ("feature_gates",),
        lambda value: (
            isinstance(value, Mapping) and all(isinstance(one, bool) for one in value.values())
        ),
        "a mapping of names to true or false",
    ),
    (
        ("max_pods", "pods_per_core", "pod_pids_limit"),
        lambda value: is_number(value, whole=True),
        "a whole number",
    ),
    (
        ("cpu_manager_reconcile_period", "cpu_cfs_quota_period", "scale_down_grace_period"),
        is_number,
        "a number of seconds",
    ),
    (
        ("reserved_system_cpus",),
        lambda value: isinstance(value, CPUSet),
        "a CPUSet, such as CPUSet.parse('0-3')",
    ),
    (("cpu_cfs_quota",), lambda value: isinstance(value, bool), "True or False"),
    (
        ("reserved_memory",),
        lambda value: isinstance(value, tuple),
        "a tuple of mappings with numaNode and limits",
    ),
)
"""What a field has to be, for whoever makes one in Python; files are checked as they are read."""
_NOT_NEGATIVE: Final = (
    "cpu_manager_reconcile_period",
    "cpu_cfs_quota_period",
    "scale_down_grace_period",
    "max_pods",
    "pods_per_core",
)


class NodeConfig(Struct, frozen=True):
    """A kubelet's resource management settings, named as its configuration names them.

    ``reserved_memory`` is the list of ``{numaNode, limits}`` as read; durations are seconds;
    maps are as in the file, with the quantities parsed.  ``scale_down_grace_period`` is Pinfold's
    own: for how long an application is told before CPUs are taken from it, unless its pod says.

    Whether a kubelet would start with it is known once there is a machine: a
    :class:`~pinfold.planning.planner.Planner` says so.

    Raises:
        TypeError: a field of a wrong type, such as a text where a CPUSet is wanted.
        ValueError: a number that is negative.

    >>> NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0])).max_pods
    110
    """

    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: Mapping[str, str] = NO_OPTIONS
    cpu_manager_reconcile_period: float = 10.0
    reserved_system_cpus: CPUSet = CPUSet()
    kube_reserved: Resources = NO_RESOURCES
    system_reserved: Resources = NO_RESOURCES
    eviction_hard: Mapping[str, str] = DEFAULT_EVICTION_HARD
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: Mapping[str, str] = NO_OPTIONS
    memory_manager_policy: str = "None"
    memory_reservation_policy: str = "None"
    memory_throttling_factor: float | None = None
    reserved_memory: tuple[Mapping[str, Any], ...] = ()
    feature_gates: Mapping[str, bool] = NO_OPTIONS
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period: float = 0.1
    max_pods: int = 110
    pods_per_core: int = 0
    pod_pids_limit: int = -1
    scale_down_grace_period: float = 0.0
    runtime: str = "process"
    """What runs the containers: ``process``, ``cri`` or ``nri``; like the next four, one of the
    agent's settings, so that a plan can say what would be in force."""
    partition: str = "member"
    root_load_balance: bool = True
    owner_offline: str = "share"
    confine_system: bool = False
    reserved_cpus_add_up: bool = False
    """Whether the cpu of ``kube_reserved`` counts beside ``reserved_system_cpus``."""
    kubelet_version: KubeletVersion = DEFAULT_VERSION
    """Whose rules hold: those of the kubelet that is configured so."""
    kubelet_version_from: VersionSource = VersionSource.DEFAULT
    """Who said so."""
    kubelet_version_remark: str = ""
    """What is to be said of it; "" where these are the recorded answers of just this version."""
    own: OwnPolicies | None = None
    """None for a kubelet, and where the file has no section ``pinfold``."""

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError by the name of the first field that is no such thing."""
        for names, is_one, wanted in _FIELDS:
            for name in names:
                value = getattr(self, name)
                if not is_one(value):
                    raise wrong_type(name, wanted, value)
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must not be negative")
        for name in ("kube_reserved", "system_reserved"):
            check_resources(name, getattr(self, name))

    def of_version(self, named: NamedVersion, source: VersionSource) -> NodeConfig:
        """The same under the rules of a version that somebody named."""
        return replace(
            self,
            kubelet_version=named.version,
            kubelet_version_from=source,
            kubelet_version_remark=named.remark,
        )

    def gate(self, name: str) -> bool:
        """Whether a feature gate is on, in this version and as set; see :func:`.gate_enabled`."""
        return gate_enabled(name, self.feature_gates, self.kubelet_version)

    @property
    def version_is_explicit(self) -> bool:
        """Whether somebody asked for the answers of just this kubelet, and for nothing of ours."""
        return self.kubelet_version_from is VersionSource.FLAG

    @property
    def all_options(self) -> dict[str, str]:
        """The options of the CPU manager's policy, the kubelet's and Pinfold's own."""
        own = {} if self.own is None else self.own.options
        return {**self.cpu_manager_policy_options, **own}

    @property
    def dynamic(self) -> DynamicOptions | None:
        """What the policy ``dynamic`` may do by itself; None under another policy."""
        if self.own is None or self.cpu_manager_policy != DYNAMIC:
            return None
        return self.own.dynamic

    @property
    def load_driven(self) -> bool:
        """Whether containers may have their CPUs by load."""
        # A kubelet that runs the pods counts their CPUs itself.
        is_possible = self.dynamic is not None and self.runtime != "nri"
        return is_possible and self.own is not None and self.own.load_driven.use

    @property
    def parking(self) -> ParkingOptions | None:
        """When work is gathered on few sockets; None: never."""
        if self.own is None or self.dynamic is None or self.runtime == "nri":
            return None
        return self.own.parking if self.own.parking.use else None

    @property
    def not_with_runtime(self) -> Mapping[str, str]:
        """The groups in use with which an agent does not start, because of its runtime, and why."""
        own, found = self.own, {}
        if own is None or self.runtime == "process":
            return NO_OPTIONS
        for name, is_used in {
            "lending": own.lending.use,
            "suppression": own.suppression.use,
        }.items():
            if is_used:
                found[name] = (
                    "the runtime makes the containers' cgroups, and best-effort ones have to be in "
                    f"one with cpu.idle; set {name}.use: false, or runtime: process"
                )
        by_load = {"loadDriven": own.load_driven.use, "parking": own.parking.use}
        for name, is_used in by_load.items():
            if is_used and self.runtime == "nri":
                found[name] = (
                    "the runtime may write a cpuset late that it was told before, and the kubelet "
                    f"counts the CPUs of its pods itself; set {name}.use: false, or runtime: cri"
                )
        return found

    @property
    def idle_dynamic(self) -> tuple[str, ...]:
        """The groups with options of the policy ``dynamic`` under another one."""
        own = self.own
        if self.dynamic is not None or own is None:
            return ()
        groups = {"dynamic": own.dynamic != DynamicOptions(), "loadDriven": own.load_driven.use}
        groups["parking"] = own.parking.use
        return tuple(name for name, is_set in groups.items() if is_set)

    @property
    def gives_exclusive_cpus(self) -> bool:
        """Whether the CPU manager's policy is ``static``, or one that places as it does."""
        return self.cpu_manager_policy == STATIC or (
            self.own is not None and self.cpu_manager_policy in OWN_POLICIES
        )
