"""The section ``pinfold`` of a KubeletConfiguration: the agent's own settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, field

from pinfold.config.values import AGENT_SECTION, ConfigError, nearest
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.pod.api import as_yaml

DEFAULT_STATE_DIR: Final = "/var/lib/pinfold"
DEFAULT_SOCKET: Final = "/run/pinfold/pinfold.sock"

# What a pattern allows, as a person may write it, is its description: "must be ...".
_AbsolutePath = Annotated[
    str, Meta(pattern="^/", description="an absolute path, such as /var/lib/pinfold")
]
_Endpoint = Annotated[
    str,
    Meta(pattern="^(unix://)?/", description="a socket, such as /run/containerd/containerd.sock"),
]
_TwoDigits = Annotated[
    str, Meta(pattern="^[0-9]{2}$", description='two digits in quotes, such as "90"')
]
_PathOrEmpty = Annotated[
    str, Meta(pattern="^(/.*)?$", description='an absolute path, or "" for none')
]
_PathOrNone = _PathOrEmpty | None
_KubeletVersion = Annotated[
    str,
    Meta(
        pattern=r"^v?1\.[0-9]{1,4}(\.[0-9]{1,4})?([-+][0-9A-Za-z.+_-]{0,200})?$",
        description='the version of a kubelet in quotes, such as "1.36"',
    ),
]
_NodeName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
        description="the name of a node, such as node-1",
    ),
]
_TaintKey = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?$",
        description="the key of a taint, such as example.com/starting",
    ),
]
_FolderName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="the name of a folder, such as pinfold",
    ),
]
_Period = Annotated[
    str,
    Meta(
        pattern="^(0s|[1-9][0-9]{2}ms|[1-9][0-9]?s)$",
        description="0s for never, or 100ms to 99s, such as 1s",
    ),
]
_GracePeriod = Annotated[str, Meta(pattern="^([0-9]|10)s$", description="0s to 10s, such as 2s")]


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Some settings that belong together; in the file they are not grouped."""


class RecordSettings(_Group, frozen=True, kw_only=True):
    """What is written down, and for how long."""

    state_dir: _AbsolutePath = DEFAULT_STATE_DIR
    """Where the record, the mirrored ``cpu_manager_state`` and the containers' folders are; must
    outlive a reboot."""
    on_mismatch: Literal["refuse", "repair"] = "refuse"
    """What to do when the record does not fit machine or configuration."""
    history_limit: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    """How many entries of the history are kept."""
    max_pods_remembered: Annotated[int, Meta(ge=0, le=100_000)] = 500
    """How many ended pods are kept."""


class ApiSettings(_Group, frozen=True, kw_only=True):
    """Where others ask the agent."""

    socket: _AbsolutePath = DEFAULT_SOCKET
    """The local API."""
    pod_resources_socket: _PathOrNone = None
    """podresources for node agents; None: ``pod-resources/pinfold.sock`` in the state directory
    with ``cri`` and ``nri``, nowhere with ``process``; "": nowhere."""
    pod_resources_group: str | None = None
    """A group whose members may connect to it, too."""


class RuntimeSettings(_Group, frozen=True, kw_only=True):
    """What runs the containers."""

    runtime: Literal["process", "cri", "nri"] = "process"
    """``process``, the agent itself, as plain processes; ``cri``, a container runtime that it
    tells to; ``nri``, a container runtime for a kubelet, which the agent is asked by."""
    runtime_endpoint: _Endpoint | None = None
    """The CRI socket; None: found as crictl finds it with ``cri``, not used with ``nri``."""


class CgroupSettings(_Group, frozen=True, kw_only=True):
    """The cgroups of the containers, and of everybody else."""

    cgroup_parent: _AbsolutePath | None = None
    """The cgroup below which the agent's own tree is made; None: found."""
    cgroup_name: _FolderName = "pinfold"
    """The name of that tree."""
    partition: Literal["member", "root", "isolated"] = "member"
    """The cpuset partition that exclusive sets should be (cgroup v2); ``isolated`` for those
    that have opted in (annotation ``load-balance``)."""
    root_load_balance: bool = True
    """Whether the root cpuset of cgroup v1 keeps its flag ``sched_load_balance``; without it
    ``partition`` means there what it means on cgroup v2, for the whole machine."""
    sched_relax_domain_level: Annotated[int, Meta(ge=-1, le=5)] = -1
    """How far the kernel looks for an idle CPU on a wake-up in the domains of ``partition: root``
    on cgroup v1; -1: its default."""
    owner_offline: Literal["share", "freeze"] = "share"
    """What becomes of a container all of whose own CPUs go offline: it runs in the shared pool, or
    is frozen, until one of them is back."""
    confine_system: bool = False
    """Keep system services (systemd's slices) on the reserved CPUs."""


class MoveSettings(_Group, frozen=True, kw_only=True):
    """How containers get other CPUs while they run."""

    scale_down_grace_period: _GracePeriod = "0s"
    """How long a container is told before CPUs are taken from it, where its pod does not say."""

    assignment_folders: bool = True
    """Whether a container with exclusive CPUs is told them in a folder, ``/run/pinfold`` in a
    container of a runtime."""

    @property
    def grace_seconds(self) -> float:
        """The grace period in seconds."""
        return float(self.scale_down_grace_period.removesuffix("s"))


class ObservationSettings(_Group, frozen=True, kw_only=True):
    """Whether it is watched what containers and CPUs do."""

    observation_period: _Period = "0s"
    """How often it is read what containers use and wait for and how idle each CPU is, for
    ``status``, the API and the metrics: from 100ms to 99s; 0s: never."""

    @property
    def period_seconds(self) -> float:
        """The period in seconds; 0: nothing is read."""
        if self.observation_period.endswith("ms"):
            return float(self.observation_period.removesuffix("ms")) / 1000
        return float(self.observation_period.removesuffix("s"))


class PrioritySettings(_Group, frozen=True, kw_only=True):
    """How much the agent counts itself."""

    agent_nice: Annotated[int, Meta(ge=-20, le=19)] = -10
    """The nice value that the agent and its guardian have at most, where lending or suppression is
    in force; 19 leaves them alone.  Containers have 0 all the same."""


class RulesSettings(_Group, frozen=True, kw_only=True):
    """Whose decisions are made."""

    kubelet_version: _KubeletVersion | None = None
    """The kubelet as which is decided; None: the one that is there with ``nri``, where the API
    server tells its version; else the one with which the record was begun, which is the newest
    recorded one at the agent's first start."""
    reserved_cpus_add_up: bool = field(default=False, name="reservedCPUsAddUp")
    """Whether the cpu of ``kubeReserved`` is withheld from pods beside ``reservedSystemCPUs``,
    which outranks it otherwise, as with a kubelet."""


class KubeletSettings(_Group, frozen=True, kw_only=True):
    """The node of a kubelet, with ``nri``."""

    nri_socket: _AbsolutePath = "/var/run/nri/nri.sock"
    """Where the runtime takes plugins."""
    nri_plugin_index: _TwoDigits = "90"
    """Two digits; of several plugins the lowest is asked first."""
    kubelet_state_file: _PathOrEmpty = "/var/lib/kubelet/cpu_manager_state"
    """The kubelet's ``cpu_manager_state``: where it says that the kubelet pins containers, the
    agent does not; "": not looked at."""
    kubelet_pod_resources: _PathOrEmpty = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """The kubelet's podresources socket: asked where the devices of a pod are; "": not asked."""


class ClusterSettings(_Group, frozen=True, kw_only=True):
    """The API server, and what it is told; without ``nri`` of compute resources only."""

    kubeconfig: _PathOrNone = None
    """How it is reached; None: by the service account, in a pod that has one; "": not at all."""
    node_name: _NodeName | None = None
    """The node's name in the cluster; None: ``NODE_NAME`` in the environment, else the host's
    name."""
    node_labels: bool = False
    """Whether the Node object gets labels."""
    node_resource_topology: bool = False
    """Whether a NodeResourceTopology is kept."""
    compute_resources: bool = False
    """Whether the node's devices, CPUs, memory and huge pages are published as
    ComputeResources."""
    publish_node: bool = False
    """Whether the machine, the configuration and who has which CPUs are published in a ConfigMap of
    the namespace ``pinfold-nodes``, for ``pinfold plan --node NAME``."""
    start_up_taint: _TaintKey | None = None
    """The key of a taint with which the kubelet registers its node, removed when containers are
    placed; None: no taint is looked for."""


class DeviceSettings(_Group, frozen=True, kw_only=True):
    """Device plugins, not with ``nri``."""

    device_plugin_dir: _PathOrNone = None
    """The folder in which they register (``kubelet.sock``); None:
    ``/var/lib/kubelet/device-plugins`` if it is there; "": nowhere."""
    plugin_registry_dir: _AbsolutePath | None = None
    """The folder in which plugins are found by their sockets; None: nowhere."""
    resource_classes: _AbsolutePath | None = None
    """A file of ResourceClass and ComputeResource objects; None: no class is known.  With ``nri``
    only what it says of devices is used, for ``compute_resources``."""


class AgentSection(msgspec.Struct, frozen=True, kw_only=True):
    """The section ``pinfold`` of the file, by what the settings are about."""

    record: RecordSettings = RecordSettings()
    api: ApiSettings = ApiSettings()
    containers: RuntimeSettings = RuntimeSettings()
    cgroups: CgroupSettings = CgroupSettings()
    moves: MoveSettings = MoveSettings()
    observation: ObservationSettings = ObservationSettings()
    priority: PrioritySettings = PrioritySettings()
    rules: RulesSettings = RulesSettings()
    kubelet: KubeletSettings = KubeletSettings()
    cluster: ClusterSettings = ClusterSettings()
    devices: DeviceSettings = DeviceSettings()
    policies: OwnPolicies = OwnPolicies()


_GROUPS: Final = {
    name: group.name
    for group in msgspec.structs.fields(AgentSection)
    for name in type(group.default).__struct_encode_fields__
}
"""The names of all settings in a file, each with its group."""

_SETTINGS: Final[Mapping[str, Any]] = {
    field.encode_name: field.type
    for group in msgspec.structs.fields(AgentSection)
    for field in msgspec.structs.fields(group.type)
}
"""The same with their types."""


def setting_names() -> tuple[str, ...]:
    """The names of all settings, as they are in a file."""
    return tuple(_SETTINGS)


def agent_section(path: str, value: object) -> AgentSection:
    """The section as a file has it, all settings side by side; None: there is none.

    ``path`` is whose it is, for what is said of an error.

    Raises:
        ConfigError: an unknown field, or a value that a field cannot have.
    """
    groups: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS.values()}
    try:
        for name, setting in msgspec.convert(
            {} if value is None else value, dict[str, Any]
        ).items():
            groups[_GROUPS[name]][name] = setting
        return msgspec.convert(groups, AgentSection)
    except KeyError as unknown:
        name = str(unknown.args[0])
        near = nearest(name, _SETTINGS)
        meant = f"did you mean {near}?" if near else _listed(_SETTINGS)
        problem = f"Object contains unknown field `{name}` ({meant})"
    except msgspec.ValidationError as error:
        # The file has no groups.
        problem = _problem(re.sub(r"`\$\.[a-z]+\.", "`$.", str(error)), value)
    raise ConfigError(f"{AGENT_SECTION}: {problem}", path)


def _problem(problem: str, value: Any) -> str:  # noqa: ANN401 - as it is in the file
    """What is wrong in a section, and what may stand there."""
    found = re.search(r"`\$\.([0-9A-Za-z.\[\]]+)`$", problem)
    place = found[1] if found else ""
    kind: Any = None
    allowed = _SETTINGS
    for step in filter(None, place.replace("[...]", "[]").split(".")):
        name = step.removesuffix("[]")
        kind, value = allowed[name], value[name]
        if name != step:
            kind = get_args(kind)[1]
            key, value = _wrong_one(kind, value)
            place, problem = (text.replace("[...]", f".{key}", 1) for text in (place, problem))
        if _is_group(kind):
            allowed = _fields(kind)
    if kind is None or _is_group(kind):
        return f"{problem} ({_listed(allowed)})"
    if "`key` in" in problem:
        return f"{place}: each key must be {_allowed(get_args(kind)[0])}"
    return f"{place}: must be {_allowed(kind)}, not {as_yaml(value)}"[:300]


def _wrong_one(kind: Any, values: Mapping[str, Any]) -> tuple[str, Any]:  # noqa: ANN401 - a type
    """The first of several things by name that is not of this kind."""
    for key, value in values.items():
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            return key, value
    raise ValueError(f"none of {list(values)} is wrong")


def _allowed(kind: Any) -> str:  # noqa: ANN401 - a type, as an annotation has it
    """What a setting may be, in words."""
    args = get_args(kind)
    if get_origin(kind) is Literal:
        return f"{', '.join(args[:-1])} or {args[-1]}"
    if get_origin(kind) is dict:
        return "a table by name"
    if type(None) in args:
        return _allowed(args[0])
    if args:
        meta = args[1]
        return meta.description or f"a whole number from {meta.ge} to {meta.le}"
    return {bool: "true or false"}.get(kind, "a text")


def _is_group(kind: Any) -> bool:  # noqa: ANN401 - a type, as an annotation has it
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _listed(allowed: Mapping[str, Any]) -> str:
    return f"fields: {', '.join(allowed)}"


def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def decisive(section: AgentSection) -> dict[str, Any]:
    """The settings that decide about pods and are not the default, as a file has them."""
    usual, own = as_written(AgentSection()), as_written(section)
    deciding = {"policies", "moves", "cgroups", "rules"}
    names = [name for name, group in _GROUPS.items() if group in deciding or name == "runtime"]
    return {name: own[name] for name in names if own[name] != usual[name]}


def as_written(section: AgentSection) -> dict[str, Any]:
    """All settings side by side, by the names that they have in a file."""
    groups = msgspec.to_builtins(section)
    return {name: groups[group][name] for name, group in _GROUPS.items()}
