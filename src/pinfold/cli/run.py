"""``pinfold run``: one command on CPUs of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import Any

import click

from pinfold.cli.client import Client, NoAgentError, RefusedError, agent_runs, socket_option
from pinfold.cli.output import InputError, input_errors
from pinfold.cli.run_manifest import Wishes, near_locality, run_manifest
from pinfold.core.pod.near_wishes import device_names
from pinfold.core.pod.workload import FACTS, application_environment
from pinfold.core.values.cpuset import CPUSet


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--cpus", metavar="N", help="CPUs: a whole number is exclusive, 500m a share.")
@click.option("--memory", metavar="SIZE", help="Memory limit, such as 4Gi; without it no limit.")
@click.option(
    "--near",
    metavar="DEVICE,...",
    help="CPUs at the NUMA node of these: interfaces, disks, PCI addresses.",
)
@click.option("--near-required", is_flag=True, help="Rather do not run than run elsewhere.")
@click.option("--name", metavar="NAME", help="The pod's name; without it made of the command's.")
@click.option("--env", "-e", metavar="NAME=VALUE", multiple=True, help="Set a variable.")
@click.option("--workdir", "-w", metavar="DIR", help="Where it runs; without it here.")
@click.option("--detach", "-d", is_flag=True, help="Leave it to the agent, and return at once.")
@click.option(
    "--restart",
    type=click.Choice(["Always", "OnFailure", "Never"]),
    default="Never",
    show_default=True,
    help="With --detach: whether it is started again when it ends.",
)
@socket_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(  # noqa: PLR0913 - the options, one each
    *,
    cpus: str | None,
    memory: str | None,
    near: str | None,
    near_required: bool,
    name: str | None,
    env: tuple[str, ...],
    workdir: str | None,
    detach: bool,
    restart: str,
    socket: str,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND on CPUs that nobody else uses, and exit with its status.

    Signals pass through.  Without an agent the command is pinned by its affinity only, and what is
    weaker about that is said.
    """
    wishes = Wishes(
        name=name or _name_of(command[0]),
        command=command,
        cpus=cpus,
        memory=memory,
        env=_variables(env),
        working_dir=os.path.abspath(workdir or os.curdir),  # noqa: PTH100 - keeps links as typed
        restart=restart if detach else "Never",
        whole_environment=not detach,
        near=_devices(near, required=near_required),
        near_required=near_required,
    )
    manifest = run_manifest(wishes)
    if not _agent_runs(socket):
        if detach:
            raise InputError(f"--detach needs an agent, and none listens on {socket}")
        from pinfold.cli.run_alone import run_alone  # noqa: PLC0415 - the weaker way

        raise SystemExit(run_alone(manifest, wishes, socket))
    if wishes.near:
        from pinfold.adapters.machines.source import open_machine  # noqa: PLC0415 - only for --near

        # An agent keeps to a wish as far as it can; a misspelt name is an error all the same.
        with input_errors():
            machine = open_machine(None)
        near_locality(wishes, machine)
    client = Client(socket)
    if detach:
        pod = client.post("/v1/pods", manifest)
        _refuse_rejected(pod)
        click.echo(f"pod/{pod['name']}")
        return
    from pinfold.cli.foreground import Foreground  # noqa: PLC0415 - not for --detach

    foreground = Foreground(wishes.command, wishes.working_dir)
    try:
        answer = client.post("/v1/run", {"manifest": manifest, "pid": foreground.pid})
        _refuse_rejected(answer)
    except click.ClickException:
        foreground.give_up()
        raise
    status = foreground.run({**_told(answer), **wishes.env})
    # The agent sees the end of the process by itself; only its status has to be told.
    with contextlib.suppress(click.ClickException):
        Client(socket, timeout=5.0).post(f"/v1/run/{answer['uid']}/exit", {"code": status})
    raise SystemExit(status)


def _agent_runs(socket: str) -> bool:
    try:
        return agent_runs(socket)
    except NoAgentError as error:
        raise InputError(
            f"{error.message}. Nothing was run: the pods of an agent outlive it, and CPUs that one "
            "of them owns could be given out again. Where no agent is to come back, remove the "
            "socket"
        ) from None


def _told(pod: dict[str, Any]) -> dict[str, str]:
    """The variables that tell the command its CPUs."""
    (container,) = pod["containers"]
    name = f"{pod['namespace']}/{pod['name']}"
    cpus = CPUSet.parse(container["cpus"]) if container["exclusive"] else None
    return application_environment(name, pod["uid"], container["name"], cpus)


def _refuse_rejected(pod: dict[str, Any]) -> None:
    if pod["phase"] == "Failed":
        raise RefusedError(0, f"{pod['reason']}: {pod['message']}")


def _name_of(program: str) -> str:
    """A pod's name (an RFC 1123 label) that tells the program."""
    base = os.path.basename(program).lower()  # noqa: PTH119 - a text, not a file
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in base).strip("-")[:50]
    return f"{kept or 'run'}-{secrets.token_hex(3)}"


def _devices(text: str | None, *, required: bool) -> tuple[str, ...]:
    if text is None:
        if required:
            raise InputError("--near-required needs --near: the devices to be near to")
        return ()
    try:
        return device_names(text)
    except ValueError as error:
        raise InputError(f"--near: {error}") from None


def _variables(pairs: tuple[str, ...]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InputError(f"--env {pair!r}: expected NAME=VALUE")
        if name in FACTS:
            raise InputError(f"--env {name}: only Pinfold itself sets this; choose another name")
        env[name] = value
    return env
