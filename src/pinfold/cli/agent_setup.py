"""From the flags of ``pinfold agent`` to its configuration."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pinfold.cli.output import input_errors
from pinfold.config.agent import AgentConfig, load_agent_config, override_section
from pinfold.config.kubelet import ConfigError
from pinfold.config.settings import SettingError, override


class AgentFlags(Struct, frozen=True):
    """What was given on the command line; None is "not given"."""

    state_dir: str | None = None
    socket: str | None = None
    cgroup_parent: str | None = None
    on_mismatch: str | None = None
    reserved_cpus: str | None = None
    policy: str | None = None
    manifests: Path | None = None


def configure(file: Path | None, flags: AgentFlags) -> AgentConfig:
    """Read the file, and let the flags win; exits with one clear line if anything is wrong."""
    with input_errors(ConfigError, SettingError):
        config = load_agent_config(file)
        config = override_section(
            config,
            state_dir=_absolute(flags.state_dir),
            socket=_absolute(flags.socket),
            cgroup_parent=flags.cgroup_parent,
            on_mismatch=flags.on_mismatch,
        )
        node = override(
            config.node,
            {
                "reserved_system_cpus": flags.reserved_cpus,
                "cpu_manager_policy": flags.policy,
            },
        )
    if flags.manifests is not None:
        config = replace(config, static_pod_path=flags.manifests.absolute())
    return replace(config, node=node)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())
