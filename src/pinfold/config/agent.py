"""The agent's configuration: a KubeletConfiguration, and a section ``pinfold`` of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from pinfold.config.kubelet import AGENT_SECTION, ConfigError, kubelet_config, read_fields
from pinfold.config.startup_checks import log_limits
from pinfold.config.values import SettingError, duration
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.values.quantity import Quantity
from pinfold.logs.layout import LogLimits

DEFAULT_FILE: Final = Path("/etc/pinfold/config.yaml")
DEFAULT_STATE_DIR: Final = "/var/lib/pinfold"
DEFAULT_SOCKET: Final = "/run/pinfold/pinfold.sock"
DEFAULT_DEVICE_PLUGINS: Final = "/var/lib/kubelet/device-plugins"
DEFAULT_NODE: Final = NodeConfig(
    cpu_manager_policy="static", kube_reserved={"cpu": Quantity.parse("1")}
)
"""Without a file: the static policy, and one CPU for the system."""

_AbsolutePath = Annotated[str, Meta(pattern="^/")]
_Endpoint = Annotated[str, Meta(pattern="^(unix://)?/")]
_TwoDigits = Annotated[str, Meta(pattern="^[0-9]{2}$")]
_PathOrNone = Annotated[str, Meta(pattern="^(/.*)?$")] | None
_PathOrEmpty = Annotated[str, Meta(pattern="^(/.*)?$")]
_NodeName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
_TaintKey = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?$"
    ),
]
_FolderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class AgentSection(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """The section ``pinfold`` of the file.

    Attributes:
        state_dir: where the record, the mirrored ``cpu_manager_state`` and the containers' folders
            are; must outlive a reboot.
        socket: the local API.
        cgroup_parent: the cgroup below which the agent's own tree is made; None: found.
        cgroup_name: the name of that tree.
        partition: the cpuset partition that exclusive sets should be (cgroup v2).
        runtime: what runs the containers: ``process``, the agent itself, as plain processes;
            ``cri``, a container runtime that it tells to; ``nri``, a container runtime for a
            kubelet, which the agent is asked by.
        runtime_endpoint: the CRI socket; None: found as crictl finds it with ``cri``, not used
            with ``nri``.
        nri_socket: where the runtime takes plugins, with ``nri``.
        nri_plugin_index: two digits; of several plugins the lowest is asked first.
        pod_resources_socket: podresources for node agents; None: ``pod-resources/pinfold.sock`` in
            the state directory with ``cri`` and ``nri``, nowhere with ``process``; "": nowhere.
        pod_resources_group: a group whose members may connect to it, too.
        kubelet_state_file: the kubelet's ``cpu_manager_state``, with ``nri``: where it says that
            the kubelet pins containers, the agent does not; "": not looked at.
        kubelet_pod_resources: the kubelet's podresources socket, with ``nri``: asked where the
            devices of a pod are; "": not asked.
        kubeconfig: how the API server is reached, with ``nri``; None: by the service account, in a
            pod that has one; "": not at all.
        node_name: the node's name in the cluster; None: ``NODE_NAME`` in the environment, else the
            host's name.
        node_labels: whether the Node object gets labels, with an API server.
        node_resource_topology: whether a NodeResourceTopology is kept, with an API server.
        start_up_taint: the key of a taint with which the kubelet registers its node, removed when
            containers are placed, with an API server; None: no taint is looked for.
        device_plugin_dir: the folder in which device plugins register (``kubelet.sock``), not with
            ``nri``; None: ``/var/lib/kubelet/device-plugins`` if it is there; "": nowhere.
        plugin_registry_dir: the folder in which plugins are found by their sockets; None: nowhere.
        owner_offline: what becomes of a container all of whose own CPUs are offline: it runs in the
            shared pool, or is frozen, until one of them is back.
        on_mismatch: what to do when the record does not fit machine or configuration.
        history_limit: how many entries of the history are kept.
        confine_system: keep system services (systemd's slices) on the reserved CPUs.
        max_pods_remembered: how many ended pods are kept.
    """

    state_dir: _AbsolutePath = DEFAULT_STATE_DIR
    socket: _AbsolutePath = DEFAULT_SOCKET
    cgroup_parent: _AbsolutePath | None = None
    cgroup_name: _FolderName = "pinfold"
    partition: Literal["member", "root", "isolated"] = "member"
    runtime: Literal["process", "cri", "nri"] = "process"
    runtime_endpoint: _Endpoint | None = None
    nri_socket: _AbsolutePath = "/var/run/nri/nri.sock"
    nri_plugin_index: _TwoDigits = "90"
    pod_resources_socket: _PathOrNone = None
    pod_resources_group: str | None = None
    kubelet_state_file: _PathOrEmpty = "/var/lib/kubelet/cpu_manager_state"
    kubelet_pod_resources: _PathOrEmpty = "/var/lib/kubelet/pod-resources/kubelet.sock"
    kubeconfig: _PathOrNone = None
    node_name: _NodeName | None = None
    node_labels: bool = False
    node_resource_topology: bool = False
    start_up_taint: _TaintKey | None = None
    device_plugin_dir: _PathOrNone = None
    plugin_registry_dir: _AbsolutePath | None = None
    owner_offline: Literal["share", "freeze"] = "share"
    on_mismatch: Literal["refuse", "repair"] = "refuse"
    history_limit: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    confine_system: bool = False
    max_pods_remembered: Annotated[int, Meta(ge=0, le=100_000)] = 500


class AgentConfig(Struct, frozen=True):
    """Everything that an agent is told.

    ``static_pod_path`` is the folder (or file) of manifests that is watched, looked at every
    ``file_check_frequency`` seconds even without a notice; ``logs`` is the bound of a container's
    log; ``notes`` say what was passed over.
    """

    node: NodeConfig
    own: AgentSection
    static_pod_path: Path | None = None
    file_check_frequency: float = 20.0
    logs: LogLimits = LogLimits()
    notes: tuple[str, ...] = ()
    file: Path | None = None


def load_agent_config(file: Path | None) -> AgentConfig:
    """Read the configuration; without a file that of ``/etc/pinfold``, if it is there.

    Raises:
        ConfigError: the file is missing or wrong; the message names the field and the remedy.
    """
    if file is None:
        if not DEFAULT_FILE.exists():
            return AgentConfig(DEFAULT_NODE, AgentSection())
        file = DEFAULT_FILE
    path = str(file)
    fields = read_fields(path)
    section = _section(path, fields.get(AGENT_SECTION))
    rest = {name: value for name, value in fields.items() if name != AGENT_SECTION}
    loaded = kubelet_config(rest, path)
    manifests = _text(path, "staticPodPath", rest.get("staticPodPath"))
    return AgentConfig(
        node=loaded.config,
        own=section,
        static_pod_path=Path(manifests) if manifests else None,
        file_check_frequency=_seconds(path, rest.get("fileCheckFrequency"), 20.0),
        logs=LogLimits() if section.runtime == "nri" else _log_limits(path, rest),
        notes=loaded.notes,
        file=file,
    )


def override_section(config: AgentConfig, **changes: str | None) -> AgentConfig:
    """The flags win over the file; None is "not given".

    Raises:
        ConfigError: a value that the field cannot have.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    section = msgspec.structs.replace(config.own, **given)
    return replace(config, own=_section("the command line", msgspec.to_builtins(section)))


def pod_resources_socket(section: AgentSection) -> Path | None:
    """Where podresources are served; None: nowhere."""
    if section.pod_resources_socket is not None:
        return Path(section.pod_resources_socket) if section.pod_resources_socket else None
    if section.runtime == "process":
        return None
    return Path(section.state_dir, "pod-resources", "pinfold.sock")


def device_plugin_dir(section: AgentSection) -> Path | None:
    """Where device plugins register; None: nowhere, because a kubelet has them or nobody does."""
    if section.runtime == "nri":
        return None
    if section.device_plugin_dir is not None:
        return Path(section.device_plugin_dir) if section.device_plugin_dir else None
    usual = Path(DEFAULT_DEVICE_PLUGINS)
    return usual if usual.is_dir() else None


def _section(path: str, value: object) -> AgentSection:
    if value is None:
        return AgentSection()
    try:
        return msgspec.convert(value, AgentSection)
    except msgspec.ValidationError as error:
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(AgentSection))
        raise ConfigError(f"{path}: {AGENT_SECTION}: {error} (fields: {fields})") from None


def _log_limits(path: str, fields: Mapping[Any, Any]) -> LogLimits:
    size, files = log_limits(fields)
    if size < 1:
        raise ConfigError(
            f"{path}: containerLogMaxSize: {size} would leave the logs without a bound, and a "
            "container could stop the agent; give a size, such as 10Mi"
        )
    return LogLimits(size, files)


def _text(path: str, name: str, value: Any) -> str:  # noqa: ANN401 - as it is in the file
    if value is None or isinstance(value, str):
        return value or ""
    raise ConfigError(f"{path}: {name}: must be a string, not {value!r}"[:300])


def _seconds(path: str, value: Any, default: float) -> float:  # noqa: ANN401 - as it is in the file
    if value in (None, "", "0s"):
        return default
    try:
        return duration(value)
    except SettingError as error:
        raise ConfigError(f"{path}: fileCheckFrequency: {error}") from None
