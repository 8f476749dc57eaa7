"""``pinfold plan``: the kubelet's placement of some pods on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from pinfold.admission.model import NodeError
from pinfold.cli.node import Request, load_config, load_request
from pinfold.cli.node_options import manifest_arguments, node_options
from pinfold.cli.output import (
    color_option,
    input_errors,
    output_option,
    print_json,
    print_text,
)
from pinfold.cli.terminal import style
from pinfold.cli.views.plan import PlannedOn, plan_view
from pinfold.core.machine.machine import MachineError
from pinfold.core.pod.pod import Pod
from pinfold.planning.node_use import unlocated_devices
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Plan, Planner
from pinfold.planning.resizes import ResizeError, ResizeWish
from pinfold.render.text import render_plan


@click.command()
@manifest_arguments
@node_options
@click.option(
    "--compare",
    metavar="FILE",
    help="Plan the same pods under this second KubeletConfiguration too, and show what changes.",
)
@click.option(
    "--resize",
    "resizes",
    metavar="pod/NAME[/CONTAINER]=N",
    multiple=True,
    help="Resize a container to N exclusive CPUs once all pods are placed; in the order given, and "
    "all else is shown as it is afterwards.",
)
@output_option("text", "json", "svg")
@color_option
def plan(
    manifests: tuple[str, ...],
    compare: str | None,
    resizes: tuple[str, ...],
    output: str,
    color: bool | None,  # noqa: FBT001 - click
    **node: Any,  # noqa: ANN401 - the node options
) -> None:
    """Place the pods of MANIFEST... on a machine as its kubelet would.

    MANIFEST is a file, a folder of files, or - for standard input.
    """
    request = load_request(manifests, node)
    request = replace(request, notes=(*request.notes, *_unknown_resources(request)))
    with input_errors(ResizeError, prefix="--resize: "):
        wishes = [ResizeWish.parse(text) for text in resizes]
    placed = _placed(request.planner, request.pods, wishes)
    if compare is not None:
        _compare(request, placed, (compare, wishes), output, color=color)
        return
    document = plan_document(placed, request.notes)
    if output == "json":
        print_json(document)
    else:
        view = plan_view(document, _on(placed))
        if output == "svg":
            from pinfold.render.svg import render_plan_svg  # noqa: PLC0415 - 0.5 ms

            print_text(render_plan_svg(view))
        else:
            print_text(render_plan(view, style(color)))


def _placed(planner: Planner, pods: Sequence[Pod], wishes: Sequence[ResizeWish]) -> Plan:
    placed = planner.plan(pods)
    with input_errors(ResizeError, prefix="--resize: "):
        for wish in wishes:
            placed = planner.resize(placed, wish)
    return placed


def _unknown_resources(request: Request) -> Iterator[str]:
    names = request.planner.unknown_resources(request.pods)
    if names:
        are, them = ("are", "them") if len(names) > 1 else ("is", "it")
        yield f"{', '.join(names)} {are} not known here: planned without {them} (--devices)"


def _compare(
    request: Request,
    before: Plan,
    other: tuple[str, Sequence[ResizeWish]],
    output: str,
    *,
    color: bool | None,
) -> None:
    config_file, wishes = other
    config, notes = load_config(config_file, {})
    with input_errors(MachineError, NodeError):
        planner = Planner(request.planner.machine, config, devices=request.planner.devices)
    after = _placed(planner, request.pods, wishes)
    if output == "json":
        from pinfold.planning.compare import compare_document  # noqa: PLC0415 - 0.2 ms

        told = list(dict.fromkeys((*request.notes, *notes)))
        print_json(compare_document(before, after, told))
        return
    from pinfold.cli.views.compare import compare_view  # noqa: PLC0415 - 0.8 ms
    from pinfold.render.compare import render_compare, render_compare_svg  # noqa: PLC0415 - 0.8 ms

    names = (request.config_name, Path(config_file).name)
    sides = (plan_document(before, request.notes), plan_document(after, notes))
    view = compare_view(*sides, (_on(before), _on(after)), names)
    text = render_compare_svg(view) if output == "svg" else render_compare(view, style(color))
    print_text(text)


def _on(plan: Plan) -> PlannedOn:
    planner = plan.planner
    return PlannedOn(planner.machine, planner.view, unlocated_devices(plan.state))
