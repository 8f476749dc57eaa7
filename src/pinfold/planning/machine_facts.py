"""What a machine's source tells beside the machine: what runs on it."""

from __future__ import annotations

from msgspec import Struct

from pinfold.adapters.machines.source import is_tree
from pinfold.core.machine.kernel import Kernel


class MachineFacts(Struct, frozen=True):
    """What a machine's source tells of what runs on it: the kernel, and the kubelet's version."""

    kernel: Kernel = Kernel()
    kubelet_version: str = ""
    """As it is written there; "" where it is not told."""


def facts_of(machine: str | None) -> MachineFacts:
    """What is known of a machine, from where ``--machine`` says; raises MachineError."""
    if machine is not None and not is_tree(machine):
        return MachineFacts()
    from pinfold.adapters.machines.node_facts import (  # noqa: PLC0415 - 5 ms: few are trees
        open_settings,
        read_kernel,
        read_kubelet_version,
    )

    tree = open_settings(machine)
    return MachineFacts(read_kernel(tree), read_kubelet_version(tree))
