"""The command line: parse, call, print."""

from __future__ import annotations

import importlib
from typing import Final

import click
from click.shell_completion import CompletionItem

from pinfold import __version__

COMMANDS: Final = {
    "topology": "Show sockets, NUMA nodes, caches, cores, threads and memory of a machine.",
    "plan": "Place the pods of MANIFEST... on a machine as its kubelet would.",
    "simulate": "Simulate a fleet of nodes under each configuration of FILE, side by side.",
    "explain": "Say why a pod of MANIFEST... gets the CPUs it gets, or why it is rejected.",
    "convert": "Write classes of devices as objects of Dynamic Resource Allocation, or back.",
    "readiness": "Say whether new nodes have the devices of their classes yet, and how long to "
    "wait.",
    "state": "Look after the kubelet's state files.",
    "audit": "Does the kernel agree? "
    "Compares the record of exclusive CPUs with the running kernel.",
    "profile": "Compare a machine with a profile of a node, or print a profile.",
    "capture": "Capture what --machine needs of this machine, and nothing private.",
    "agent": "Run pods on this machine, each on its CPUs, until SIGTERM; they outlive the agent.",
    "resize": "Give a running container more or fewer CPUs of its own, while it runs.",
    "run": "Run COMMAND on CPUs that nobody else uses, and exit with its status.",
    "apply": "Run the pods of FILE...",
    "delete": "End pods, and wait until they are gone and their CPUs are free; or forget quotas.",
    "logs": "Print what a container has written, also one that has ended.",
    "status": "Show who owns which CPU, and how the pods are.",
    "history": "Print what the agent has decided, moved, lent and repaired; the newest last.",
    "rebalance": "Move containers to better CPUs while they run: "
    "fewer NUMA nodes, caches and cores.",
    "shield": "Move everything else on this machine off some CPUs, until --off or the next reboot.",
    "hugepages": "Show and change the kernel's pools of huge pages, per NUMA node.",
    "quota": "Limit the exclusive CPUs of each namespace of a cluster.",
    "classes": "Give the pods of a cluster devices by portable names.",
    "schema": "Print the JSON Schema of the document NAME; without a name, which documents there "
    "are.",
}
"""Each command (its module in ``commands`` has its name), and the first sentence of its help."""


class _Listed(click.Group):
    """Commands of which no more is known than what a list shows, in the order of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


class _LazyGroup(click.Group):
    """Imports a command's module when it is called; lists and completes without any of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"pinfold.cli.commands.{cmd_name}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._listed().format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        listed = click.Context(self._listed(), help_option_names=ctx.help_option_names)
        return listed.command.shell_complete(listed, incomplete)

    def _listed(self) -> _Listed:
        return _Listed(
            commands=[click.Command(name, help=text) for name, text in COMMANDS.items()],
            params=self.params,
        )


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pinfold")
def main() -> None:
    """Pinfold keeps containers on their CPUs.

    The kubelet's CPU, topology and node resource management as a planner and library.
    """
