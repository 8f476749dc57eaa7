"""``pinfold apply`` and ``pinfold delete``: pods of the agent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click

from pinfold.adapters.kubernetes.files import ManifestError, file_documents, manifest_files
from pinfold.cli.client import Client, NoAgentError, RefusedError, pod_path, socket_option
from pinfold.cli.output import InputError, input_errors, output_option, print_json

_CONFLICT = 409
_UNAVAILABLE = 503
_SILENCE = 3.0
"""Seconds after which somebody who waits wants to know what for."""


@click.command()
@click.argument("manifests", nargs=-1, required=True, metavar="FILE...")
@socket_option
@output_option("text", "json")
def apply(manifests: tuple[str, ...], socket: str, output: str) -> None:
    """Run the pods of FILE... (a file, a folder, or - for standard input).

    Only Pods run here, and their containers need a command.  Exit status 1 when one was rejected.
    """
    with input_errors(ManifestError):
        pods = list(_pods(manifests))
    client = Client(socket)
    answers = []
    rejected = False
    for manifest in pods:
        pod = client.post("/v1/pods", manifest)
        rejected |= pod["phase"] == "Failed"
        answers.append(pod)
        if output == "text":
            click.echo(_line(pod))
    if output == "json":
        print_json({"version": 1, "pods": answers})
    if rejected:
        raise SystemExit(1)


def _pods(paths: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for path in manifest_files(paths):
        for document in file_documents(path):
            content = document.content
            items = content.get("items") if isinstance(content, dict) else None
            for item in items if isinstance(items, list) else [content]:
                kind = item.get("kind") if isinstance(item, dict) else None
                if kind != "Pod":
                    raise InputError(
                        f"{path}: line {document.line}: {kind or 'not a Kubernetes object'}: only "
                        "Pods run here; write its template as a Pod"
                    )
                yield item


def _line(pod: dict[str, Any]) -> str:
    name = f"pod/{pod['name']}"
    if pod["namespace"] != "default":
        name = f"{name} in {pod['namespace']}"
    if pod["phase"] == "Failed":
        return f"{name} rejected: {pod['reason']}: {pod['message']}"
    owned = [
        f"{container['name']} {container['cpus']}"
        for container in pod["containers"]
        if container["exclusive"]
    ]
    return f"{name} admitted" + (f": {', '.join(owned)}" if owned else " to the shared pool")


@click.command()
@click.argument("names", nargs=-1, metavar="pod/NAME...")
@click.option("--all", "everything", is_flag=True, help="All pods.")
@click.option(
    "--grace", type=click.FloatRange(min=0), metavar="SECONDS", help="From SIGTERM to SIGKILL."
)
@socket_option
def delete(names: tuple[str, ...], *, everything: bool, grace: float | None, socket: str) -> None:
    """End pods, and wait until they are gone and their CPUs are free."""
    if everything == bool(names):
        raise click.UsageError("name the pods to delete, or give --all")
    client = Client(socket)
    if everything:
        pods = client.get("/v1/pods")["pods"]
        names = tuple(f"{pod['namespace']}/{pod['name']}" for pod in pods)
    for name in names:
        path = pod_path(name)
        why = threading.Timer(_SILENCE, _tell_what_is_waited_for, (socket,))
        why.daemon = True
        why.start()
        try:
            client.delete(f"/v1/pods/{path}", grace=grace)
        except RefusedError as error:
            if everything and error.status == 404:
                continue
            raise
        finally:
            why.cancel()
        click.echo(f"pod/{path.removeprefix('default/')} deleted")


def _tell_what_is_waited_for(socket: str) -> None:
    """Say why a pod does not go, where the agent knows: its runtime may be away for hours."""
    with suppress(NoAgentError):
        try:
            Client(socket, timeout=_SILENCE).get("/readyz")
        except RefusedError as error:
            if error.status == _UNAVAILABLE:
                click.echo(f"note: still waiting: {error.message}", err=True)
