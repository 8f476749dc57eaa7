"""Manifests: Pods, and the pods that workloads would create, from YAML and JSON files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pinfold.core.pod import Pod, apply_defaults
from pinfold.core.pod_api import PodError, pod_from_api
from pinfold.core.pod_validation import validate_pod
from pinfold.formats.yaml_documents import Document, YAMLError, yaml_documents

MAX_BYTES: Final = 256 * 1024 * 1024
MAX_REPLICAS: Final = 100_000
MAX_PODS: Final = 200_000
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})

_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Deployment": ("spec",),
    "StatefulSet": ("spec",),
    "DaemonSet": ("spec",),
    "ReplicaSet": ("spec",),
    "ReplicationController": ("spec",),
    "Job": ("spec",),
    "CronJob": ("spec", "jobTemplate", "spec"),
}
"""Kind -> where the object that holds ``template`` is."""


class ManifestError(ValueError):
    """A manifest that cannot be used; the message names file, place and remedy."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """The pods of some files in their order, and notes on what was left out."""

    pods: tuple[Pod, ...]
    notes: tuple[str, ...]


def read_manifests(paths: Sequence[str]) -> Manifests:
    """Read files, folders (their ``*.yaml``, ``*.yml``, ``*.json`` in name order) and ``-``.

    Raises:
        ManifestError: see the class.
    """
    pods: dict[tuple[str, str], tuple[Pod, str]] = {}
    notes: list[str] = []
    for path in _files(paths):
        text = _read(path)
        number = 0
        for number, document in enumerate(_documents(path, text), start=1):
            where = f"{path}: document {number} (line {document.line})"
            for pod in _pods(document.content, where, notes):
                key = (pod.namespace, pod.name)
                if key in pods:
                    raise ManifestError(
                        f"{where}: pod {pod.namespace}/{pod.name} is there already "
                        f"({pods[key][1]}); give it another name"
                    )
                pods[key] = (pod, where)
                if len(pods) > MAX_PODS:
                    raise ManifestError(f"{where}: more than can be planned at once ({MAX_PODS})")
        if number == 0:
            notes.append(f"{path}: nothing in it")
    return Manifests(tuple(pod for pod, _ in pods.values()), tuple(notes))


def _files(paths: Sequence[str]) -> Iterator[str]:
    for name in paths:
        path = Path(name)
        if name == "-" or path.is_file():
            yield name
        elif path.is_dir():
            files = (file for file in path.iterdir() if file.suffix in _SUFFIXES)
            found = sorted(str(file) for file in files if file.is_file())
            if not found:
                raise ManifestError(f"{name}: no *.yaml, *.yml or *.json file in this folder")
            yield from found
        else:
            raise ManifestError(f"{name}: no such file or folder")


def _read(path: str) -> str:
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise ManifestError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; split the file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{path}: not UTF-8 text (byte {error.start}); is it a manifest?"
        ) from None


def _documents(path: str, text: str) -> Iterator[Document]:
    if text.lstrip()[:1] in ("{", "["):
        content = _json(text)
        if content is not None:
            yield Document(1, content)
            return
    try:
        yield from yaml_documents(text)
    except YAMLError as error:
        raise ManifestError(f"{path}: line {error.line}: not YAML: {error}") from None


def _json(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """The value, or None for what only YAML can read (flow style, several documents)."""
    import msgspec  # noqa: PLC0415 - only for JSON

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _pods(content: object, where: str, notes: list[str]) -> Iterable[Pod]:
    if not isinstance(content, dict):
        raise ManifestError(f"{where}: not a Kubernetes object (no mapping with a kind)")
    kind = content.get("kind")
    if not isinstance(kind, str) or not kind:
        raise ManifestError(f"{where}: kind is missing; say what it is, such as kind: Pod")
    if kind.endswith("List") and isinstance(content.get("items"), list):
        for index, item in enumerate(content["items"]):
            yield from _pods(_with_kind(item, kind), f"{where}: items[{index}]", notes)
        return
    try:
        if kind == "Pod":
            yield _pod(content, "")
        elif kind in _TEMPLATES:
            yield from _workload(kind, content)
        else:
            notes.append(f"{where}: {kind} has no pods, left out")
    except PodError as error:
        name = _name_of(content)
        raise ManifestError(f"{where}: {kind} {name}: {error}") from None


def _with_kind(item: object, list_kind: str) -> object:
    if isinstance(item, dict) and "kind" not in item and list_kind != "List":
        return {"kind": list_kind.removesuffix("List"), **item}
    return item


def _name_of(content: Mapping[str, Any]) -> str:
    metadata = content.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return repr(name) if isinstance(name, str) else "without a name"


def _pod(content: Mapping[str, Any], path: str) -> Pod:
    pod = apply_defaults(pod_from_api(content, path))
    validate_pod(pod, path)
    return pod


def _workload(kind: str, content: Mapping[str, Any]) -> Iterator[Pod]:
    holder: Any = content
    path = ""
    for key in _TEMPLATES[kind]:
        path += f"{key}."
        holder = holder.get(key)
        if not isinstance(holder, dict):
            raise PodError(path.rstrip("."), "Required value")
    template = holder.get("template")
    if not isinstance(template, dict):
        raise PodError(f"{path}template", "Required value")
    metadata = content.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise PodError("metadata.name", "Required value: name or generateName is required")
    name, namespace = metadata["name"], metadata.get("namespace") or "default"
    labels = template.get("metadata") or {}
    if not isinstance(labels, dict):
        raise PodError(f"{path}template.metadata", "must be a mapping")
    labelled = {**labels, "name": name, "namespace": namespace}
    created = metadata.get("creationTimestamp")
    if isinstance(created, str):
        labelled["creationTimestamp"] = created
    pod = _pod({**template, "metadata": labelled}, f"{path}template.")
    for index in range(_count(kind, holder, path)):
        one = f"{name}-{index}"
        yield replace(pod, name=one, uid=f"{namespace}/{one}")


def _count(kind: str, holder: Mapping[str, Any], path: str) -> int:
    if kind == "DaemonSet":
        return 1
    if kind in ("Job", "CronJob"):
        parallel = _number(holder, "parallelism", path)
        completions = holder.get("completions")
        return (
            parallel if completions is None else min(parallel, _number(holder, "completions", path))
        )
    return _number(holder, "replicas", path)


def _number(holder: Mapping[str, Any], key: str, path: str) -> int:
    value = holder.get(key)
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool):
        raise PodError(f"{path}{key}", f"must be an integer, not {value!r}")
    if value < 0:
        raise PodError(
            f"{path}{key}", f"Invalid value: {value}: must be greater than or equal to 0"
        )
    if value > MAX_REPLICAS:
        raise PodError(
            f"{path}{key}", f"{value} pods are more than can be planned ({MAX_REPLICAS})"
        )
    return value
