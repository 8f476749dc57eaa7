"""``pinfold topology``: what the machine is, and what the kubelet sees of it."""

from __future__ import annotations

import click

from pinfold.cli.output import (
    color_option,
    input_errors,
    machine_option,
    output_option,
    print_json,
    print_text,
    style,
)


@click.command()
@machine_option
@output_option("text", "json", "svg")
@color_option
def topology(machine: str | None, output: str, color: bool | None) -> None:  # noqa: FBT001 - click
    """Show sockets, NUMA nodes, caches, cores, threads and memory of a machine."""
    from pinfold.adapters.machines.source import open_machine  # noqa: PLC0415 - after --help
    from pinfold.core.machine.kubelet_view import kubelet_view  # noqa: PLC0415

    with input_errors():
        found = open_machine(machine)
        view = kubelet_view(found)
    if output == "json":
        from pinfold.core.machine.document import machine_document  # noqa: PLC0415

        print_json(machine_document(found, view))
        return
    from pinfold.render.machine_map import topology_view  # noqa: PLC0415

    shown = topology_view(found, view)
    if output == "svg":
        from pinfold.render.topology_svg import render_topology_svg  # noqa: PLC0415

        print_text(render_topology_svg(shown))
    else:
        from pinfold.render.topology_text import render_topology  # noqa: PLC0415

        print_text(render_topology(shown, style(color)))
