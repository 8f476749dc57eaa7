"""The agent's configuration: a KubeletConfiguration, and a section ``pinfold`` of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pinfold.config.classes_file import LoadedClasses, load_classes
from pinfold.config.kubelet import ConfigError, kubelet_config
from pinfold.config.section import AgentSection, agent_section, as_written, decisive
from pinfold.config.settings import SETTINGS
from pinfold.config.startup_checks import log_limits
from pinfold.config.values import AGENT_SECTION, SettingError, duration
from pinfold.config.written import KIND, VERSION, read_config
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import VersionSource, told_version
from pinfold.core.values.quantity import Quantity
from pinfold.logs.layout import LogLimits

DEFAULT_FILE: Final = Path("/etc/pinfold/config.yaml")
DEFAULT_DEVICE_PLUGINS: Final = "/var/lib/kubelet/device-plugins"
DEFAULT_NODE: Final = NodeConfig(
    cpu_manager_policy="static", kube_reserved={"cpu": Quantity.parse("1")}
)
"""Without a file: the static policy, and one CPU for the system."""


class AgentConfig(Struct, frozen=True):
    """Everything that an agent is told.

    ``static_pod_path`` is the folder (or file) of manifests that is watched, looked at every
    ``file_check_frequency`` seconds even without a notice; ``logs`` is the bound of a container's
    log; ``notes`` say what was passed over; ``written`` are the fields of the file;
    ``classes`` is what the file ``resourceClasses`` says.
    """

    node: NodeConfig
    own: AgentSection
    static_pod_path: Path | None = None
    file_check_frequency: float = 20.0
    logs: LogLimits = LogLimits()
    notes: tuple[str, ...] = ()
    file: Path | None = None
    written: Mapping[Any, Any] = {}
    classes: LoadedClasses = LoadedClasses()


def load_agent_config(
    file: Path | None,
    recorded: Callable[[str], str] = lambda _: "",
    *,
    config_dir: str | None = None,
) -> AgentConfig:
    """Read the configuration; without a file that of ``/etc/pinfold``, if it is there.

    Args:
        file: the configuration.
        recorded: the kubelet's version that a record has, by the state directory; "" for none.
        config_dir: a folder of drop-ins over it, as of the kubelet's ``--config-dir``.

    Raises:
        ConfigError: a file is missing or wrong; the message names it, the field and the remedy.
    """
    usual = NodeConfig()
    if file is None:
        if DEFAULT_FILE.exists():
            file = DEFAULT_FILE
        else:
            usual = DEFAULT_NODE
    config = read_config(None if file is None else str(file), config_dir)
    path, fields = config.name, config.fields
    written = agent_section(path, fields.get(AGENT_SECTION))
    base = _as_recorded(usual, recorded(written.record.state_dir))
    loaded = kubelet_config(config, base)
    section = loaded.section or AgentSection()
    runtime = section.containers.runtime
    for name, reason in loaded.config.not_with_runtime.items():
        raise ConfigError(f"pinfold.{name}.use: not with runtime {runtime}: {reason}", path)
    manifests = _text(path, "staticPodPath", fields.get("staticPodPath"))
    return AgentConfig(
        node=loaded.config,
        own=section,
        static_pod_path=Path(manifests) if manifests else None,
        file_check_frequency=_seconds(path, fields.get("fileCheckFrequency"), 20.0),
        logs=LogLimits() if section.containers.runtime == "nri" else _log_limits(path, fields),
        notes=(*filter(None, (loaded.config.kubelet_version_remark,)), *loaded.notes),
        file=file,
        written=fields,
        classes=load_classes(section.devices.resource_classes),
    )


def _as_recorded(config: NodeConfig, version: str) -> NodeConfig:
    """The configuration under the version that a record has, if it has one."""
    if not version:
        return config
    return config.of_version(told_version(version), VersionSource.RECORD)


def deciding_configuration(config: AgentConfig) -> dict[str, Any]:
    """A KubeletConfiguration by which a plan decides as this agent does, and nothing else of it.

    Paths, sockets and what the API server is told are left out.
    """
    names = {name for setting in SETTINGS for name in (setting.field, setting.else_field)}
    names.add("mergeDefaultEvictionSettings")
    fields = {name: value for name, value in config.written.items() if name in names}
    if config.file is None:
        usual = DEFAULT_NODE.kube_reserved.items()
        reserved = {name: amount.canonical() for name, amount in usual}
        policy = DEFAULT_NODE.cpu_manager_policy
        fields = {"cpuManagerPolicy": policy, "kubeReserved": reserved} | fields
    section = {**decisive(config.own), "kubeletVersion": str(config.node.kubelet_version)}
    return {"apiVersion": VERSION, "kind": KIND, **fields, AGENT_SECTION: section}


def override_section(config: AgentConfig, **changes: str | None) -> AgentConfig:
    """The flags win over the file; None is "not given".

    Raises:
        ConfigError: a value that the field cannot have.
    """
    given = {
        field.encode_name: changes[field.name]
        for group in msgspec.structs.fields(AgentSection)
        for field in msgspec.structs.fields(type(group.default))
        if changes.get(field.name) is not None
    }
    return replace(config, own=agent_section("the command line", as_written(config.own) | given))


def pod_resources_socket(section: AgentSection) -> Path | None:
    """Where podresources are served; None: nowhere."""
    if (socket := section.api.pod_resources_socket) is not None:
        return Path(socket) if socket else None
    if section.containers.runtime == "process":
        return None
    return Path(section.record.state_dir, "pod-resources", "pinfold.sock")


def device_plugin_dir(section: AgentSection) -> Path | None:
    """Where device plugins register; None: nowhere, because a kubelet has them or nobody does."""
    if section.containers.runtime == "nri":
        return None
    if section.devices.device_plugin_dir is not None:
        return (
            Path(section.devices.device_plugin_dir) if section.devices.device_plugin_dir else None
        )
    usual = Path(DEFAULT_DEVICE_PLUGINS)
    return usual if usual.is_dir() else None


def _log_limits(path: str, fields: Mapping[Any, Any]) -> LogLimits:
    size, files = log_limits(fields)
    if size < 1:
        raise ConfigError(
            f"containerLogMaxSize: {size} would leave the logs without a bound, and a container "
            "could stop the agent; give a size, such as 10Mi",
            path,
        )
    return LogLimits(size, files)


def _text(path: str, name: str, value: Any) -> str:  # noqa: ANN401 - as it is in the file
    if value is None or isinstance(value, str):
        return value or ""
    raise ConfigError(f"{name}: must be a string, not {value!r}"[:300], path)


def _seconds(path: str, value: Any, default: float) -> float:  # noqa: ANN401 - as it is in the file
    if value in (None, "", "0s"):
        return default
    try:
        return duration(value)
    except SettingError as error:
        raise ConfigError(f"fileCheckFrequency: {error}", path) from None
