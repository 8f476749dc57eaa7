"""What ``explain`` is asked about manifests: one pod, some, or all that are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from pinfold.cli.forms import Output
from pinfold.cli.node import Request, load_request
from pinfold.cli.output import input_errors, print_text
from pinfold.cli.progress_line import progress_line
from pinfold.cli.terminal import style
from pinfold.core.machine.machine import MachineError
from pinfold.core.pod.named import UnknownPodError, pods_named
from pinfold.core.pod.owner import PodsName
from pinfold.documents.explanation import Explanation
from pinfold.planning.explaining.decision import explain_pod
from pinfold.planning.explaining.document import explain_document
from pinfold.planning.explaining.several import explain_several, explanations_document
from pinfold.planning.plan_document import planned_config
from pinfold.render.explain_text import render_explain, render_rejections, render_several
from pinfold.views.explain import Printed, explain_view, several_view
from pinfold.views.node import policies


def explain_planned(
    files: tuple[str, ...],
    names: tuple[PodsName, ...],
    node: Mapping[str, Any],
    printed: Printed,
    output: Output,
) -> None:
    """Print why pods of manifests are placed as they are: those named, or all rejected ones."""
    request = load_request(files, node, pods=names)
    planner = request.planner
    config = planned_config(planner.config)
    policy = policies(config, config.memory_manager_policy, config.topology_manager_scope)
    if len(names) == 1 and names[0].kind == "Pod":
        document = _one(request, names[0])
        if output.is_document:
            output.tell(document)
            return
        view = explain_view(document, policy, planner.view.topology)
        view = replace(view, notes=(*view.notes, *request.notes_below))
        print_text(render_explain(view, style(printed.color), hints=printed.hints))
        return
    _several(request, names, policy, printed, output)


def _one(request: Request, name: PodsName) -> Explanation:
    with input_errors(MachineError, UnknownPodError), progress_line("explaining"):
        [pod] = pods_named(name, request.pods, request.owners)
        explanation = explain_pod(request.planner, request.pods, pod.full_name)
    return explain_document(request.planner, explanation)


def _several(
    request: Request, names: tuple[PodsName, ...], policy: str, printed: Printed, output: Output
) -> None:
    with input_errors(MachineError, UnknownPodError), progress_line("explaining"):
        chosen = {
            pod.uid for name in names for pod in pods_named(name, request.pods, request.owners)
        }
        several = explain_several(
            request.planner,
            request.pods,
            lambda decision: decision.pod.uid in chosen if names else not decision.admitted,
        )
    document = explanations_document(request.planner, several, request.notes)
    if output.is_document:
        output.tell(document)
        return
    shown = replace(document, notes=request.notes_below)
    view, how = several_view(shown, policy, request.planner.view.topology), style(printed.color)
    if names or printed.hints:
        print_text(render_several(view, how, hints=printed.hints))
    else:
        print_text(render_rejections(view, how))
