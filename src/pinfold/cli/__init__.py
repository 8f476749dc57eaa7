"""The command line: parse, call, print."""

from __future__ import annotations

from typing import Final

import click

from pinfold import __version__
from pinfold.cli.start.program import Program

COMMANDS: Final = {
    "topology": "Show sockets, NUMA nodes, caches, cores, threads and memory of a machine.",
    "plan": "Place the pods of MANIFEST... on a machine as its kubelet would.",
    "simulate": "Simulate a fleet of nodes under each configuration of FILE, side by side.",
    "explain": "Say why pods get the CPUs they get, or why they are rejected.",
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
    "serve": "Show this machine's agent in browsers: who owns which CPU, why, and what has been.",
    "history": "Print what the agent has decided, moved, lent and repaired; the newest last.",
    "rebalance": "Move containers to better CPUs while they run: "
    "fewer NUMA nodes, caches and cores.",
    "shield": "Move everything else on this machine off some CPUs, until --off or the next reboot.",
    "hugepages": "Show and change the kernel's pools of huge pages, per NUMA node.",
    "quota": "Limit the exclusive CPUs of each namespace of a cluster.",
    "classes": "Give the pods of a cluster devices by portable names.",
    "completion": "Print the script that has a shell complete commands, options, values and pods.",
    "man": "Show the manual page of COMMAND, such as plan or state check; "
    "without one of the program.",
    "schema": "Print the JSON Schema of the document NAME; without a name, which documents there "
    "are.",
}
"""Each command (its module in ``commands`` has its name), and the first sentence of its help."""

ROOMS: Final = {"completion": "about", "man": "about", "schema": "about"}
"""The folder of ``commands`` in which the module of a command is; those not here are in none."""


@click.group(
    cls=Program,
    table=COMMANDS,
    rooms=ROOMS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="pinfold")
def main() -> None:
    """Pinfold keeps containers on their CPUs.

    The kubelet's CPU, topology and node resource management as a planner and library.
    """
