"""The objects that an agent is given in files: pods, quotas, and namespaces beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pinfold.adapters.kubernetes.files import ManifestError, manifest_documents
from pinfold.cli.output import InputError, input_errors
from pinfold.core.values.names import invalid, label_problems

POD: Final = "Pod"
QUOTA: Final = "ResourceQuota"
NAMESPACE: Final = "Namespace"
_KINDS: Final = (POD, QUOTA, NAMESPACE)
_OF_CLASSES: Final = ("ResourceClass", "ComputeResource")


class Found(NamedTuple):
    """An object of a file, and where it is."""

    where: str
    manifest: dict[str, Any]

    @property
    def kind(self) -> object:
        """One of :data:`POD`, :data:`QUOTA`, :data:`NAMESPACE`."""
        return self.manifest.get("kind")

    @property
    def namespace(self) -> object:
        """What it says; None where it says nothing."""
        metadata = self.manifest.get("metadata")
        return (metadata.get("namespace") or None) if isinstance(metadata, dict) else None

    @property
    def name(self) -> str:
        """``pod/NAME``, as an answer calls it."""
        metadata = self.manifest.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        word = "quota" if self.kind == QUOTA else str(self.kind).lower()
        return f"{word}/{name}" if isinstance(name, str) and name else f"{word} without a name"


def objects_in(paths: tuple[str, ...], namespace: str | None = None) -> Iterator[Found]:
    """Each object of some files, with its place.

    Args:
        paths: files, folders, or ``-`` for standard input.
        namespace: of the objects that say none.

    Raises:
        ManifestError: a file cannot be read.
        InputError: an object is of another kind or namespace, or a quota is there twice.
    """
    quotas: dict[str, str] = {}
    for place, document in manifest_documents(paths):
        for where, item in _items(document.content, place):
            one = _within(Found(where, item if isinstance(item, dict) else {}), namespace)
            if one.kind not in _KINDS:
                raise InputError(f"{where}: {_no_kind_of_ours(one.kind)}")
            if one.kind == NAMESPACE:
                _check_namespace(one)
            elif one.kind == QUOTA:
                before = quotas.setdefault(f"{one.namespace or 'default'} {one.name}", where)
                if before != where:
                    raise InputError(f"{where}: {one.name} is there already ({before})")
            yield one


def names_in(paths: tuple[str, ...], namespace: str | None) -> tuple[str, ...]:
    """The names of pods and quotas of some files: ``pod/NAMESPACE/NAME``; exits with one line.

    Arguments are those of :func:`objects_in`.
    """
    with input_errors(ManifestError):
        found = [one for one in objects_in(paths, namespace) if one.kind != NAMESPACE]
    return tuple(one.name.replace("/", f"/{one.namespace or 'default'}/", 1) for one in found)


def _within(one: Found, namespace: str | None) -> Found:
    """The same in a namespace, where one is asked for."""
    metadata = one.manifest.get("metadata")
    if namespace is None or one.kind == NAMESPACE or not isinstance(metadata, dict):
        return one
    if one.namespace not in (None, namespace):
        raise InputError(
            f"{one.where}: {one.name} is of namespace {one.namespace}, not of {namespace} "
            "(--namespace)"
        )
    return Found(one.where, {**one.manifest, "metadata": {**metadata, "namespace": namespace}})


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


def _check_namespace(one: Found) -> None:
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
