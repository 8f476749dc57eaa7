"""``pinfold explain``: why a pod got its CPUs, or was rejected."""

from __future__ import annotations

from typing import Any

import click

from pinfold.cli.node import load_request, manifest_arguments, node_options
from pinfold.cli.output import (
    color_option,
    input_errors,
    output_option,
    print_json,
    print_text,
    style,
)


@click.command()
@manifest_arguments
@click.option("--pod", metavar="NAME", required=True, help="The pod: NAME or NAMESPACE/NAME.")
@node_options
@output_option("text", "json")
@color_option
def explain(
    manifests: tuple[str, ...],
    pod: str,
    output: str,
    color: bool | None,  # noqa: FBT001 - click
    **node: Any,  # noqa: ANN401 - the node options
) -> None:
    """Say why a pod of MANIFEST... gets the CPUs it gets, or why it is rejected.

    The pods before it are placed first. For a rejected pod the nearest changes that would admit
    it are named; each of them has been tried.
    """
    from pinfold.planning.explain import (  # noqa: PLC0415 - after --help
        UnknownPodError,
        explain_document,
        explain_pod,
    )

    request = load_request(manifests, node)
    with input_errors(UnknownPodError):
        explanation = explain_pod(request.planner, request.pods, pod)
    if output == "json":
        print_json(explain_document(request.planner, explanation))
        return
    from pinfold.cli.views import explain_view  # noqa: PLC0415
    from pinfold.render.explain_text import render_explain  # noqa: PLC0415

    print_text(render_explain(explain_view(request.planner, explanation), style(color)))
