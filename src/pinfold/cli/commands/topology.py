"""``pinfold topology``: what the machine is, and what the kubelet sees of it."""

from __future__ import annotations

import click

from pinfold.adapters.machines.source import open_machine
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.agents import agents_node_option
from pinfold.cli.output import color_option, input_errors, machine_option, print_text
from pinfold.cli.progress_line import progress_line
from pinfold.cli.terminal import style
from pinfold.core.machine.kubelet_view import KubeletView, UnseenMachineError, kubelet_view
from pinfold.core.machine.machine import MachineError
from pinfold.render.machine_map import topology_view
from pinfold.render.topology_svg import render_topology_svg
from pinfold.render.topology_text import render_topology


@click.command()
@agents_node_option
@machine_option
@output_option("text", "json", "svg")
@color_option
def topology(machine: str | None, output: Output, color: bool | None) -> None:  # noqa: FBT001 - click
    """Show sockets, NUMA nodes, caches and cores of a machine."""
    view: KubeletView | UnseenMachineError
    with input_errors(MachineError), progress_line("reading the machine"):
        found = open_machine(machine)
    try:
        view = kubelet_view(found)
    except UnseenMachineError as error:
        # Nothing can be planned there, but the hardware is there to be looked at.
        view = error
    if output.is_document:
        from pinfold.planning.machine_document import machine_document  # noqa: PLC0415 - 1.4 ms

        output.tell(machine_document(found))
        return

    shown = topology_view(found, view)
    if output == "svg":
        print_text(render_topology_svg(shown))
    else:
        print_text(render_topology(shown, style(color)))
