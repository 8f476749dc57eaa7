"""KubeletConfiguration files, as they are on nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.config.settings import SETTINGS, Setting, check
from pinfold.config.startup_checks import check_startup
from pinfold.config.values import AGENT_SECTION, ConfigError, SettingError, nearest
from pinfold.config.written import ConfigPart, WrittenConfig, read_config
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
from pinfold.formats.paths import StrPath, path_text

if TYPE_CHECKING:
    from pinfold.config.section import AgentSection
    from pinfold.core.kubelet.node_object import NodeObject

__all__ = [
    "ConfigError",
    "LoadedConfig",
    "config_notes",
    "kubelet_config",
    "load_kubelet_config",
    "told_by",
]

_NOT_DYNAMIC: Final = "pinfold.{} has no effect: cpuManagerPolicy is {}"


class LoadedConfig(Struct, frozen=True):
    """A node's configuration, and notes on what in the file was passed over.

    ``section`` is the agent's own, None in a file that has none.
    """

    config: NodeConfig
    notes: tuple[str, ...]
    section: AgentSection | None = None


def load_kubelet_config(
    path: StrPath, base: NodeConfig | None = None, *, config_dir: StrPath | None = None
) -> LoadedConfig:
    """Read a KubeletConfiguration, in YAML or JSON.

    What a kubelet serves at ``/configz`` and the ConfigMap ``kubelet-config`` are read as well.

    Args:
        path: the file.
        base: what fields that the file does not set have; the kubelet's defaults without it.
        config_dir: a folder of drop-ins over it, as of the kubelet's ``--config-dir``.

    Raises:
        ConfigError: no such file, no KubeletConfiguration, or values that would stop a kubelet.
        TypeError: a path that is neither a text nor a ``pathlib.Path``.
    """
    folder = None if config_dir is None else path_text(config_dir)
    return kubelet_config(read_config(path_text(path), folder), base)


def kubelet_config(written: WrittenConfig, base: NodeConfig | None = None) -> LoadedConfig:
    """Make a node's configuration of what is written; for ``base`` see :func:`load_kubelet_config`.

    Raises:
        ConfigError: values that would stop a kubelet, or a section ``pinfold`` that is none.  It
            names the file that is at fault; all of them, where none is by itself.
    """
    try:
        loaded = _loaded(written.name, written.fields, base)
    except ConfigError as error:
        if len(written.parts) > 1:
            _blame(written, base, error)
        raise
    parts = written.parts or (ConfigPart(written.name, written.fields),)
    version = loaded.config.kubelet_version
    unknown = [f"{one.path}: {n}" for one in parts for n in _unknown_fields(one.fields, version)]
    return replace(loaded, notes=(*written.notes, *unknown, *loaded.notes))


def _blame(written: WrittenConfig, base: NodeConfig | None, of_all: ConfigError) -> None:
    """Raise the same error of the one file that has it all by itself."""
    for part in written.parts:
        try:
            _loaded(part.path, part.fields, base)
        except ConfigError as error:
            if error.problem == of_all.problem:
                raise error from None


def _loaded(path: str, fields: Mapping[Any, Any], base: NodeConfig | None) -> LoadedConfig:
    """A configuration of these fields; ``path`` is what errors call them."""
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
        changes["reserved_cpus_add_up"] = section.rules.reserved_cpus_add_up
    version = base.kubelet_version
    known = _known(version)

    def read(setting: Setting, name: str) -> None:
        value = fields.get(name)
        if value is None or setting.is_unset(value):
            return
        try:
            parsed = setting.reader(own=section is not None)(value)
        except SettingError as error:
            raise ConfigError(f"{name}: {error}", path) from None
        if not setting.is_unset(parsed):
            changes[setting.attribute] = parsed

    for name in fields:
        if name in known:
            read(known[name], name)
    for setting in known.values():
        if setting.else_field and setting.attribute not in changes:
            read(setting, setting.else_field)
    if fields.get("mergeDefaultEvictionSettings") is True and "eviction_hard" in changes:
        changes["eviction_hard"] = {**DEFAULT_EVICTION_HARD, **changes["eviction_hard"]}
    try:
        check_startup(fields)
        config = check(replace(base, **changes))
    except SettingError as error:
        raise ConfigError(str(error), path) from None
    return LoadedConfig(config, tuple(f"{path}: {n}" for n in config_notes(config)), section)


def _of_version(path: str, base: NodeConfig, version: str | None) -> NodeConfig:
    """The configuration under the version of the section, unless a flag says another one."""
    if version is None or base.version_is_explicit:
        return base
    try:
        return base.of_version(named_version(version), VersionSource.CONFIGURATION)
    except KubeletVersionError as error:
        raise ConfigError(f"{AGENT_SECTION}.kubeletVersion: {error}", path) from None


def config_notes(config: NodeConfig, before: NodeConfig | None = None) -> tuple[str, ...]:
    """What of a configuration has no effect, but what was so ``before`` flags were applied."""
    old = before or NodeConfig()
    gates = {n: on for n, on in config.feature_gates.items() if n not in old.feature_gates}
    notes = _unknown_gates(gates)
    for group in config.idle_dynamic:
        if before is None or group not in before.idle_dynamic:
            notes.append(_NOT_DYNAMIC.format(group, config.cpu_manager_policy))
    return tuple(notes)


def _known(version: KubeletVersion) -> dict[str, Setting]:
    return {setting.field: setting for setting in SETTINGS if setting.is_known(version)}


def _unknown_fields(fields: Mapping[Any, Any], version: KubeletVersion) -> list[str]:
    known = _known(version)
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
