"""Words that no table has: the pods, containers and quotas of the agent, programs, nodes.

Whatever cannot be had is no words: nobody reads an error between two keys.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct

from pinfold.completion.engine import Line, Source
from pinfold.completion.table import Word
from pinfold.linux.own_places import SOCKET_VARIABLE, default_socket

PATIENCE: Final = 0.4
"""Seconds that a TAB waits for the agent, at most."""
_PIECE: Final = 1 << 16
_MANIFEST_BYTES: Final = 1 << 18
_ALL_BYTES: Final = 1 << 22
"""As many as half a second is enough for."""
_NODE: Final = re.compile(r"^kind:\s*[\"']?Node[\"']?\s*$", re.MULTILINE)
_NAME: Final = re.compile(r"^metadata:\s*\n(?:[ ]+.*\n)*?[ ]+name:\s*[\"']?([\w.-]+)", re.MULTILINE)
_INLINE_NAME: Final = re.compile(r"^metadata:\s*\{.*?\bname:\s*[\"']?([\w.-]+)", re.MULTILINE)


class _Named(Struct, frozen=True):
    name: str


class _Pod(Struct, frozen=True):
    namespace: str
    name: str
    phase: str = ""
    containers: Sequence[_Named] = ()


class _Quota(Struct, frozen=True):
    namespace: str
    name: str


class _Status(Struct, frozen=True):
    """Of a status what is completed."""

    pods: Sequence[_Pod] = ()
    quotas: Sequence[_Quota] = ()


def _status(line: Line) -> _Status:
    """What the agent of the line says; nothing where none answers in time."""
    path = line.value("--socket") or os.environ.get(SOCKET_VARIABLE) or default_socket()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(path)
            # Of HTTP/1.0 the answer ends where the connection does, and is in one piece.
            connection.sendall(b"GET /v1/status HTTP/1.0\r\nHost: pinfold\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(_PIECE), b""))
        return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=_Status)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return _Status()


def _pods(line: Line, begun: str) -> Iterator[Word]:
    """The pods: ``pod/NAME``, ``NAMESPACE/NAME`` of other namespaces, or as it was begun.

    That is plain, or ``pod/NAMESPACE/NAME`` as ``-o name`` has it.
    """
    within = line.value("--namespace")
    plain = bool(begun) and "/" not in begun and not "pod/".startswith(begun)
    taken = {*line.arguments}
    for pod in _status(line).pods:
        near = pod.namespace == (within or "default")
        if near:
            spelled = pod.name if plain else f"pod/{pod.name}"
        else:
            spelled = f"{'pod/' * begun.startswith('pod/')}{pod.namespace}/{pod.name}"
        if spelled not in taken and (near or within is None):
            yield spelled, pod.phase


def _pods_or_quotas(line: Line, begun: str) -> Iterator[Word]:
    yield from _pods(line, begun)
    within = line.value("--namespace") or "default"
    for quota in _status(line).quotas:
        if quota.namespace == within:
            yield f"quota/{quota.name}", "ResourceQuota"


def _pod_names(line: Line, begun: str) -> Iterator[Word]:
    """The same without a word before the name."""
    yield from ((name.removeprefix("pod/"), text) for name, text in _pods(line, begun or "pod/"))


def _places(line: Line, begun: str) -> Iterator[Word]:
    """``pod/NAME=``, where a number of CPUs follows."""
    yield from ((f"{name}=", text) for name, text in _pods(line, begun))


def _containers(line: Line, _: str) -> Iterator[Word]:
    """Those of the pod that the line names, else of all."""
    named = line.arguments[0].rpartition("/")[2] if line.arguments else None
    for pod in _status(line).pods:
        if named in (None, pod.name):
            yield from ((container.name, f"of {pod.name}") for container in pod.containers)


def _namespaces(line: Line, _: str) -> Iterator[Word]:
    yield from ((one, "") for one in sorted({pod.namespace for pod in _status(line).pods}))


def _programs(_: Line, begun: str) -> Iterator[Word]:
    """What can be executed on the path; a path is for the shell to complete."""
    if not begun or "/" in begun:
        return
    seen: set[str] = set()
    for folder in os.get_exec_path():
        try:
            with os.scandir(folder) as entries:
                seen |= {one.name for one in entries if one.name.startswith(begun)}
        except OSError:
            continue
    yield from ((one, "") for one in sorted(seen))


def _nodes(line: Line, _: str) -> Iterator[Word]:
    """The Nodes among the manifests that the line names, by a look at small files in YAML."""
    for file in _small_files((*line.options.get("--filename", ()), *line.arguments)):
        for document in re.split(r"^---.*$", file, flags=re.MULTILINE):
            if _NODE.search(document):
                found = _NAME.search(document) or _INLINE_NAME.search(document)
                if found:
                    yield found[1], "Node"


def _small_files(names: Iterable[str]) -> Iterator[str]:
    left = _ALL_BYTES
    for name in names:
        try:
            path = Path(name).expanduser()
        except RuntimeError:
            # Of a user that nobody knows.
            continue
        for one in sorted(path.glob("*.y*ml")) if path.is_dir() else [path]:
            raw = _small_file(one)
            left -= len(raw)
            if left < 0:
                return
            yield raw.decode(errors="replace")


def _small_file(path: Path) -> bytes:
    """The content of a regular file that is not larger than a manifest; else nothing."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            # A device says that it has no bytes, and has no end.
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raw = (
                    file.read(_MANIFEST_BYTES + 1) or b""
                )  # None: a log of the kernel, with no news
                return raw if len(raw) <= _MANIFEST_BYTES else b""
    except (OSError, ValueError):
        pass
    return b""


SOURCES: Final[Mapping[str, Source]] = MappingProxyType(
    {
        "pods": _pods,
        "pods and quotas": _pods_or_quotas,
        "pod names": _pod_names,
        "places": _places,
        "containers": _containers,
        "namespaces": _namespaces,
        "programs": _programs,
        "nodes": _nodes,
    }
)
"""Who knows the words of a source of :class:`.Values`."""
