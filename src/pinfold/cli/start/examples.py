"""Examples of the main commands: for their ``--help``, their manual page and the reference."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Example(Struct, frozen=True):
    """A line that somebody may type in the folder ``examples``, and what it is for.

    ``alone``: whether it needs neither an agent, nor root, nor a cluster.
    """

    about: str
    line: str
    alone: bool = True


EXAMPLES: Final = {
    "plan": (
        Example(
            "Which CPUs do these pods get on a machine with 2 sockets of 8 cores?",
            "pinfold plan --machine 2s8c2t --kubelet-config kubelet.yaml pods",
        ),
        Example(
            "What changes under another configuration?",
            "pinfold plan --machine 2s8c2t --kubelet-config kubelet.yaml "
            "--compare kubelet-new.yaml pods",
        ),
        Example("The pods of a node of a cluster", "pinfold plan --node worker-1", alone=False),
    ),
    "explain": (
        Example(
            "Why are pods rejected, and what would help?",
            "pinfold explain --machine 2s8c2t --kubelet-config kubelet.yaml pods",
        ),
        Example("Why did the agent decide so?", "pinfold explain pod/owner", alone=False),
    ),
    "simulate": (
        Example("A small fleet under each policy", "pinfold simulate simulation/small.yaml"),
    ),
    "audit": (
        Example("Does the kernel agree with the agent?", "pinfold audit", alone=False),
        Example("Does it agree with the kubelet?", "pinfold audit --kubelet", alone=False),
    ),
    "capture": (
        Example("Take this machine along", "pinfold capture -o node.tar.xz"),
        Example("and plan on it elsewhere", "pinfold plan --machine node.tar.xz pods"),
    ),
    "agent": (
        Example(
            "As root, with CPUs 0 and 1 for the system",
            "pinfold agent --reserved-cpus 0-1",
            alone=False,
        ),
    ),
    "run": (Example("Two CPUs for one command", "pinfold run --cpus 2 -- make -j2", alone=False),),
    "apply": (Example("Run the pod of a manifest", "pinfold apply agent/owner.yaml", alone=False),),
    "status": (
        Example("Who owns which CPU, kept up to date", "pinfold status --watch", alone=False),
        Example("One line for each pod", "pinfold status -o wide", alone=False),
        Example("The agent of a node of a cluster", "pinfold status --node worker-1", alone=False),
    ),
    "serve": (Example("Open the page in a browser", "pinfold serve --open", alone=False),),
}
"""By command."""


def told(command: str) -> str:
    """The paragraph of a command's ``--help``; "" where it has none."""
    rows = [
        line for one in EXAMPLES.get(command, ()) for line in (f"  # {one.about}", f"  {one.line}")
    ]
    return "\n".join(["\b", "Examples:", *rows, "", ""]) if rows else ""
