"""``pinfold logs``: what a container has written."""

from __future__ import annotations

import sys
from typing import Any

import click

from pinfold.cli.client import Client, pod_path, socket_option
from pinfold.cli.options.pods import namespace_option
from pinfold.core.values.duration import DurationError, parse_duration


def _seconds(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = parse_duration(text)
    except DurationError as error:
        raise click.BadParameter(str(error)) from None
    if value < 0:
        raise click.BadParameter("must not be negative")
    return value


@click.command()
@click.argument("pod", metavar="pod/NAME")
@click.option("-f", "--follow", is_flag=True, help="Go on until the container has ended.")
@click.option(
    "-c", "--container", metavar="NAME", help="The container; needed where the pod has several."
)
@click.option("-p", "--previous", is_flag=True, help="Of the attempt before the last restart.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--timestamps", is_flag=True, help="With each line's time before it.")
@click.option(
    "--since", callback=_seconds, metavar="DURATION", help="Only what is newer, such as 10s or 5m."
)
@namespace_option
@socket_option
def logs(  # noqa: PLR0913 - the options, one each
    pod: str,
    *,
    follow: bool,
    container: str | None,
    previous: bool,
    tail: int | None,
    timestamps: bool,
    since: float | None,
    namespace: str | None,
    socket: str,
) -> None:
    """Print what a container has written.

    Standard output and standard error as one. They are kept until the pod is deleted, so also of a
    container that has ended.
    """
    query: dict[str, Any] = {"container": container, "tailLines": tail, "sinceSeconds": since}
    flags = {"follow": follow, "previous": previous, "timestamps": timestamps}
    query |= {name: "true" for name, given in flags.items() if given}
    out = sys.stdout.buffer
    for piece in Client(socket).stream(f"/v1/pods/{pod_path(pod, namespace)}/log", **query):
        out.write(piece)
        out.flush()
