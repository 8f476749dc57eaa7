"""``pinfold history``: what the agent has decided, moved, lent and repaired."""

from __future__ import annotations

from typing import Any, Final

import click

from pinfold.cli.client import Client, socket_option
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.agents import agents_node_option
from pinfold.cli.options.pods import all_namespaces_option, check_whose, namespace_filter_option
from pinfold.cli.output import print_text
from pinfold.documents.api import History
from pinfold.render.history_text import KINDS, render_history

_MOST: Final = 1000
"""How many entries an agent tells at once."""


def _known(
    _context: click.Context, _option: click.Parameter, kinds: tuple[str, ...]
) -> tuple[str, ...]:
    """The kinds, each alone; commas may be between them."""
    asked = tuple(kind for one in kinds for kind in one.split(",") if kind)
    for kind in asked:
        if kind not in KINDS:
            raise click.BadParameter(f"{kind!r} is none; there are {', '.join(KINDS)}")
    return asked


@click.command()
@click.argument("pod", metavar="[pod/NAME]", required=False)
@click.option(
    "--kind",
    "kinds",
    metavar="KIND",
    multiple=True,
    callback=_known,
    help="Only entries of this kind; repeatable.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=100,
    show_default=True,
    metavar="N",
    help="Only the newest N.",
)
@namespace_filter_option
@all_namespaces_option
@agents_node_option
@socket_option
@output_option("text", "json")
def history(  # noqa: PLR0913 - the options, one each
    pod: str | None,
    kinds: tuple[str, ...],
    limit: int,
    *,
    namespace: str | None,
    all_namespaces: bool,
    socket: str,
    output: Output,
) -> None:
    """Print what the agent has decided and done.

    It tells of one pod (pod/NAME, NAMESPACE/NAME or its uid), of the pods of a namespace, or of the
    whole node. The newest entry comes last; in JSON, which has whole documents, it comes first. The
    reference of the API lists the kinds of entries.
    """
    check_whose(namespace, all_namespaces=all_namespaces)
    name = None if pod is None else pod.removeprefix("pod/").removeprefix("pods/")
    if name is not None and namespace is not None and "/" not in name:
        name = f"{namespace}/{name}"
    within = namespace if pod is None else None
    query = {"pod": name, "namespace": within, "kind": ",".join(kinds) or None, "limit": limit}
    client = Client(socket, timeout=30.0)
    told = client.get("/v1/history", **query)
    if within is not None:
        told = _of_namespace(client, told, within)
    if output.is_document:
        output.tell(told)
        return
    entries = client.understood(told, History).entries
    if entries:
        print_text(render_history(entries))
    else:
        click.echo("nothing has happened that is asked for", err=True)


def _of_namespace(client: Client, told: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The entries that are about pods of a namespace, of an agent that knows none here as well."""
    entries = client.understood(told, History).entries
    of_it = [
        as_told
        for as_told, one in zip(told["entries"], entries, strict=True)
        if one.pod is not None and one.pod.startswith(f"{namespace}/")
    ]
    if len(of_it) < len(entries):
        click.echo(
            f"note: this agent is of a version that tells no namespace apart: these are of the "
            f"newest {len(entries)} entries",
            err=True,
        )
    return {**told, "entries": of_it}
