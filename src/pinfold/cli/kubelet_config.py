"""The configuration that a plan is asked under: files, flags, and the version of the kubelet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pinfold.cli.output import InputError, input_errors
from pinfold.config.kubelet import ConfigError, config_notes, kubelet_config
from pinfold.config.settings import SettingError, flag_gates, override
from pinfold.config.values import AGENT_SECTION
from pinfold.config.written import WrittenConfig, read_config
from pinfold.core.kubelet.feature_gates import refused_gates
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.node_object import NodeObject
from pinfold.core.kubelet.versions import (
    KubeletVersion,
    NamedVersion,
    VersionSource,
)


class ConfigSource(Struct, frozen=True):
    """A KubeletConfiguration as it is written, if any, and the flags that win over it."""

    written: WrittenConfig
    flags: Mapping[str, Any]
    asked: NamedVersion | None = None
    """``--kubelet-version``."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ConfigSource:
        """That of ``--kubelet-config`` and ``--config-dir``; exits with one line if it is bad."""
        if options.get("kubelet_config") == "-":
            raise InputError("--kubelet-config -: standard input is for manifests; give a file")
        with input_errors(ConfigError):
            written = read_config(options.get("kubelet_config"), options.get("config_dir"))
        return cls(written, options, options.get("kubelet_version"))

    def else_of(self, known: Callable[[], WrittenConfig | None]) -> ConfigSource:
        """The same; where no file was given, with what is known of the node otherwise."""
        if self.written.sources:
            return self
        with input_errors(ConfigError):
            written = known()
        return self if written is None else replace(self, written=written)

    @property
    def name(self) -> str:
        """A short one, for a picture."""
        names = (Path(one).name for one in self.written.sources)
        return " with ".join(names) or "as configured"

    @property
    def prefix(self) -> str:
        """Before what is said of a kubelet that would not start so: the files, if there are any."""
        return f"{self.written.name}: " if self.written.name else ""

    @property
    def has_section(self) -> bool:
        """Whether it is of an agent, too."""
        return AGENT_SECTION in self.written.fields

    def config(self, told: NodeConfig | None = None) -> tuple[NodeConfig, tuple[str, ...]]:
        """The node's configuration, and notes on what was passed over; exits with one line.

        ``told`` has the version of the kubelet where something tells it; ``--kubelet-version`` and
        the file win over that.
        """
        base = told or NodeConfig()
        if self.asked is not None:
            base = base.of_version(self.asked, VersionSource.FLAG)
        with input_errors(ConfigError, SettingError):
            loaded = kubelet_config(self.written, base)
            config = override(loaded.config, self.flags)
            notes = (*loaded.notes, *config_notes(config, loaded.config))
        return config, (*filter(None, (config.kubelet_version_remark,)), *notes)

    def without_refused(self, version: KubeletVersion) -> tuple[ConfigSource, tuple[str, ...]]:
        """The same without the feature gates that this version refuses, and what it says of them.

        Exits with one line if the gates cannot be read.
        """
        written = self.written.fields.get("featureGates")
        written = written if isinstance(written, Mapping) else {}
        in_file = {str(name): on for name, on in written.items() if isinstance(on, bool)}
        with input_errors(SettingError, prefix="--feature-gate: "):
            in_flags = flag_gates(self.flags)
        refused = refused_gates({**in_file, **in_flags}, version)
        if not refused:
            return self, ()
        gates = (f"{n}={str(on).lower()}" for n, on in in_flags.items() if n not in refused)
        flags = {**self.flags, "feature_gates": tuple(gates)}
        source = replace(self, written=self.written.without_gates(refused), flags=flags)
        return source, tuple(f"featureGates: {text}" for text in refused.values())


def meant_node(
    nodes: Iterable[NodeObject], name: str, *, is_asked: bool = False
) -> NodeObject | None:
    """The Node that a plan of one machine is about: that of its name, or the only one.

    Where somebody asks for a node, it is none but the one of that name.
    """
    every = tuple(nodes)
    named = [one for one in every if one.name == name]
    if named:
        return named[0]
    return every[0] if len(every) == 1 and not is_asked else None
