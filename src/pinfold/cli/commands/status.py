"""``pinfold status``: the live node map of the agent."""

from __future__ import annotations

import sys
import time

import click
from msgspec.structs import replace

from pinfold.cli.client import Client, socket_option
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.agents import agents_node_option
from pinfold.cli.options.pods import all_namespaces_option, check_whose, namespace_option
from pinfold.cli.output import color_option, each_pod_option, print_text
from pinfold.cli.terminal import style
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.render.svg import render_plan_svg
from pinfold.render.text import render_plan
from pinfold.views.status import Hardware, status_view


@click.command()
@agents_node_option
@socket_option
@click.option("--watch", "-w", is_flag=True, help="Show it again each second, until Ctrl-C.")
@click.option(
    "--ready",
    is_flag=True,
    help="Say no more than whether the agent is at work, in one line.",
)
@namespace_option
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

    With --namespace the pods of that one are listed; the map has all of them.
    """
    check_whose(namespace, all_namespaces=all_namespaces)
    client = Client(socket, timeout=30.0)
    if ready:
        if watch:
            raise click.UsageError("--ready and --watch exclude each other")
        client.get("/readyz")
        click.echo("ready")
        return
    if not watch:
        _print(client, output, namespace, each_pod=each_pod, color=color)
        return
    while True:
        text = _text(client, output, namespace, each_pod=each_pod, color=color)
        if sys.stdout.isatty():
            # Home, the new text with each line's rest cleared, then everything below cleared.
            text = "\033[H" + text.replace("\n", "\033[K\n") + "\033[J"
        sys.stdout.write(text)
        sys.stdout.flush()
        time.sleep(1.0)


def _print(
    client: Client, output: Output, namespace: str | None, *, each_pod: bool, color: bool | None
) -> None:
    if output.is_document:
        told = client.get("/v1/status")
        if namespace is None:
            output.tell(told)
            return
        status = client.understood(told, Status)
        pods = [
            as_told
            for as_told, pod in zip(told["pods"], status.pods, strict=True)
            if pod.namespace == namespace
        ]
        output.tell({**told, "pods": pods})
    else:
        print_text(_text(client, output, namespace, each_pod=each_pod, color=color))


def _text(
    client: Client, output: Output, namespace: str | None, *, each_pod: bool, color: bool | None
) -> str:
    status = client.read("/v1/status", Status)
    view = status_view(
        status, Hardware.told(client.get("/v1/machine")), client.read("/v1/node", Node)
    )
    if view.pins:
        rows = zip(view.pods, status.pods, strict=True)
        view = replace(
            view,
            pods=tuple(row for row, pod in rows if namespace in (None, pod.namespace)),
            each=each_pod,
        )
    if output == "svg":
        return render_plan_svg(view)
    if output == "html":
        from pinfold.cli.pages import status_page  # noqa: PLC0415 - 80 ms

        return status_page(view)

    return render_plan(view, style(color))
