"""KubeletConfiguration files, as they are on nodes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pinfold.config.settings import SETTINGS, SettingError
from pinfold.core.node_config import NodeConfig
from pinfold.formats.yaml_documents import YAMLError, yaml_documents

MAX_BYTES: Final = 4 * 1024 * 1024
KIND: Final = "KubeletConfiguration"
API_GROUP: Final = "kubelet.config.k8s.io/"

_POLICIES: Final[Mapping[str, tuple[str, ...]]] = {
    "topologyManagerPolicy": ("none", "best-effort", "restricted", "single-numa-node"),
    "topologyManagerScope": ("container", "pod"),
}


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names file, field and remedy."""


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
    others = _other_fields()
    changes: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in fields.items():
        setting = known.get(name)
        if setting is None:
            if name not in others:
                near = difflib.get_close_matches(str(name), [*known, *others], n=1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                notes.append(f"{path}: unknown field {name}{hint}, passed over")
            continue
        if value is None:
            continue
        try:
            changes[setting.attribute] = setting.parse(value)
        except SettingError as error:
            raise ConfigError(f"{path}: {name}: {error}") from None
        allowed = _POLICIES.get(name)
        if allowed is not None and value not in allowed:
            raise ConfigError(
                f'{path}: invalid configuration: {name} ({setting.kubelet_flag}) "{value}" '
                f"must be one of: {list(allowed)}"
            )
    _check_reserved_cpus(path, fields)
    return LoadedConfig(replace(base or NodeConfig(), **changes), tuple(notes))


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
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; is it a KubeletConfiguration?") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES // 2**20} MiB")
    try:
        documents = [document.content for document in yaml_documents(text)]
    except YAMLError as error:
        raise ConfigError(f"{path}: line {error.line}: not YAML: {error}") from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ConfigError(
            f"{path}: must hold one mapping, a {KIND}; found {len(documents)} documents"
        )
    fields = documents[0]
    if fields.get("kind") != KIND or not str(fields.get("apiVersion", "")).startswith(API_GROUP):
        raise ConfigError(
            f"{path}: no {KIND} (kind: {fields.get('kind')!r}, apiVersion: "
            f"{fields.get('apiVersion')!r}); it starts with apiVersion: {API_GROUP}v1beta1, "
            f"kind: {KIND}"
        )
    return fields
