"""The command line: parse, call, print; one file for each command."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "topology": "pinfold.cli.topology",
    "plan": "pinfold.cli.plan",
    "explain": "pinfold.cli.explain",
    "state": "pinfold.cli.state",
    "audit": "pinfold.cli.audit",
    "capture": "pinfold.cli.capture",
    "agent": "pinfold.cli.agent",
    "run": "pinfold.cli.run",
    "apply": "pinfold.cli.apply",
    "delete": "pinfold.cli.delete",
    "logs": "pinfold.cli.logs",
    "status": "pinfold.cli.status",
    "shield": "pinfold.cli.shield",
    "hugepages": "pinfold.cli.hugepages",
}


class _LazyGroup(click.Group):
    """Imports a command's module when it is called, so that one does not wait for the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name)
        return command if isinstance(command, click.Command) else None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pinfold", prog_name="pinfold")
def main() -> None:
    """Pinfold keeps containers on their CPUs.

    The kubelet's CPU, topology and node resource management as a planner and library.
    """
