"""KubeletConfiguration files, as they are on nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.config.settings import SETTINGS, check
from pinfold.config.startup_checks import check_startup
from pinfold.config.values import AGENT_SECTION, ConfigError, SettingError, nearest, show
from pinfold.core.kubelet.eviction import DEFAULT_EVICTION_HARD
from pinfold.core.kubelet.feature_gates import FEATURE_GATES
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import (
    KubeletVersion,
    KubeletVersionError,
    VersionSource,
    named_version,
    told_version,
)
from pinfold.formats.json_or_yaml import DocumentError, read_documents

if TYPE_CHECKING:
    from pinfold.config.section import AgentSection
    from pinfold.core.kubelet.node_object import NodeObject

__all__ = [
    "ConfigError",
    "LoadedConfig",
    "config_notes",
    "held_fields",
    "kubelet_config",
    "load_kubelet_config",
    "read_fields",
    "told_by",
]

MAX_BYTES: Final = 4 * 1024 * 1024
KIND: Final = "KubeletConfiguration"
API_GROUP: Final = "kubelet.config.k8s.io"
VERSION: Final = f"{API_GROUP}/v1beta1"
_NOT_DYNAMIC: Final = "pinfold.{} has no effect: cpuManagerPolicy is {}"
_HEADER: Final = f"it starts with apiVersion: {VERSION} and kind: {KIND}"


class LoadedConfig(Struct, frozen=True):
    """A node's configuration, and notes on what in the file was passed over.

    ``section`` is the agent's own, None in a file that has none.
    """

    config: NodeConfig
    notes: tuple[str, ...]
    section: AgentSection | None = None


def load_kubelet_config(path: str, base: NodeConfig | None = None) -> LoadedConfig:
    """Read a KubeletConfiguration, in YAML or JSON.

    What a kubelet serves at ``/configz`` and the ConfigMap ``kubelet-config`` are read as well.

    Args:
        path: the file.
        base: what fields that the file does not set have; the kubelet's defaults without it.

    Raises:
        ConfigError: no such file, no KubeletConfiguration, or values that would stop a kubelet.
    """
    return kubelet_config(read_fields(path), path, base)


def kubelet_config(
    fields: Mapping[Any, Any], path: str, base: NodeConfig | None = None
) -> LoadedConfig:
    """Make a node's configuration of the fields that :func:`read_fields` gives.

    ``path`` is the file, for error texts; for ``base`` see :func:`load_kubelet_config`.

    Raises:
        ConfigError: values that would stop a kubelet, or a section ``pinfold`` that is none.
    """
    base = base or NodeConfig()
    changes: dict[str, Any] = {}
    section = None
    if AGENT_SECTION in fields:
        from pinfold.config.section import agent_section  # noqa: PLC0415 - 3 ms: many have none

        section = agent_section(path, fields[AGENT_SECTION])
        base = _of_version(path, base, section.rules.kubelet_version)
        changes["own"] = section.policies
        changes["scale_down_grace_period"] = section.moves.grace_seconds
        changes["runtime"] = section.containers.runtime
        changes["partition"] = section.cgroups.partition
        changes["root_load_balance"] = section.cgroups.root_load_balance
        changes["owner_offline"] = section.cgroups.owner_offline
        changes["confine_system"] = section.cgroups.confine_system
    version = base.kubelet_version
    known = {setting.field: setting for setting in SETTINGS if setting.is_known(version)}
    for name, value in fields.items():
        setting = known.get(name)
        if setting is None or value is None or setting.is_unset(value):
            continue
        try:
            parsed = setting.reader(own=section is not None)(value)
        except SettingError as error:
            raise ConfigError(f"{path}: {name}: {error}") from None
        if not setting.is_unset(parsed):
            changes[setting.attribute] = parsed
    if fields.get("mergeDefaultEvictionSettings") is True and "eviction_hard" in changes:
        changes["eviction_hard"] = {**DEFAULT_EVICTION_HARD, **changes["eviction_hard"]}
    try:
        check_startup(fields)
        config = check(replace(base, **changes))
    except SettingError as error:
        raise ConfigError(f"{path}: {error}") from None
    notes = (*_unknown_fields(fields, known, version), *config_notes(config))
    return LoadedConfig(config, tuple(f"{path}: {note}" for note in notes), section)


def _of_version(path: str, base: NodeConfig, version: str | None) -> NodeConfig:
    """The configuration under the version of the section, unless a flag says another one."""
    if version is None or base.version_is_explicit:
        return base
    try:
        return base.of_version(named_version(version), VersionSource.CONFIGURATION)
    except KubeletVersionError as error:
        raise ConfigError(f"{path}: {AGENT_SECTION}.kubeletVersion: {error}") from None


def config_notes(config: NodeConfig, before: NodeConfig | None = None) -> tuple[str, ...]:
    """What of a configuration has no effect, but what was so ``before`` flags were applied."""
    old = before or NodeConfig()
    gates = {n: on for n, on in config.feature_gates.items() if n not in old.feature_gates}
    notes = _unknown_gates(gates)
    for group in config.idle_dynamic:
        if before is None or group not in before.idle_dynamic:
            notes.append(_NOT_DYNAMIC.format(group, config.cpu_manager_policy))
    return tuple(notes)


def _unknown_fields(
    fields: Mapping[Any, Any], known: Mapping[str, Any], version: KubeletVersion
) -> list[str]:
    others, elsewhere = _other_fields(), {setting.field for setting in SETTINGS}
    notes = []
    for name in fields:
        if name in known or name in others or name == AGENT_SECTION:
            continue
        if name in elsewhere:
            notes.append(f"unknown field {name} of a kubelet {version}, passed over")
            continue
        near = nearest(name, [*known, *others])
        hint = f" (did you mean {near}?)" if near else ""
        notes.append(f"unknown field {name}{hint}, passed over")
    return notes


def _unknown_gates(gates: Mapping[str, bool]) -> list[str]:
    known = {gate.name for gate in FEATURE_GATES} | {"AllAlpha", "AllBeta"}
    others = [name for name in gates if name not in known]
    if not others:
        return []
    return [f"feature gates without an effect here: {', '.join(others)}"]


def _other_fields() -> frozenset[str]:
    """The fields of the API that have no bearing on a placement."""
    path = Path(__file__).with_name("other_fields.txt")
    return frozenset(path.read_text(encoding="utf-8").split())


def told_by(node: NodeObject | None, captured: str = "") -> NodeConfig:
    """What a Node object tells of its kubelet's version, else a capture of the machine."""
    if node is not None and node.kubelet_version:
        return NodeConfig().of_version(told_version(node.kubelet_version), VersionSource.NODE)
    if captured:
        return NodeConfig().of_version(told_version(captured), VersionSource.CAPTURE)
    return NodeConfig()


def read_fields(path: str) -> Mapping[Any, Any]:
    """The fields of a KubeletConfiguration file, as they are; raises ConfigError."""
    return _with_header(_unwrapped(path, _only_document(path, _read(path))), path)


def held_fields(held: Mapping[Any, Any], path: str) -> Mapping[Any, Any]:
    """The fields of a KubeletConfiguration in another file, where its header may be left out.

    Raises:
        ConfigError: it has the header of something else.
    """
    return _with_header({"apiVersion": VERSION, "kind": KIND, **held}, path)


def _with_header(fields: Mapping[Any, Any], path: str) -> Mapping[Any, Any]:
    kind, version = fields.get("kind"), fields.get("apiVersion")
    if kind != KIND or str(version).partition("/")[0] != API_GROUP:
        raise ConfigError(
            f"{path}: no {KIND} (kind: {show(kind)}, apiVersion: {show(version)}); {_HEADER}"
        )
    if version != VERSION:
        raise ConfigError(
            f'{path}: no kind "{KIND}" is registered for version "{version}"; {_HEADER}'
        )
    return fields


def _unwrapped(path: str, document: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The configuration itself, where a tool has put it into something else."""
    served = document.get("kubeletconfig")
    if isinstance(served, dict) and len(document) == 1:
        # A kubelet serves what it runs with at /configz, without the header.
        return {"apiVersion": VERSION, "kind": KIND, **served}
    data = document.get("data")
    if document.get("kind") == "ConfigMap" and isinstance(data, dict):
        # kubeadm keeps it as a text in the ConfigMap kubelet-config.
        held = data.get("kubelet")
        if isinstance(held, str):
            return _only_document(f"{path}: data.kubelet", held)
    return document


def _only_document(path: str, text: str) -> Mapping[Any, Any]:
    try:
        documents = [document.content for document in read_documents(text)]
    except DocumentError as error:
        raise ConfigError(f"{path}: {error}") from None
    if len(documents) != 1:
        raise ConfigError(
            f"{path}: must hold one {KIND}, not {len(documents) or 'nothing'}; {_HEADER}"
        )
    if not isinstance(documents[0], dict):
        raise ConfigError(f"{path}: must be a mapping, not {show(documents[0])}; {_HEADER}")
    return documents[0]


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{path!r}: no name that a file can have") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; is it a {KIND}?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; is it a {KIND}?") from None
