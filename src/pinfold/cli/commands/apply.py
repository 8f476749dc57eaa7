"""``pinfold apply``: pods for the agent."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pinfold.adapters.kubernetes.files import ManifestError, object_refused
from pinfold.cli.applied_objects import NAMESPACE, POD, QUOTA, objects_in
from pinfold.cli.client import Client, RefusedError, socket_option
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.pods import manifest_arguments, namespace_option
from pinfold.cli.output import InputError, input_errors
from pinfold.cli.start.exit_statuses import REJECTED
from pinfold.core.pod.isolation_levels import IsolationLevel
from pinfold.documents.api import DecidedPod, ObjectName
from pinfold.documents.records import VERSION
from pinfold.documents.status import Container


@click.command()
@manifest_arguments("FILE...")
@namespace_option
@socket_option
@output_option("text", "json", "name")
def apply(manifests: tuple[str, ...], namespace: str | None, socket: str, output: Output) -> None:
    """Run the pods of manifests.

    FILE is a file, a folder of files, or - for standard input. It may contain Pods, ResourceQuotas
    and Namespaces. Quotas are in force before the first pod is decided about; Namespaces need no
    making. If the agent runs plain processes, containers need a command.

    A pod that already runs as its manifest says stays unchanged. If it runs otherwise, a line says
    what differs and what to do. If a pod is rejected or refused, the others run all the same.
    """
    with input_errors(ManifestError):
        found = list(objects_in(manifests, namespace))
    pods = [one for one in found if one.kind == POD]
    objects = [one for one in found if one.kind == QUOTA]
    client = Client(socket)
    answers = []
    running = []
    warned: set[str] = set()
    rejected = False
    if not found:
        raise InputError(f"{', '.join(manifests)}: there is no pod in it")
    applied = []
    for one in found:
        if one.kind == NAMESPACE and output == "text":
            click.echo(f"{one.name} needs no making")
    for one in objects:
        try:
            answer = client.post("/v1/objects", one.manifest)
        except RefusedError as error:
            # Pods that it is to limit must not come in without it.
            problem = f"{one.where}: {one.name}: {error.message}; nothing more is applied"
            raise RefusedError(error.status, problem) from None
        kept = client.understood(answer, ObjectName)
        applied.append(answer)
        for warning in kept.warnings or ():
            click.echo(f"Warning: {one.name}: {warning}", err=True)
        if output == "text":
            within = "" if kept.namespace == "default" else f" in {kept.namespace}"
            click.echo(f"quota/{kept.name}{within} applied")
    for one in pods:
        try:
            answer = client.post("/v1/pods", one.manifest)
        except RefusedError as error:
            told = object_refused(one.where, f"{one.name}: {error.format_message()}")
            click.echo(f"Error: {told}", err=True)
            rejected = True
            continue
        pod = client.understood(answer, DecidedPod)
        rejected |= pod.is_rejected
        answers.append(answer)
        if not pod.is_rejected:
            running.append(answer)
        for warning in pod.warnings:
            # Many pods of one kind say the same; it is told once.
            if warning not in warned:
                warned.add(warning)
                click.echo(f"Warning: {one.name}: {warning}", err=True)
        if output == "text":
            click.echo(_line(pod))
    if output.is_document:
        more = {"objects": applied} if applied else {}
        # A name stands for what is there now, as with kubectl.
        shown = running if output == "name" else answers
        output.tell({"version": VERSION, "pods": shown, **more})
    if rejected:
        raise SystemExit(REJECTED.code)


def _line(pod: DecidedPod) -> str:
    name = f"pod/{pod.name}"
    if pod.namespace != "default":
        name = f"{name} in {pod.namespace}"
    if pod.is_rejected:
        return f"{name} rejected: {pod.reason}: {pod.message}"
    if pod.unchanged is True:
        return f"{name} unchanged"
    owned = [f"{one.name} {one.cpus}" for one in pod.containers if one.exclusive]
    if pod.bubble and pod.bubble.cpus:
        owned += [f"{one.name} {one.cpus} (pod shared pool)" for one in _in_pod_pool(pod)]
    return f"{name} admitted" + (f": {', '.join(owned)}" if owned else " to the shared pool")


def _in_pod_pool(pod: DecidedPod) -> Iterator[Container]:
    """Those who share in what the pod has as a whole."""
    level = IsolationLevel.POD.value
    return (one for one in pod.containers if not one.exclusive and one.isolation == level)
