"""``pinfold history``: what the agent has decided, moved, lent and repaired."""

from __future__ import annotations

import click

from pinfold.cli.client import Client, socket_option
from pinfold.cli.output import output_option, print_json, print_text
from pinfold.documents.api import History
from pinfold.render.history_text import render_history


@click.command()
@click.argument("pod", metavar="[pod/NAME]", required=False)
@click.option(
    "--kind", "kinds", metavar="KIND", multiple=True, help="Only entries of this kind; repeatable."
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    metavar="N",
    help="Only the newest N.",
)
@socket_option
@output_option("text", "json")
def history(
    pod: str | None, kinds: tuple[str, ...], limit: int, *, socket: str, output: str
) -> None:
    """Print what the agent has decided, moved, lent and repaired; the newest last.

    Of one pod, pod/NAME or NAMESPACE/NAME or its uid, or of the whole node.  The kinds are in the
    reference of the API.  JSON has the documents of the entries, the newest first.
    """
    name = None if pod is None else pod.removeprefix("pod/").removeprefix("pods/")
    query = {"pod": name, "kind": ",".join(kinds) or None, "limit": limit}
    client = Client(socket, timeout=30.0)
    told = client.get("/v1/history", **query)
    if output == "json":
        print_json(told)
        return
    entries = client.understood(told, History).entries
    if entries:
        print_text(render_history(entries))
    else:
        click.echo("nothing has happened that is asked for", err=True)
