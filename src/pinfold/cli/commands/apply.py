"""``pinfold apply``: pods for the agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import click

from pinfold.adapters.kubernetes.files import ManifestError, manifest_documents
from pinfold.cli.client import Client, RefusedError, socket_option
from pinfold.cli.options.pods import manifest_arguments
from pinfold.cli.output import InputError, input_errors, output_option, print_json
from pinfold.cli.start.exit_statuses import REJECTED
from pinfold.core.pod.isolation_levels import IsolationLevel
from pinfold.core.values.names import invalid, label_problems
from pinfold.documents.api import DecidedPod, ObjectName
from pinfold.documents.records import VERSION
from pinfold.documents.status import Container

_QUOTA: Final = "ResourceQuota"
_NAMESPACE: Final = "Namespace"
_KINDS: Final = ("Pod", _QUOTA, _NAMESPACE)
_OF_CLASSES: Final = ("ResourceClass", "ComputeResource")


class _Found(NamedTuple):
    """An object of a file, and where it is."""

    where: str
    manifest: dict[str, Any]

    @property
    def kind(self) -> object:
        return self.manifest.get("kind")

    @property
    def key(self) -> str:
        """Its name with its namespace, as text."""
        metadata = self.manifest.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
        return f"{namespace or 'default'} {self.name}"

    @property
    def name(self) -> str:
        """``pod/NAME``, as an answer calls it."""
        metadata = self.manifest.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        word = "quota" if self.kind == _QUOTA else str(self.kind).lower()
        return f"{word}/{name}" if isinstance(name, str) and name else f"{word} without a name"


@click.command()
@manifest_arguments("FILE...")
@socket_option
@output_option("text", "json")
def apply(manifests: tuple[str, ...], socket: str, output: str) -> None:
    """Run the pods of FILE... (a file, a folder, or - for standard input).

    ResourceQuotas among them are in force before any of the pods is decided about; of other objects
    Namespaces may stand beside them, which need no making. Where the agent runs plain processes,
    containers need a command. A pod that runs already as its manifest says is unchanged; where it
    differs, it is told in what, and what to do. Where a pod is rejected, or not taken, the
    others run.
    """
    with input_errors(ManifestError):
        found = list(_objects(manifests))
    pods = [one for one in found if one.kind == "Pod"]
    objects = [one for one in found if one.kind == _QUOTA]
    client = Client(socket)
    answers = []
    warned: set[str] = set()
    rejected = False
    if not found:
        raise InputError(f"{', '.join(manifests)}: there is no pod in it")
    applied = []
    for one in found:
        if one.kind == _NAMESPACE and output == "text":
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
            told = ManifestError(f"{one.where}: {one.name}: {error.format_message()}")
            click.echo(f"Error: {told}", err=True)
            rejected = True
            continue
        pod = client.understood(answer, DecidedPod)
        rejected |= pod.is_rejected
        answers.append(answer)
        for warning in pod.warnings:
            # Many pods of one kind say the same; it is told once.
            if warning not in warned:
                warned.add(warning)
                click.echo(f"Warning: {one.name}: {warning}", err=True)
        if output == "text":
            click.echo(_line(pod))
    if output == "json":
        more = {"objects": applied} if applied else {}
        print_json({"version": VERSION, "pods": answers, **more})
    if rejected:
        raise SystemExit(REJECTED.code)


def _objects(paths: tuple[str, ...]) -> Iterator[_Found]:
    """Each object, with its place; a namespace is checked."""
    quotas: dict[str, str] = {}
    for place, document in manifest_documents(paths):
        for where, item in _items(document.content, place):
            one = _Found(where, item if isinstance(item, dict) else {})
            if one.kind not in _KINDS:
                raise InputError(f"{where}: {_no_kind_of_ours(one.kind)}")
            if one.kind == _NAMESPACE:
                _check_namespace(one)
            elif one.kind == _QUOTA:
                before = quotas.setdefault(one.key, where)
                if before != where:
                    raise InputError(f"{where}: {one.name} is there already ({before})")
            yield one


def _items(content: object, where: str) -> Iterator[tuple[str, object]]:
    """The items of a list, of which a ``ResourceQuotaList`` says the kind; else what is there."""
    items = content.get("items") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(items, list):
        yield where, content
        return
    kind = str(content.get("kind") or "List").removesuffix("List")
    for index, item in enumerate(items):
        said = isinstance(item, dict) and "kind" not in item and kind
        yield f"{where}: items[{index}]", {"kind": kind, **item} if said else item


def _check_namespace(one: _Found) -> None:
    metadata = one.manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        raise InputError(f"{one.where}: {one.name}: metadata.name: Required value")
    for problem in label_problems(name):
        raise InputError(f"{one.where}: {one.name}: metadata.name: {invalid(name, problem)}")


def _no_kind_of_ours(kind: object) -> str:
    if kind in _OF_CLASSES:
        return (
            f"{kind}: an agent reads classes from the file that the setting resourceClasses of its "
            "configuration names"
        )
    called = kind or "not a Kubernetes object"
    return f"{called}: only Pods run here, with ResourceQuotas; write its template as a Pod"


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
