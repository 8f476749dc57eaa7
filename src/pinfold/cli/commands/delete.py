"""``pinfold delete``: pods and quotas of the agent, all at the same time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import click
from msgspec import Struct

from pinfold.cli.client import (
    Client,
    NoAgentError,
    RefusedError,
    Seconds,
    pod_path,
    socket_option,
)
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.pods import (
    all_namespaces_option,
    filename_option,
    kind_and_names,
    namespace_option,
)
from pinfold.cli.output import InputError, Refused
from pinfold.cli.progress_line import Progress, progress_line
from pinfold.documents.api import PodList

_GONE: Final = 404
_UNAVAILABLE: Final = 503
_QUOTAS: Final = ("quota/", "resourcequota/")
_NAMESPACES: Final = ("namespace/", "namespaces/", "ns/")
_PODS: Final = "/v1/pods/"
_SILENCE: Final = 3.0
"""Seconds after which somebody who waits wants to know what for."""

_AT_ONCE: Final = 64
"""Requests at the same time; each waits for a grace period, which may be long."""


@click.command()
@click.argument("names", nargs=-1, metavar="pod/NAME|quota/NAME...")
@filename_option("End what is in a manifest: a file, a folder, or - for standard input.")
@namespace_option
@click.option("--all", "everything", is_flag=True, help="All pods; quotas stay.")
@all_namespaces_option
@click.option("--grace", type=Seconds(min=0), metavar="SECONDS", help="From SIGTERM to SIGKILL.")
@socket_option
@output_option("text", "name")
def delete(  # noqa: PLR0913 - the options, one each
    names: tuple[str, ...],
    filenames: tuple[str, ...],
    *,
    namespace: str | None,
    everything: bool,
    all_namespaces: bool,
    grace: float | None,
    socket: str,
    output: Output,
) -> None:
    """End pods, and wait until their CPUs are free.

    quota/NAME makes the agent forget a quota. --all --namespace NAMESPACE ends all pods of that
    namespace. All pods end at the same time.
    """
    if everything and (names or filenames):
        few = " ".join((*names, *(f"-f {file}" for file in filenames)))
        raise click.UsageError(f"--all ends all pods: leave out {few}, or leave out --all")
    if not (everything or names or filenames):
        raise click.UsageError("name the pods to delete, or give their manifests with -f, or --all")
    if all_namespaces and (namespace is not None or not everything):
        raise click.UsageError("--all-namespaces goes with --all, and not with --namespace")
    client = Client(socket)
    paths = dict(
        _path(name, namespace)
        for name in (*kind_and_names(names), *_named_in(filenames, namespace))
    )
    if not (paths or everything):
        raise InputError(f"{', '.join(filenames)}: there is no pod in it")
    if everything:
        pods = client.read("/v1/pods", PodList).pods
        # As they are called, whatever that is: an older agent has taken any name.
        named = ((pod.namespace, pod.name) for pod in pods if namespace in (None, pod.namespace))
        paths = {
            f"{_PODS}{quote(space, safe='')}/{quote(name, safe='')}": _pod(f"{space}/{name}")
            for space, name in named
        }
    failures: list[tuple[str, click.ClickException]] = []
    # Of one pod it is of no use to say that none of it is gone.
    with progress_line("waiting for the agent", len(paths) if len(paths) > 1 else None) as line:
        for path, error in line.each(_ended(client, paths, grace, _Waiting(socket, line))):
            name = paths[path]
            if error is None:
                with line.aside():
                    click.echo(name if output == "name" else f"{name} deleted")
            elif isinstance(error, NoAgentError):
                raise error
            elif not (everything and isinstance(error, RefusedError) and error.status == _GONE):
                failures.append((name, error))
    if len(paths) == 1 and failures:
        raise failures[0][1]
    for name, error in failures:
        click.echo(f"Error: {name}: {error.format_message()}", err=True)
    if failures:
        what = "pods " if all(path.startswith(_PODS) for path in paths) else ""
        raise Refused(f"{len(failures)} of {len(paths)} {what}were not deleted")


def _named_in(files: tuple[str, ...], namespace: str | None) -> tuple[str, ...]:
    if not files:
        return ()
    from pinfold.cli.applied_objects import names_in  # noqa: PLC0415 - 12 ms

    return names_in(files, namespace)


def _path(name: str, within: str | None) -> tuple[str, str]:
    """The path of a pod or a quota, and what it is called; ``within`` a namespace."""
    kind, _, rest = name.partition("/")
    if f"{kind}/" in _NAMESPACES:
        raise InputError(f"{name}: a namespace is not kept here, so there is nothing to delete")
    if f"{kind}/" in _QUOTAS:
        if rest.count("/") > 1:
            raise InputError(f"{name!r} names no quota; write quota/NAME or quota/NAMESPACE/NAME")
        return f"/v1/objects/ResourceQuota/{pod_path(rest, within)}", f"{kind}/{rest}"
    plain = name.removeprefix("pod/").removeprefix("pods/")
    full = plain if "/" in plain or within is None else f"{within}/{plain}"
    return f"{_PODS}{pod_path(full)}", _pod(full)


def _pod(name: str) -> str:
    return f"pod/{name.removeprefix('default/')}"


def _ended(
    client: Client, paths: Mapping[str, str], grace: float | None, waits: _Waiting
) -> Iterator[tuple[str, click.ClickException | None]]:
    """Yield each path when what is there is gone, or why it is not."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    told: queue.SimpleQueue[tuple[str, click.ClickException | None]] = queue.SimpleQueue()
    for path in paths:
        waiting.put(path)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                path = waiting.get_nowait()
                try:
                    client.delete(path, **({"grace": grace} if path.startswith(_PODS) else {}))
                except click.ClickException as error:
                    told.put((path, error))
                else:
                    told.put((path, None))

    # Daemons: who is interrupted does not wait for pods that end slowly.
    for _ in range(min(_AT_ONCE, len(paths))):
        threading.Thread(target=work, daemon=True).start()
    why = threading.Timer(_SILENCE, waits.tell_what_for)
    why.daemon = True
    why.start()
    try:
        for _ in paths:
            yield told.get()
    finally:
        why.cancel()


class _Waiting(Struct, frozen=True):
    """For the agent at a socket, with a line that says so."""

    socket: str
    line: Progress

    def tell_what_for(self) -> None:
        """Say why a pod does not go, where the agent knows: its runtime may be away for hours."""
        with suppress(NoAgentError):
            try:
                Client(self.socket, timeout=_SILENCE).get("/readyz")
            except RefusedError as error:
                if error.status == _UNAVAILABLE:
                    with self.line.aside():
                        click.echo(f"note: still waiting: {error.message}", err=True)
