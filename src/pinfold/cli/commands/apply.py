"""``pinfold apply``: pods for the agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from pinfold.adapters.kubernetes.files import ManifestError, file_documents, manifest_files
from pinfold.cli.client import Client, RefusedError, socket_option
from pinfold.cli.output import InputError, input_errors, output_option, print_json
from pinfold.documents.api import DecidedPod, ObjectName
from pinfold.documents.records import VERSION

_QUOTA: Final = "ResourceQuota"
_KINDS: Final = ("Pod", _QUOTA, "Namespace")


@click.command()
@click.argument("manifests", nargs=-1, required=True, metavar="FILE...")
@socket_option
@output_option("text", "json")
def apply(manifests: tuple[str, ...], socket: str, output: str) -> None:
    """Run the pods of FILE... (a file, a folder, or - for standard input).

    Only Pods run here, and their containers need a command. ResourceQuotas among them are in force
    before any of the pods is decided about. Exit status 1 when one was rejected; the others run.
    """
    with input_errors(ManifestError):
        found = list(_objects(manifests))
    pods = [one for one in found if one[1]["kind"] == "Pod"]
    objects = [one for one in found if one[1]["kind"] == _QUOTA]
    client = Client(socket)
    answers = []
    warned: set[str] = set()
    rejected = False
    if not found:
        raise InputError(f"{', '.join(manifests)}: there is no pod in it")
    applied = []
    for path, manifest in objects:
        try:
            answer = client.post("/v1/objects", manifest)
        except RefusedError as error:
            # Pods that it is to limit must not come in without it.
            problem = f"{_name(manifest)}: {error.message} (in {path}); nothing more is applied"
            raise RefusedError(error.status, problem) from None
        one = client.understood(answer, ObjectName)
        applied.append(answer)
        if output == "text":
            within = "" if one.namespace == "default" else f" in {one.namespace}"
            click.echo(f"quota/{one.name}{within} applied")
    for path, manifest in pods:
        try:
            answer = client.post("/v1/pods", manifest)
        except RefusedError as error:
            click.echo(f"Error: {_name(manifest)}: {error.format_message()} (in {path})", err=True)
            rejected = True
            continue
        pod = client.understood(answer, DecidedPod)
        rejected |= pod.is_rejected
        answers.append(answer)
        for warning in pod.warnings:
            # Many pods of one kind say the same; it is told once.
            if warning not in warned:
                warned.add(warning)
                click.echo(f"Warning: {_name(manifest)}: {warning}", err=True)
        if output == "text":
            click.echo(_line(pod))
    if output == "json":
        more = {"objects": applied} if applied else {}
        print_json({"version": VERSION, "pods": answers, **more})
    if rejected:
        raise SystemExit(1)


def _objects(paths: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each pod and quota, with its file; a namespace needs no making."""
    for path in manifest_files(paths):
        for document in file_documents(path):
            content = document.content
            items = content.get("items") if isinstance(content, dict) else None
            for item in items if isinstance(items, list) else [content]:
                kind = item.get("kind") if isinstance(item, dict) else None
                if kind not in _KINDS:
                    raise InputError(
                        f"{path}: line {document.line}: {kind or 'not a Kubernetes object'}: only "
                        "Pods run here, with ResourceQuotas; write its template as a Pod"
                    )
                yield path, item


def _name(manifest: dict[str, Any]) -> str:
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    word = "quota" if manifest.get("kind") == _QUOTA else "pod"
    return f"{word}/{name}" if isinstance(name, str) and name else f"{word} without a name"


def _line(pod: DecidedPod) -> str:
    name = f"pod/{pod.name}"
    if pod.namespace != "default":
        name = f"{name} in {pod.namespace}"
    if pod.is_rejected:
        return f"{name} rejected: {pod.reason}: {pod.message}"
    owned = [f"{one.name} {one.cpus}" for one in pod.containers if one.exclusive]
    return f"{name} admitted" + (f": {', '.join(owned)}" if owned else " to the shared pool")
