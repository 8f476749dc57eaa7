"""``pinfold rebalance``: better places for those who run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pinfold.cli.client import Client, socket_option
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.nodes import node_options, refuse_without_manifests, resize_option
from pinfold.cli.options.pods import manifest_arguments
from pinfold.cli.output import InputError, Refused, color_option, print_text
from pinfold.cli.progress_line import progress_line
from pinfold.cli.terminal import style
from pinfold.core.moves.owners import MoveError
from pinfold.documents.move_plan import REBALANCE, MovePlan
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.render.moves import MovesView, render_moves, render_moves_svg
from pinfold.views.moves import moves_view
from pinfold.views.status import Hardware, status_view

if TYPE_CHECKING:
    from pinfold.planning.planner import ResizedContainer


@click.command()
@manifest_arguments(required=False)
@click.option("--dry-run", is_flag=True, help="Say what would move, and why; change nothing.")
@socket_option
@resize_option
@node_options
@output_option("text", "json", "svg")
@color_option
def rebalance(  # noqa: PLR0913 - the options, one each
    manifests: tuple[str, ...],
    socket: str,
    resizes: tuple[str, ...],
    output: Output,
    color: bool | None,  # noqa: FBT001 - click
    *,
    dry_run: bool,
    **node: Any,  # noqa: ANN401 - the node options
) -> None:
    """Move containers to better CPUs while they run.

    Better CPUs are those on fewer NUMA nodes, caches and cores. It asks the agent, whose policy has
    to be dynamic; with --dry-run it asks what would move.

    With MANIFEST... and --dry-run it asks no agent: it places these pods as pinfold plan does, and
    says what would move then.
    """
    if manifests:
        if not dry_run:
            raise click.UsageError("pods of manifests do not run: add --dry-run")
        view, document = _planned(manifests, resizes, node)
    else:
        refuse_without_manifests((*node, "resizes"))
        view, document = _live(socket, dry_run=dry_run)
    if output.is_document:
        output.tell(document)
    elif output == "svg":
        print_text(render_moves_svg(view))
    else:
        print_text(render_moves(view, style(color)))


def _live(socket: str, *, dry_run: bool) -> tuple[MovesView, MovePlan]:
    """What the agent would move, or has moved, on its node as it was before."""
    client = Client(socket, timeout=None if not dry_run else 60.0)
    status = client.read("/v1/status", Status)
    before = status_view(
        status, Hardware.told(client.get("/v1/machine")), client.read("/v1/node", Node)
    )
    told = client.get("/v1/rebalance") if dry_run else client.post("/v1/rebalance")
    document = client.understood(told, MovePlan)
    return moves_view(document, before), document


def _planned(
    manifests: tuple[str, ...], resizes: tuple[str, ...], node: dict[str, Any]
) -> tuple[MovesView, MovePlan]:
    from pinfold.admission.moves import rebalance_document  # noqa: PLC0415 - 8 ms
    from pinfold.cli.node import load_request, placed_pods  # noqa: PLC0415 - 17 ms
    from pinfold.planning.plan_document import plan_document  # noqa: PLC0415 - 11 ms
    from pinfold.views.plan import plan_view, planned_on  # noqa: PLC0415 - 11 ms

    request = load_request(manifests, node)
    if request.planner.node.cpu_policy is None:
        raise InputError(
            "nobody has CPUs of his own under CPU manager policy none; set cpuManagerPolicy to "
            "dynamic, or for a plan alone to static (--policy static)"
        )
    placed = placed_pods(request.planner, request.pods, resizes)
    try:
        with progress_line("looking for better places"):
            found = request.planner.rebalance(placed)
    except MoveError as error:
        raise Refused(str(error)) from None
    names = {one.pod.uid: one.pod.full_name for one in placed.pods}
    notes = [*map(_resized, placed.resizes)]
    document = rebalance_document(found, REBALANCE, names, notes)
    view = plan_view(plan_document(placed, request.notes), planned_on(placed))
    return moves_view(document, view), document


def _resized(answer: ResizedContainer) -> str:
    """What became of a ``--resize`` before anybody moves."""
    who, decision = f"{answer.pod.full_name} {answer.decision.owner.container}", answer.decision
    if decision.feasible:
        return f"resized before: {who} {decision.before} → {decision.after}"
    return f"not resized: {who} to {answer.cpus} CPUs: {decision.reason}: {decision.message}"
