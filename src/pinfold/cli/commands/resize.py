"""``pinfold resize``: another number of exclusive CPUs for a running container."""

from __future__ import annotations

import click

from pinfold.cli.client import Client, RefusedError, Seconds, pod_path, socket_option
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.pods import namespace_option
from pinfold.cli.output import Refused
from pinfold.core.moves.resize_wish import ResizeError, cpu_count, other_place, place_of
from pinfold.documents.api import ResizeAnswer

_NOT_FOUND = 404


def _cpus(_context: click.Context, _option: click.Parameter, text: str) -> int:
    try:
        return cpu_count(text)
    except ResizeError as error:
        raise click.BadParameter(str(error)) from None


def _place(
    _context: click.Context, _argument: click.Parameter, text: str
) -> tuple[str, str | None]:
    try:
        return place_of(text)
    except ResizeError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("place", metavar="pod/NAME[/CONTAINER]", callback=_place)
@click.option("-c", "--container", metavar="NAME", help="Needed where the pod has several.")
@click.option("--cpus", callback=_cpus, metavar="N", required=True, help="How many it is to have.")
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True, max=1e9),
    metavar="SECONDS",
    help="Stop waiting after that long, with an error; what was begun goes on.",
)
@click.option("--no-wait", is_flag=True, help="Return as soon as it is begun.")
@namespace_option
@output_option("text", "json")
@socket_option
def resize(  # noqa: PLR0913, PLR0917 - click
    place: tuple[str, str | None],
    container: str | None,
    cpus: int,
    timeout: float | None,
    namespace: str | None,
    output: Output,
    socket: str,
    *,
    no_wait: bool,
) -> None:
    """Give a running container more or fewer CPUs.

    The container keeps the CPUs that it was admitted with. Before it loses CPUs, the application is
    told, and has its grace period. NAMESPACE/NAME and pod/NAMESPACE/NAME/CONTAINER also give the
    namespace.
    """
    pod, named = place
    if named is not None and container not in {None, named}:
        raise click.UsageError(f"two containers: {named} and {container}")
    container = container or named
    amount = {"cpu": str(cpus)}
    one: dict[str, object] = {"resources": {"requests": amount, "limits": amount}}
    if container is not None:
        one["name"] = container
    client = Client(socket, timeout)
    try:
        told = client.patch(
            f"/v1/pods/{pod_path(pod, namespace)}",
            {"spec": {"containers": [one]}},
            wait="false" if no_wait else None,
        )
    except RefusedError as error:
        other = other_place(*place) if error.status == _NOT_FOUND else None
        if other is None:
            raise
        problem = f"{error.problem}; {other[0]} is {other[1]}"
        raise RefusedError(error.status, problem, error.remedy) from None
    answer = client.understood(told, ResizeAnswer)
    if output.is_document:
        output.tell(answer)
    elif answer.feasible:
        click.echo(f"{answer.pod} {answer.container}: {_said(answer)}")
    if not answer.feasible:
        raise Refused(f"{answer.pod} {answer.container}: {answer.reason}: {answer.message}")


def _said(answer: ResizeAnswer) -> str:
    if answer.before == answer.after:
        return f"CPUs {answer.after}, as before"
    return f"CPUs {answer.before} -> {answer.after}"
