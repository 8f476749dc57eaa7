"""``pinfold explain``: why pods got their CPUs, or were rejected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec.structs import replace

from pinfold.cli.client import Client, NoAgentError, RefusedError, pod_path, socket_option
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.claims import claim_options
from pinfold.cli.options.cluster import cluster_options, is_from_cluster
from pinfold.cli.options.nodes import node_options, refuse_without_manifests
from pinfold.cli.options.pods import (
    all_namespaces_option,
    check_whose,
    kind_and_names,
    manifest_arguments,
    namespace_option,
)
from pinfold.cli.output import InputError, color_option, print_text
from pinfold.cli.terminal import style
from pinfold.core.pod.owner import KIND_OF, PodsName
from pinfold.documents.explanation import Explanation, Explanations
from pinfold.documents.status import Pod
from pinfold.render.explain_text import render_explain
from pinfold.views.explain import Printed, ended_since, explain_view

_LABELS: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_SUFFIXES: Final = (".yaml", ".yml", ".json")


@click.command()
@manifest_arguments("MANIFEST|pod/NAME|KIND/NAME...", required=False, apart=True)
@click.option(
    "--pod", "pods", metavar="NAME", multiple=True, help="The pod: NAME or NAMESPACE/NAME."
)
@namespace_option
@all_namespaces_option
@click.option("--hints", is_flag=True, help="With the hints of every provider, and their merge.")
@socket_option
@node_options
@cluster_options
@claim_options
@output_option("text", "json")
@color_option
def explain(  # noqa: PLR0913, PLR0917 - click
    manifests: tuple[str, ...],
    filenames: tuple[str, ...],
    pods: tuple[str, ...],
    namespace: str | None,
    socket: str,
    output: Output,
    color: bool | None,  # noqa: FBT001 - click
    *,
    all_namespaces: bool,
    hints: bool,
    **node: Any,  # noqa: ANN401 - the node options
) -> None:
    """Say why pods get their CPUs, or why they are rejected.

    With manifests only, it explains each pod that is rejected, in short. With manifests and names
    (pod/NAME, NAMESPACE/NAME or deployment/NAME), it explains these pods; of pods that are alike
    only one. The pods before them are placed first.

    With names only, it asks the agent why it decided as it did, and how the pods have ended; pods
    that are gone are known as well. With --from-cluster, or --node NAME and no manifests, it
    explains pods of the cluster of your kubeconfig, also pods that wait or were rejected.

    For a rejected pod it names the nearest changes that would admit it; each has been tried.
    """
    check_whose(namespace, all_namespaces=all_namespaces)
    printed = Printed(color, hints)
    files, words = _sorted(_with_kinds(manifests))
    files = (*filenames, *files)
    try:
        names = tuple(PodsName.parse(word, namespace) for word in (*words, *pods))
    except ValueError as error:
        raise InputError(str(error)) from None
    if namespace is not None and not names:
        raise click.UsageError("--namespace is that of names; name pods, such as pod/NAME")
    if files or is_from_cluster(files, node):
        from pinfold.cli.explained_plan import explain_planned  # noqa: PLC0415 - 30 ms

        explain_planned(files, names, node, printed, output)
        return
    if not names:
        raise click.UsageError(
            "say which pods: manifests, whose rejected pods are explained, or pod/NAME or "
            "NAMESPACE/NAME of an agent"
        )
    refuse_without_manifests(node)
    _explain_recorded(names, socket, printed, output)


def _with_kinds(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words, of which ``pod a b`` names pods; what is there before it is files."""
    there = [*takewhile(_is_there, words)]
    return (*there, *kind_and_names(words[len(there) :]))


def _is_there(word: str) -> bool:
    return word == "-" or Path(word).exists()


def _sorted(words: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is a file, a folder or standard input, and what names pods: what exists decides.

    A bare word is a name where none of the words is a file.
    """
    files: list[str] = []
    names: list[str] = []
    bare: list[str] = []
    for word in words:
        is_name = _names_pods(word)
        if _is_there(word):
            if is_name:
                click.echo(f"note: {word} is there as a file or folder: taken as that", err=True)
            files.append(word)
        elif is_name:
            names.append(word)
        elif _LABELS.fullmatch(word) and not word.endswith(_SUFFIXES):
            bare.append(word)
        else:
            files.append(word)
    (files or names).extend(bare)
    return tuple(files), tuple(names)


def _names_pods(word: str) -> bool:
    """Whether a word may be a name: ``KIND/NAME``, ``NAMESPACE/NAME``."""
    first, slash, rest = word.partition("/")
    if not slash or word.endswith(_SUFFIXES):
        return False
    return first.lower() in KIND_OF or all(map(_LABELS.fullmatch, (first, rest)))


def _explain_recorded(
    names: tuple[PodsName, ...], socket: str, printed: Printed, output: Output
) -> None:
    client = Client(socket, timeout=30.0)
    for name in names:
        if name.kind != "Pod":
            raise InputError(f"{name.text}: an agent has pods and no workloads; give manifests")
    try:
        told = [_recorded(client, name) for name in names]
    except NoAgentError as error:
        bare = [name.name for name in names if name.namespace is None]
        no_file = f"{bare[0]}: no such file, and of pods: " if bare else ""
        raise NoAgentError(f"{no_file}{error.format_message()}") from None
    if output.is_document:
        output.tell(told[0][0] if len(told) == 1 else _several(told))
        return
    texts = [
        render_explain(explain_view(document), style(printed.color), hints=printed.hints)
        for _, document in told
    ]
    print_text("\n".join(texts))


def _several(told: Sequence[tuple[dict[str, Any], Explanation]]) -> dict[str, Any]:
    """The document of several pods, each as the agent tells it."""
    admitted = sum(one.admitted for _, one in told)
    form = Explanations(admitted=admitted, rejected=len(told) - admitted, explanations=())
    each = [
        {"pods": [f"{one.namespace}/{one.name}"], "explanation": as_told} for as_told, one in told
    ]
    return {**msgspec.to_builtins(form), "explanations": each}


def _recorded(client: Client, name: PodsName) -> tuple[dict[str, Any], Explanation]:
    """What an agent tells of a decision, as it tells it and taken apart."""
    path = pod_path(name.full_name)
    told = client.get(f"/v1/explain/{path}")
    document = client.understood(told, Explanation)
    try:
        pod = client.read(f"/v1/pods/{path}", Pod)
    except RefusedError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
    else:
        if ended := ended_since(document, pod):
            return {**told, "ended": ended}, replace(document, ended=ended)
    return told, document
