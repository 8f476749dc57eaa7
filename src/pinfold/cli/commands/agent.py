"""``pinfold agent``: look after this node."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click
from msgspec.structs import replace

from pinfold.adapters.store import recorded_kubelet_version
from pinfold.admission.model import NodeError
from pinfold.cli.options.nodes import config_dir_option
from pinfold.cli.output import InputError, Refused, input_errors, needs_extra
from pinfold.config.agent import load_agent_config, override_section
from pinfold.config.kubelet import ConfigError, config_notes
from pinfold.config.settings import SettingError, override
from pinfold.core.machine.machine import MachineError
from pinfold.linux.own_places import SOCKET_VARIABLE, default_socket
from pinfold.node.recovery.recovery import MismatchError
from pinfold.ports.errors import PortError


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A KubeletConfiguration, with a section 'pinfold' of the agent's own. "
    "Without it /etc/pinfold/config.yaml, or the static policy with one CPU reserved.",
)
@config_dir_option
@click.option(
    "--state-dir", metavar="DIR", help="The folder of its record. Without it: /var/lib/pinfold."
)
@click.option(
    "--socket",
    metavar="PATH",
    envvar=SOCKET_VARIABLE,
    help="The socket of the local API. Without it: /run/pinfold/pinfold.sock.",
)
@click.option("--cgroup-parent", metavar="CGROUP", help="Where the agent's cgroup tree is made.")
@click.option(
    "--on-mismatch",
    type=click.Choice(["refuse", "repair"]),
    help="What to do when the record does not fit this machine or configuration.",
)
@click.option(
    "--reserved-cpus", metavar="LIST", help="CPUs that no pod may own (reservedSystemCPUs)."
)
@click.option(
    "--policy", metavar="NAME", help="none, static, dynamic or configurable (cpuManagerPolicy)."
)
@click.option(
    "--manifests",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A folder of pods to run (staticPodPath).",
)
def agent(  # noqa: PLR0913 - the options, one each
    *,
    config: Path | None,
    config_dir: str | None,
    state_dir: str | None,
    socket: str | None,
    cgroup_parent: str | None,
    on_mismatch: str | None,
    reserved_cpus: str | None,
    policy: str | None,
    manifests: Path | None,
) -> None:
    """Run pods on this machine, each on its CPUs.

    It runs until SIGTERM. Pods go on when the agent ends, and the next agent takes them over.
    """
    state_dir = _absolute(state_dir or _own_folder("XDG_STATE_HOME", "~/.local/state", config))

    def recorded(configured: str) -> str:
        return recorded_kubelet_version(Path(state_dir or configured))

    with input_errors(ConfigError, SettingError):
        configured = override_section(
            load_agent_config(config, recorded, config_dir=config_dir),
            state_dir=state_dir,
            socket=_absolute(socket or _own_socket(config)),
            cgroup_parent=cgroup_parent,
            on_mismatch=on_mismatch,
        )
        flags = {"reserved_system_cpus": reserved_cpus, "cpu_manager_policy": policy}
        node = override(configured.node, flags)
        notes = (*configured.notes, *config_notes(node, configured.node))
        configured = replace(configured, node=node, notes=notes)
    if manifests is not None:
        configured = replace(configured, static_pod_path=manifests.absolute())
    for note in configured.notes:
        click.echo(f"note: {note}", err=True)
    # gRPC writes lines of its own, such as each GOAWAY of a plugin; the agent tells what matters.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with needs_extra("the agent", "agent"):
        from pinfold.agent.wiring import start_agent  # noqa: PLC0415 - 127 ms

    try:
        asyncio.run(start_agent(configured))
    except (MachineError, NodeError) as error:
        raise InputError(str(error)) from None
    except (MismatchError, PortError) as error:
        raise Refused(str(error)) from None
    sys.stdout.flush()


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _own_socket(config: Path | None) -> str | None:
    """Where an agent of a user without root listens; None leaves it to the configuration."""
    return None if os.geteuid() == 0 or config is not None else default_socket()


def _own_folder(variable: str, default: str, config: Path | None) -> str | None:
    """Where a user without root keeps the record; None leaves it to the configuration."""
    if os.geteuid() == 0 or config is not None:
        return None
    return str(Path(os.environ.get(variable) or default).expanduser() / "pinfold")
