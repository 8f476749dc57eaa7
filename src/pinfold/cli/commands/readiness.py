"""``pinfold readiness``: have new nodes what their classes promise, as an autoscaler asks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from pinfold.adapters.kubernetes.class_manifests import ClassManifests
from pinfold.adapters.kubernetes.files import (
    ManifestError,
    manifest_documents,
    object_refused,
)
from pinfold.cli.forms import Output, output_option
from pinfold.cli.output import InputError, input_errors, print_text
from pinfold.cli.progress_line import progress_line
from pinfold.cli.start import exit_statuses
from pinfold.cli.start.exit_statuses import ANSWERED, GIVEN_UP
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.names import no_such_class
from pinfold.core.classes.placing import Matcher
from pinfold.core.classes.readiness import (
    COMING,
    NOT_HERE,
    NOT_VIABLE,
    exported,
)
from pinfold.core.classes.readiness import (
    readiness as readiness_of,
)
from pinfold.core.dra.objects import InvalidError, Located, located
from pinfold.core.kubelet.node_object import NodeObject, node_from_api
from pinfold.core.pod.api import PodError, described
from pinfold.core.pod.manifest.fields import moment
from pinfold.documents.readiness import ClassOnNode, Readiness


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="Ask for this class only; may be given several times.",
)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME",
    help="Ask of this node only; may be given several times.",
)
@click.option("--at", metavar="TIME", help="When (RFC 3339).  [default: now]")
@output_option("text", "json")
def readiness(
    *,
    files: tuple[str, ...],
    classes: tuple[str, ...],
    nodes: tuple[str, ...],
    at: str | None,
    output: Output,
) -> None:
    """Say whether new nodes have their devices yet.

    And if not, how long to wait. FILE is a file, a folder of files, or - for standard input, with
    Nodes, ResourceClasses and ComputeResources, as kubectl get -o yaml prints them. The labels of a
    node say which devices it should have (capacityNodeLabelKeys of the class), its status and
    ComputeResources say which it has, and provisionSeconds says how long that may take.
    """
    with input_errors(PodError):
        now = moment(at, "--at")
    if now is None:
        now = time.time()
    read = _Read()
    with input_errors(ManifestError, InvalidError), progress_line("reading the manifests"):
        for place, document in manifest_documents(files):
            for one in located(place, document.content):
                read.take(one)
    answers = tuple(_answers(read, _chosen(classes, nodes, read), now))
    if output.is_document:
        output.tell(Readiness(at=_written(now), answers=answers))
    else:
        print_text(_text(answers))
    states = {one.state for one in answers}
    if states & {NOT_VIABLE, NOT_HERE}:
        raise SystemExit(GIVEN_UP.code)
    raise SystemExit(exit_statuses.COMING.code if COMING in states else ANSWERED.code)


class _Read:
    """The objects that decide; all others are passed over."""

    def __init__(self) -> None:
        self.of_classes = ClassManifests()
        self.nodes: dict[str, tuple[NodeObject, str]] = {}

    def take(self, one: Located) -> None:
        manifest: Mapping[str, Any] = one.manifest
        kind, version = str(manifest.get("kind")), manifest.get("apiVersion")
        group, slash, _ = version.partition("/") if isinstance(version, str) else ("", "", "")
        if self.of_classes.are(kind, group if slash else None):
            self.of_classes.read(kind, manifest, one.where)
        elif kind == "Node" and not slash:
            try:
                node = node_from_api(manifest)
            except PodError as error:
                raise object_refused(one.where, f"{described(manifest)}: {error}") from None
            if node.name in self.nodes:
                before = self.nodes[node.name][1]
                raise ManifestError(f"{one.where}: Node {node.name} is there already ({before})")
            self.nodes[node.name] = node, one.where


def _chosen(
    classes: Iterable[str], nodes: Iterable[str], read: _Read
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the classes and of the nodes that are asked about."""
    known = read.of_classes.classes
    if not known or not read.nodes:
        raise InputError(
            f"there is no {'Node' if known else 'ResourceClass'} in these files; "
            "kubectl get nodes,resourceclasses,computeresources -o yaml prints all that is needed"
        )
    for name in classes:
        if name not in known:
            raise InputError(f"--class: {no_such_class(name, known)}")
    for name in nodes:
        if name not in read.nodes:
            raise InputError(f"--node: there is no Node {name} in these files")
    return tuple(dict.fromkeys(classes)) or tuple(known), tuple(dict.fromkeys(nodes)) or tuple(
        read.nodes
    )


def _answers(
    read: _Read, chosen: tuple[tuple[str, ...], tuple[str, ...]], now: float
) -> Iterator[ClassOnNode]:
    known = read.of_classes.classes.values()
    matcher = Matcher(one for one in known if not one.is_cluster_level)
    resources: dict[str, list[ComputeResource]] = {}
    for each in read.of_classes.compute_resources.values():
        resources.setdefault(each.node_name, []).append(each)
    for name in chosen[1]:
        node, where = read.nodes[name]
        age = _age(node, where, now)
        for class_name in chosen[0]:
            one = read.of_classes.classes[class_name]
            has = exported(one, matcher, name, node.allocatable, resources.get(name, ()))
            found = readiness_of(one, node.labels, has, age)
            yield ClassOnNode(
                class_name=class_name,
                node=name,
                state=found.state,
                expected=found.expected,
                exported=found.exported,
                wait_seconds=found.wait,
            )


def _age(node: NodeObject, where: str, now: float) -> float:
    """The seconds since a node was made; 0 where nobody says, as for one that is only planned."""
    with input_errors(PodError, prefix=f"{where}: Node {node.name!r}: "):
        made = moment(node.creation_timestamp, "metadata.creationTimestamp")
    return 0.0 if made is None else max(0.0, now - made)


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _text(answers: Iterable[ClassOnNode]) -> str:
    rows = [
        (one.node, one.class_name, one.state, f"{one.exported}{_of(one)}{_wait(one)}")
        for one in answers
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )


def _of(one: ClassOnNode) -> str:
    return "" if one.expected is None else f" of {one.expected}"


def _wait(one: ClassOnNode) -> str:
    if one.state != COMING:
        return ""
    if one.wait_seconds is None:
        return ", nobody knows how long that takes"
    return f", wait {one.wait_seconds:.0f} s at most"
