"""The command line: parse, call, print."""

from __future__ import annotations

from typing import Final

import click

from pinfold import __version__
from pinfold.cli.start.program import Program

GROUPS: Final = {
    "Planner": {
        "topology": "Show sockets, NUMA nodes, caches and cores of a machine.",
        "plan": "Place pods on a machine as its kubelet would.",
        "simulate": "Simulate a fleet of nodes under several configurations.",
        "explain": "Say why pods get their CPUs, or why they are rejected.",
        "convert": "Convert classes of devices to DRA objects, or back.",
        "readiness": "Say whether new nodes have their devices yet.",
        "state": "Check, repair and convert the kubelet's state files.",
        "audit": "Compare who should own CPUs with the running kernel.",
        "profile": "Compare a machine with a profile of a node.",
        "capture": "Write what --machine needs of this machine to a file.",
    },
    "Agent": {
        "agent": "Run pods on this machine, each on its CPUs.",
        "run": "Run COMMAND on CPUs that nobody else uses.",
        "apply": "Run the pods of manifests.",
        "delete": "End pods, and wait until their CPUs are free.",
        "status": "Show who owns which CPU, and how the pods are.",
        "serve": "Show this machine's agent in a browser.",
        "history": "Print what the agent has decided and done.",
        "resize": "Give a running container more or fewer CPUs.",
        "rebalance": "Move containers to better CPUs while they run.",
        "logs": "Print what a container has written.",
        "shield": "Move everything else off some CPUs.",
        "hugepages": "Show and change the kernel's pools of huge pages.",
    },
    "Cluster": {
        "quota": "Limit the exclusive CPUs of each namespace of a cluster.",
        "classes": "Give the pods of a cluster devices by portable names.",
    },
    "This program": {
        "completion": "Print the script that completes words in a shell.",
        "man": "Show the manual page of a command.",
        "schema": "Print the JSON Schema of a document.",
    },
}
"""The commands as the help has them, in groups; each (its module in ``commands`` has its name) with
the first sentence of its help, which fits into a line of a terminal."""

COMMANDS: Final = {name: text for group in GROUPS.values() for name, text in group.items()}

ROOMS: Final = {"completion": "about", "man": "about", "schema": "about"}
"""The folder of ``commands`` in which the module of a command is; those not here are in none."""


@click.group(
    cls=Program,
    groups=GROUPS,
    rooms=ROOMS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="pinfold")
def main() -> None:
    """Pinfold keeps containers on their CPUs.

    It plans as the kubelet does (CPUs, topology, memory, devices), and runs pods as an agent.
    pinfold COMMAND --help tells of one command.
    """
