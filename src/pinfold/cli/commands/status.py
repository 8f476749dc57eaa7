"""``pinfold status``: the live node map of the agent."""

from __future__ import annotations

from typing import Final

import click
from msgspec.structs import replace

from pinfold.cli.client import Client, socket_option
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.agents import agents_node_option
from pinfold.cli.options.pods import all_namespaces_option, check_whose, namespace_filter_option
from pinfold.cli.output import color_option, each_pod_option, print_text
from pinfold.cli.terminal import style
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.formats.event_stream import SILENCE
from pinfold.render.plan_view import PlanView
from pinfold.render.svg import render_plan_svg
from pinfold.render.terminal import Style
from pinfold.render.text import render_plan
from pinfold.views.status import Hardware, status_view

_SHOWN: Final = 5


@click.command()
@agents_node_option
@socket_option
@click.option(
    "--watch",
    "-w",
    is_flag=True,
    help="Keep it up to date: on the whole screen of a terminal until q; elsewhere the text again "
    "after each change, or with -o json one event in each line.",
)
@click.option(
    "--ready",
    is_flag=True,
    help="Only say whether the agent is at work, in one line.",
)
@namespace_filter_option
@all_namespaces_option
@output_option("text", "json", "wide", "name", "svg", "html")
@each_pod_option
@color_option
def status(  # noqa: PLR0913 - the options, one each
    *,
    socket: str,
    watch: bool,
    ready: bool,
    namespace: str | None,
    all_namespaces: bool,
    output: Output,
    each_pod: bool,
    color: bool | None,
) -> None:
    """Show who owns which CPU, and how the pods are.

    With --namespace only the pods of that namespace are listed; the map still shows all of them.
    """
    check_whose(namespace, all_namespaces=all_namespaces)
    client = Client(socket, timeout=30.0)
    if ready:
        if watch:
            raise click.UsageError("--ready and --watch exclude each other")
        client.get("/readyz")
        click.echo("ready")
        return
    if watch:
        if output in {"svg", "html"}:
            raise click.UsageError(f"--watch follows in text or documents, and -o {output} is one")
        _watch(Client(socket, SILENCE), output, namespace, each_pod=each_pod, color=color)
        return
    _print(client, output, namespace, each_pod=each_pod, color=color)


def _watch(
    client: Client, output: Output, namespace: str | None, *, each_pod: bool, color: bool | None
) -> None:
    from pinfold.cli.watch.watching import Watching  # noqa: PLC0415 - 8 ms

    def draw(status: Status, machine: Hardware, node: Node, on: Style, part: str) -> str:
        view = _view(status, machine, node, namespace, each_pod=each_pod)
        return _drawn(view, output, on, part)

    watching = Watching(client, draw, color)
    if output == "text" and watching.has_screen:
        watching.on_screen()
    else:
        watching.as_text(output, namespace)


def _print(
    client: Client, output: Output, namespace: str | None, *, each_pod: bool, color: bool | None
) -> None:
    if output.is_document:
        told = client.get("/v1/status")
        if namespace is None:
            output.tell(told)
            return
        status = client.understood(told, Status)
        _tell_of_nobody(namespace, status)
        pods = [
            as_told
            for as_told, pod in zip(told["pods"], status.pods, strict=True)
            if pod.namespace == namespace
        ]
        output.tell({**told, "pods": pods})
    else:
        print_text(_text(client, output, namespace, each_pod=each_pod, color=color))


def _tell_of_nobody(namespace: str | None, status: Status) -> None:
    """Say that a namespace has no pods: a name that is misspelt has none either."""
    there = sorted({pod.namespace for pod in status.pods})
    if namespace is None or namespace in there:
        return
    others = f"; there are pods in {', '.join(there[:_SHOWN])}" if there else ""
    more = " and others" if len(there) > _SHOWN else ""
    click.echo(f"note: no pods in namespace {namespace}{others}{more}", err=True)


def _text(
    client: Client, output: Output, namespace: str | None, *, each_pod: bool, color: bool | None
) -> str:
    status = client.read("/v1/status", Status)
    _tell_of_nobody(namespace, status)
    machine, node = Hardware.told(client.get("/v1/machine")), client.read("/v1/node", Node)
    view = _view(status, machine, node, namespace, each_pod=each_pod)
    return _drawn(view, output, style(color))


def _view(
    status: Status, on: Hardware, node: Node, namespace: str | None, *, each_pod: bool
) -> PlanView:
    view = status_view(status, on, node)
    if not view.pins:
        return view
    rows = zip(view.pods, status.pods, strict=True)
    pods = tuple(row for row, pod in rows if namespace in (None, pod.namespace))
    return replace(view, pods=pods, each=each_pod)


def _drawn(view: PlanView, output: Output, on: Style, part: str = "") -> str:
    if output == "svg":
        return render_plan_svg(view)
    if output == "html":
        from pinfold.cli.pages import page_of_status  # noqa: PLC0415 - 80 ms

        return page_of_status(view)
    return render_plan(view, on, part)
