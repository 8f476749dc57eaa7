"""``pinfold rebalance``: better places for those who run."""

from __future__ import annotations

from typing import Any

import click

from pinfold.admission.moves import rebalance_document
from pinfold.cli.client import RefusedError
from pinfold.cli.node import load_request, placed_pods
from pinfold.cli.node_options import node_options, resize_option
from pinfold.cli.output import color_option, output_option, print_json, print_text
from pinfold.cli.terminal import style
from pinfold.cli.views.moves import moves_view
from pinfold.cli.views.plan import plan_view, planned_on
from pinfold.core.moves.owners import MoveError
from pinfold.documents.move_plan import MovePlan
from pinfold.planning.plan_document import plan_document
from pinfold.render.moves import MovesView, render_moves, render_moves_svg


@click.command()
@click.argument("manifests", nargs=-1, metavar="[MANIFEST...]")
@click.option("--dry-run", is_flag=True, help="Say what would move, and why; change nothing.")
@resize_option
@node_options
@output_option("text", "json", "svg")
@color_option
def rebalance(
    manifests: tuple[str, ...],
    resizes: tuple[str, ...],
    output: str,
    color: bool | None,  # noqa: FBT001 - click
    *,
    dry_run: bool,
    **node: Any,  # noqa: ANN401 - the node options
) -> None:
    """Move containers to better CPUs while they run: fewer NUMA nodes, caches and cores.

    With MANIFEST... and --dry-run: what would move once these pods are placed as by pinfold plan.
    """
    if not manifests or not dry_run:
        raise click.UsageError("say what runs: --dry-run with manifests")
    view, document = _planned(manifests, resizes, node)
    if output == "json":
        print_json(document)
    elif output == "svg":
        print_text(render_moves_svg(view))
    else:
        print_text(render_moves(view, style(color)))


def _planned(
    manifests: tuple[str, ...], resizes: tuple[str, ...], node: dict[str, Any]
) -> tuple[MovesView, MovePlan]:
    request = load_request(manifests, node)
    placed = placed_pods(request.planner, request.pods, resizes)
    try:
        found = request.planner.rebalance(placed)
    except MoveError as error:
        raise RefusedError(0, str(error)) from None
    names = {one.pod.uid: f"{one.pod.namespace}/{one.pod.name}" for one in placed.pods}
    document = rebalance_document(found, "rebalance", names)
    view = plan_view(plan_document(placed, request.notes), planned_on(placed))
    return moves_view(document, view), document
