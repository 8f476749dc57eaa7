"""KubeletConfiguration files, as they are on nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pinfold.config.settings import SETTINGS, check
from pinfold.config.values import ConfigError, SettingError, show
from pinfold.core.eviction import DEFAULT_EVICTION_HARD
from pinfold.core.feature_gates import FEATURE_GATES
from pinfold.core.node_config import NodeConfig
from pinfold.formats.yaml_documents import YAMLError, yaml_documents

__all__ = ["ConfigError", "LoadedConfig", "load_kubelet_config"]

MAX_BYTES: Final = 4 * 1024 * 1024
KIND: Final = "KubeletConfiguration"
API_GROUP: Final = "kubelet.config.k8s.io"
VERSION: Final = f"{API_GROUP}/v1beta1"
_HEADER: Final = f"it starts with apiVersion: {VERSION} and kind: {KIND}"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A node's configuration, and notes on what in the file was passed over."""

    config: NodeConfig
    notes: tuple[str, ...]


def load_kubelet_config(path: str, base: NodeConfig | None = None) -> LoadedConfig:
    """Read a KubeletConfiguration, in YAML or JSON.

    Args:
        path: the file.
        base: what fields that the file does not set have; the kubelet's defaults without it.

    Raises:
        ConfigError: no such file, no KubeletConfiguration, or values that would stop a kubelet.
    """
    fields = _fields(path)
    known = {setting.field: setting for setting in SETTINGS}
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        setting = known.get(name)
        if setting is None or value is None or setting.is_unset(value):
            continue
        try:
            parsed = setting.parse(value)
        except SettingError as error:
            raise ConfigError(f"{path}: {name}: {error}") from None
        if not setting.is_unset(parsed):
            changes[setting.attribute] = parsed
    if fields.get("mergeDefaultEvictionSettings") is True and "eviction_hard" in changes:
        changes["eviction_hard"] = {**DEFAULT_EVICTION_HARD, **changes["eviction_hard"]}
    _check_reserved_cpus(path, fields)
    try:
        config = check(replace(base or NodeConfig(), **changes))
    except SettingError as error:
        raise ConfigError(f"{path}: {error}") from None
    notes = (*_unknown_fields(fields, known), *_unknown_gates(config.feature_gates))
    return LoadedConfig(config, tuple(f"{path}: {note}" for note in notes))


def _unknown_fields(fields: Mapping[Any, Any], known: Mapping[str, Any]) -> list[str]:
    others = _other_fields()
    notes = []
    for name in fields:
        if name in known or name in others:
            continue
        import difflib  # noqa: PLC0415 - for unknown fields only

        near = difflib.get_close_matches(str(name), [*known, *others], n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
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


def _check_reserved_cpus(path: str, fields: Mapping[str, Any]) -> None:
    if fields.get("reservedSystemCPUs") and (
        fields.get("systemReservedCgroup") or fields.get("kubeReservedCgroup")
    ):
        raise ConfigError(
            f"{path}: invalid configuration: can't use reservedSystemCPUs (--reserved-cpus) with "
            "systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup "
            "(--kube-reserved-cgroup); drop one of them"
        )


def _fields(path: str) -> Mapping[str, Any]:
    text = _read(path)
    try:
        documents = [document.content for document in yaml_documents(text)]
    except YAMLError as error:
        raise ConfigError(f"{path}: line {error.line}: not YAML: {error}") from None
    if len(documents) != 1:
        raise ConfigError(
            f"{path}: must hold one {KIND}, not {len(documents) or 'nothing'}; {_HEADER}"
        )
    fields = documents[0]
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: must be a mapping, not {show(fields)}; {_HEADER}")
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
