"""``pinfold run``: one command on CPUs of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pinfold.cli.client import (
    Client,
    NoAgentError,
    Seconds,
    agent_runs,
    socket_option,
)
from pinfold.cli.foreground import Foreground
from pinfold.cli.output import InputError, Refused, input_errors
from pinfold.cli.run_waiting import CPUsTakenError, Waiting
from pinfold.core.machine.locality import Locality
from pinfold.core.machine.machine import Machine, MachineError
from pinfold.core.pod.annotation_values import device_names
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.one_command import CONTAINER, Wishes, place_near, run_manifest
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.workload import FACTS, application_environment
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity, QuantityError
from pinfold.documents.api import DecidedPod
from pinfold.linux.own_places import runtime_folder
from pinfold.ports.errors import PortError

if TYPE_CHECKING:
    from pinfold.admission.decision import Decision

FOLDER_VARIABLE: Final = "PINFOLD_RUN_DIR"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--cpus", metavar="N", help="CPUs: a whole number is exclusive, 500m a share.")
@click.option("--memory", metavar="SIZE", help="Memory limit, such as 4Gi; without it no limit.")
@click.option(
    "--near",
    metavar="DEVICE,...",
    help="CPUs at the NUMA node of these: interfaces, disks, PCI addresses.",
)
@click.option("--near-required", is_flag=True, help="If no CPUs there are free, do not run.")
@click.option("--name", metavar="NAME", help="The pod's name; without it made of the command's.")
@click.option("--env", "-e", metavar="NAME=VALUE", multiple=True, help="Set a variable.")
@click.option(
    "--workdir", "-w", metavar="DIR", help="The folder to run it in. Without it: this one."
)
@click.option("--detach", "-d", is_flag=True, help="Leave it to the agent, and return at once.")
@click.option(
    "--restart",
    type=click.Choice(["Always", "OnFailure", "Never"]),
    default="Never",
    show_default=True,
    help="With --detach: whether it is started again when it ends.",
)
@click.option("--wait", is_flag=True, help="If the CPUs are taken, wait until they are free.")
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True, max=1e9),
    metavar="SECONDS",
    help="With --wait: give up after that long, with an error.",
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
    wait: bool,
    timeout: float | None,
    socket: str,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND on CPUs that nobody else uses.

    It exits with the status of COMMAND, and passes signals on to it. Without an agent COMMAND is
    pinned by its affinity only; then a line says what is weaker about that.
    """
    if restart != "Never" and not detach:
        raise InputError("--restart needs --detach: a command in the foreground runs once")
    if timeout is not None and not wait:
        raise InputError("--timeout needs --wait: without it nobody waits for CPUs")
    if workdir is not None and not Path(workdir).is_dir():
        raise InputError(f"--workdir {workdir}: no such folder")
    waiting = Waiting(wait=wait, timeout=timeout)
    wishes = Wishes(
        name=name or _name_of(command[0]),
        command=command,
        cpus=cpus,
        memory=memory,
        env={**(_kept_environment() if detach else {}), **_variables(env)},
        working_dir=os.path.abspath(workdir or os.curdir),  # noqa: PTH100 - keeps links as typed
        restart=restart,
        near=_devices(near, required=near_required),
        near_required=near_required,
    )
    with input_errors(PodError):
        manifest = run_manifest(wishes)
    manifest["metadata"]["uid"] = str(uuid.uuid4())
    if not _agent_runs(socket):
        if detach:
            raise InputError(f"--detach needs an agent, and none listens on {socket}")
        raise SystemExit(_run_alone(manifest, wishes, socket, waiting))
    if wishes.near:
        from pinfold.adapters.machines.source import open_machine  # noqa: PLC0415 - 0.5 ms

        # An agent keeps to a wish as far as it can; a misspelt name is an error all the same.
        with input_errors(MachineError):
            machine = open_machine(None)
        near_locality(wishes, machine)
    client = Client(socket)
    if detach:

        def applied() -> DecidedPod:
            pod = client.understood(client.post("/v1/pods", manifest), DecidedPod)
            if pod.is_rejected:
                raise _refused(pod, wishes, client)
            return pod

        pod = waiting.insist(applied, partial(client.get, "/v1/node"))
        click.echo(f"pod/{pod.name}")
        return
    foreground = Foreground(wishes.command, wishes.working_dir)

    def admitted() -> DecidedPod:
        request = {"manifest": manifest, "pid": foreground.pid}
        answer = client.understood(client.post("/v1/run", request), DecidedPod)
        # What has not run cannot have ended: another phase, also one of another version, is a no.
        if answer.phase not in {"Admitted", "Running"}:
            raise _refused(answer, wishes, client)
        return answer

    try:
        answer = waiting.insist(admitted, partial(client.get, "/v1/node"), foreground.pause)
    except (click.ClickException, SystemExit):
        foreground.give_up()
        raise
    status = foreground.run({**_told(answer), **wishes.env})
    # The agent sees the end of the process by itself; only its status has to be told.
    with contextlib.suppress(click.ClickException):
        Client(socket, timeout=5.0).post(f"/v1/run/{answer.uid}/exit", {"code": status})
    raise SystemExit(status)


def _run_alone(manifest: Mapping[str, Any], wishes: Wishes, socket: str, waiting: Waiting) -> int:
    """Pin the command by affinity, and say what is weaker about that; return its status."""
    # The whole planner, where no agent has one.
    from pinfold.admission.model import NodeError  # noqa: PLC0415 - 11 ms
    from pinfold.agent.alone import Alone  # noqa: PLC0415 - 34 ms

    # One list for all commands of a user, whichever socket they look for an agent on.
    folder = Path(os.environ.get(FOLDER_VARIABLE) or runtime_folder())
    with input_errors(MachineError, NodeError, PodError):
        node = Alone(folder, remedy=f"another folder is given with {FOLDER_VARIABLE}")
        pod = workload_from_api(manifest).pod
    near = near_locality(wishes, node.machine) if wishes.near else None
    near_cpus = None if near is None else near.cpus
    foreground = Foreground(wishes.command, wishes.working_dir)

    def taken() -> Decision:
        decision = node.take(
            pod, manifest, foreground.pid, near_cpus, required=wishes.near_required
        )
        if decision.admitted:
            return decision
        only = f" (--near-required: of CPUs {near_cpus} only)" if wishes.near_required else ""
        raise CPUsTakenError(f"{decision.reason}: {decision.message}{only}", ever=node.others > 0)

    try:
        # Whether one of the others has ended is only seen by looking at the list.
        decision = waiting.insist(taken, object, foreground.pause)
    except PortError as error:
        foreground.give_up()
        raise Refused(str(error)) from None
    except (click.ClickException, SystemExit):
        foreground.give_up()
        raise
    allocation = decision.allocations.get(CONTAINER)
    cpus = None if allocation is None else allocation.cpus
    if cpus is not None:
        click.echo(
            f"pinfold: no agent listens on {socket}: CPUs {cpus} are kept by affinity only. Other "
            "programs are not moved off them, and no limits are enforced.",
            err=True,
        )
    elif asked := [
        f"{option} {value}"
        for option, value in (("--cpus", wishes.cpus), ("--memory", wishes.memory))
        if value is not None
    ]:
        click.echo(
            f"pinfold: no agent listens on {socket}: not enforced: {', '.join(asked)}",
            err=True,
        )
    if near is not None and cpus is not None and not cpus <= near.cpus:
        click.echo(
            f"pinfold: CPUs {cpus - near.cpus} are not near {near.name}, whose CPUs are "
            f"{near.cpus}: not enough of them are free",
            err=True,
        )
    env = application_environment(pod.full_name, pod.uid, CONTAINER, cpus)
    status = foreground.run({**env, **wishes.env})
    try:
        node.give_back(pod.uid)
    except PortError as error:
        click.echo(f"pinfold: {error}", err=True)
    return status


def _agent_runs(socket: str) -> bool:
    try:
        return agent_runs(socket)
    except NoAgentError as error:
        raise InputError(
            f"{error.message}. Nothing was run: the pods of an agent outlive it, and CPUs that one "
            "of them owns could be given out again. Where no agent is to come back, remove the "
            "socket"
        ) from None


def _told(pod: DecidedPod) -> dict[str, str]:
    """The variables that tell the command its CPUs."""
    (container,) = pod.containers
    name = f"{pod.namespace}/{pod.name}"
    cpus = CPUSet.parse(container.cpus) if container.exclusive else None
    return application_environment(name, pod.uid, container.name, cpus)


def _refused(pod: DecidedPod, wishes: Wishes, client: Client) -> Refused:
    if not pod.reason:
        return Refused(f"the pod of the command is {pod.phase}")
    why = f"{pod.reason}: {pod.message}"
    return CPUsTakenError(why, ever=wishes.cpus is None or _may_be_had(wishes.cpus, client))


def _may_be_had(cpus: str, client: Client) -> bool:
    """Whether the node has as many CPUs for pods, whoever has them now."""
    try:
        most = client.get("/v1/node")["allocatable"]["cpu"]
        return Quantity.parse(cpus) <= Quantity.parse(str(most))
    except (click.ClickException, LookupError, TypeError, QuantityError):
        return True  # an agent that does not tell


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


def _kept_environment() -> dict[str, str]:
    """What a detached command is given of the caller's environment: its search path and home."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def near_locality(wishes: Wishes, machine: Machine) -> Locality | None:
    """Where the devices are that ``--near`` names; None, and said, where nobody knows.

    Raises:
        InputError: see :func:`place_near`.
    """
    with input_errors(PodError):
        place = place_near(wishes, machine)
    if place.unknown is None:
        return place
    click.echo(f"pinfold: --near has no effect: {place.unknown}", err=True)
    return None
