"""``pinfold explain``: why a pod got its CPUs, or was rejected."""

from __future__ import annotations

import re
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from pinfold.cli.claim_options import claim_options
from pinfold.cli.client import Client, RefusedError, pod_path, socket_option
from pinfold.cli.node_options import manifest_arguments, node_options
from pinfold.cli.output import (
    color_option,
    input_errors,
    output_option,
    print_json,
    print_text,
)
from pinfold.cli.terminal import style
from pinfold.cli.views.explain import ended_since, explain_view
from pinfold.cli.views.node import policies
from pinfold.core.machine.machine import MachineError
from pinfold.documents.explanation import Explanation
from pinfold.documents.status import Pod
from pinfold.render.explain_text import render_explain

_LABELS: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


@click.command()
@manifest_arguments
@click.option("--pod", metavar="NAME", help="The pod: NAME or NAMESPACE/NAME.")
@socket_option
@node_options
@claim_options
@output_option("text", "json")
@color_option
def explain(
    manifests: tuple[str, ...],
    pod: str | None,
    socket: str,
    output: str,
    color: bool | None,  # noqa: FBT001 - click
    **node: Any,  # noqa: ANN401 - the node options
) -> None:
    """Say why a pod of MANIFEST... gets the CPUs it gets, or why it is rejected.

    With pod/NAME or NAMESPACE/NAME alone: why the agent decided about this pod as it did, also
    when it is gone, and how it has ended since.

    The pods before it are placed first. For a rejected pod the nearest changes that would admit
    it are named; each of them has been tried.
    """
    if pod is None:
        _explain_recorded(manifests, socket, output, color=color)
        return
    from pinfold.cli.node import load_request  # noqa: PLC0415 - 17 ms
    from pinfold.core.pod.named import UnknownPodError  # noqa: PLC0415 - 0.1 ms
    from pinfold.planning.explain import explain_document, explain_pod  # noqa: PLC0415 - 14 ms
    from pinfold.planning.plan_document import planned_config  # noqa: PLC0415 - 11 ms

    request = load_request(manifests, node)
    with input_errors(MachineError, UnknownPodError):
        explanation = explain_pod(request.planner, request.pods, pod)
    document = explain_document(request.planner, explanation)
    if output == "json":
        print_json(document)
        return
    config = planned_config(request.planner.config)
    policy = policies(config, config.memory_manager_policy, config.topology_manager_scope)
    view = explain_view(document, policy, request.planner.view.topology)
    print_text(render_explain(view, style(color)))


def _explain_recorded(
    names: tuple[str, ...], socket: str, output: str, *, color: bool | None
) -> None:
    if len(names) != 1 or not _names_a_pod(names[0]):
        raise click.UsageError(
            "say which pod: --pod NAME with manifests, or pod/NAME or NAMESPACE/NAME of an agent"
        )
    client, path = Client(socket, timeout=30.0), pod_path(names[0])
    told = client.get(f"/v1/explain/{path}")
    document = client.understood(told, Explanation)
    try:
        pod = client.read(f"/v1/pods/{path}", Pod)
    except RefusedError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
    else:
        if ended := ended_since(document, pod):
            told = {**told, "ended": ended}
            document = replace(document, ended=ended)
    if output == "json":
        print_json(told)
        return
    print_text(render_explain(explain_view(document), style(color)))


def _names_a_pod(word: str) -> bool:
    """Whether a word is an agent's pod, and no manifest: ``pod/NAME``, ``NAMESPACE/NAME``."""
    if word.startswith(("pod/", "pods/")):
        return True
    namespace, _, name = word.partition("/")
    return all(map(_LABELS.fullmatch, (namespace, name))) and not Path(word).exists()
