"""``pinfold resize``: another number of exclusive CPUs for a running container."""

from __future__ import annotations

import click

from pinfold.cli.client import Client, RefusedError, Seconds, pod_path, socket_option
from pinfold.cli.output import output_option, print_json
from pinfold.documents.api import ResizeAnswer


@click.command()
@click.argument("name", metavar="pod/NAME")
@click.option("--container", metavar="NAME", help="Needed where the pod has several.")
@click.option(
    "--cpus", type=click.IntRange(min=1), metavar="N", required=True, help="How many it is to have."
)
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True, max=1e9),
    metavar="SECONDS",
    help="Give up to wait; what was begun goes on.",
)
@click.option("--no-wait", is_flag=True, help="Return as soon as it is begun.")
@output_option("text", "json")
@socket_option
def resize(  # noqa: PLR0913, PLR0917 - click
    name: str,
    container: str | None,
    cpus: int,
    timeout: float | None,
    output: str,
    socket: str,
    *,
    no_wait: bool,
) -> None:
    """Give a running container more or fewer CPUs of its own, while it runs.

    It keeps the CPUs that it was admitted with.  Where fewer are left to it, the application is
    told first, and has its grace period.  Exit status 1 when it cannot be done; nothing is changed
    then.
    """
    amount = {"cpu": str(cpus)}
    one: dict[str, object] = {"resources": {"requests": amount, "limits": amount}}
    if container is not None:
        one["name"] = container
    client = Client(socket, timeout)
    told = client.patch(
        f"/v1/pods/{pod_path(name)}",
        {"spec": {"containers": [one]}},
        wait="false" if no_wait else None,
    )
    answer = client.understood(told, ResizeAnswer)
    if output == "json":
        print_json(answer)
    elif answer.feasible:
        click.echo(f"{answer.pod} {answer.container}: {_said(answer)}")
    if not answer.feasible:
        raise RefusedError(0, f"{answer.pod} {answer.container}: {answer.reason}: {answer.message}")


def _said(answer: ResizeAnswer) -> str:
    if answer.before == answer.after:
        return f"CPUs {answer.after}, as before"
    return f"CPUs {answer.before} -> {answer.after}"
