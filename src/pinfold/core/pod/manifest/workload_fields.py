"""Which fields of a manifest are not in force, or are none at all: nothing is dropped in silence.

Whoever moves a manifest from a cluster is told what a kubelet would do and this node does not; and
whoever misspells a field hears of it, as from ``kubectl apply``.  The table is in
:mod:`pinfold.core.pod.manifest.api_fields`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.core.pod.annotation import SHOWN
from pinfold.core.pod.annotations import annotation_problems, named
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.api_fields import POD, Field, Fields, Standing
from pinfold.core.pod.manifest.names import CONTAINER_LISTS, items
from pinfold.core.pod.manifest.validation import forks_volume_problems

PROCESS, CRI = "process", "cri"
_MOST_NAMED: Final = 5
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
_TEMPLATE: Final = {name: POD[name] for name in ("metadata", "spec")}


class Finding(Struct, frozen=True):
    """A field that is not in force; ``standing`` None is one that the API does not have."""

    path: str
    standing: Standing | None
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def check_fields(manifest: Mapping[str, Any], runtime: str) -> tuple[str, ...]:
    """See that a pod is what its manifest says, as far as it matters.

    Args:
        manifest: a Pod; what is of a wrong type is left to whoever reads it.
        runtime: what runs its containers, ``process`` or ``cri``.

    Returns:
        The fields that are not in force, each with its path and what is so instead.

    Raises:
        PodError: there are unknown fields, or some without which the pod would be weaker than its
            manifest says; the first of them, and the others with it.
    """
    if isinstance(spec := manifest.get("spec"), Mapping):
        # Its remedy says more than that the field is unknown.
        for problem in forks_volume_problems(spec, "spec"):
            raise problem
    found = list(findings(manifest, runtime))
    wrong = [one for one in found if one.standing in (None, Standing.REFUSED)]
    if wrong:
        first, *others = wrong
        more = [str(other) for other in others[:_MOST_NAMED]]
        if len(others) > _MOST_NAMED:
            more.append(f"{len(others) - _MOST_NAMED} more")
        raise PodError(first.path, "; ".join((first.problem, *more)))
    return tuple(str(one) for one in found)


def unknown_fields(manifest: Mapping[str, Any], path: str = "") -> list[Finding]:
    """The fields of a Pod, or of a pod template at ``path``, that the API does not have."""
    known = _TEMPLATE if path else POD
    return [one for one in _walk(manifest, known, path, PROCESS) if one.standing is None]


def fields_without_meaning(manifest: Mapping[str, Any], known: Fields) -> Iterator[Finding]:
    """Yield the fields of another object that are not among those of its kind."""
    return (one for one in _walk(manifest, known, "", PROCESS) if one.standing is None)


def annotation_findings(
    manifest: Mapping[str, Any], path: str = "", runtime: str | None = None, *, own: bool = False
) -> Iterator[Finding]:
    """Yield Pinfold's annotations that are not in force as they say.

    ``manifest`` is a Pod, or a pod template at ``path``; ``runtime`` is None for a plan,
    ``own`` whether that is of a node with a section ``pinfold``.
    """
    metadata, spec = manifest.get("metadata"), manifest.get("spec")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    for key in named(labels) if isinstance(labels, Mapping) else ():
        yield Finding(
            f"{path}metadata.labels.{key[:SHOWN]}",
            Standing.NOTED,
            "is an annotation, and no label: write it into metadata.annotations",
        )
    said = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    if not isinstance(said, Mapping):
        return
    holder = spec if isinstance(spec, Mapping) else {}
    names = {
        str(one.get("name")) for key in CONTAINER_LISTS for one, _ in items(holder, key, "spec")
    }
    for key, problem in annotation_problems(said, names, runtime, own=own):
        yield Finding(f"{path}metadata.annotations.{key}", Standing.NOTED, problem)


def annotations_above(manifest: Mapping[str, Any], path: str) -> Iterator[Finding]:
    """Yield Pinfold's annotations of a workload itself; its pods are made of the one at ``path``.

    ``path`` is such as ``spec.template.``.
    """
    metadata = manifest.get("metadata")
    said = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    for key in named(said) if isinstance(said, Mapping) else ():
        yield Finding(
            f"metadata.annotations.{key[:SHOWN]}",
            Standing.NOTED,
            f"is of the {manifest.get('kind')}, and its pods have those of {path}metadata",
        )


def findings(manifest: Mapping[str, Any], runtime: str) -> Iterator[Finding]:
    """Yield every field that is unknown, or not in force, in the order of the manifest."""
    yield from _walk(manifest, POD, "", runtime)
    yield from annotation_findings(manifest, "", runtime)
    spec = manifest.get("spec")
    if not isinstance(spec, Mapping):
        return
    yield from _sizes_on_disk(spec)
    if runtime == PROCESS:
        yield from _mounts_of_processes(spec)


def _walk(fields: Mapping[str, Any], known: Fields, path: str, runtime: str) -> Iterator[Finding]:
    for key, value in fields.items():
        name = str(key)
        here = f"{path}{name}"
        field = known.get(name)
        if field is None:
            yield Finding(here, None, _unknown(name, known))
            continue
        if value in _EMPTY:
            continue
        standing = field.process if runtime == PROCESS else field.cri
        below = _below(value, field, here, runtime)
        if standing is Standing.IN_FORCE:
            yield from below
            continue
        yield from (one for one in below if one.standing is None)
        if not _is_plain(value, field):
            refused = standing is Standing.REFUSED
            yield Finding(
                here, standing, f"not {'available' if refused else 'in force'} here: {field.why}"
            )


def _below(value: object, field: Field, path: str, runtime: str) -> Iterator[Finding]:
    if field.below is None:
        return
    if isinstance(value, Mapping):
        yield from _walk(value, field.below, f"{path}.", runtime)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, Mapping):
            yield from _walk(item, field.below, f"{path}[{index}].", runtime)


def _is_plain(value: object, field: Field) -> bool:
    """Whether a value asks for nothing; 0 is not false."""
    return any(value == plain and type(value) is type(plain) for plain in field.plain)


def _unknown(name: str, known: Fields) -> str:
    lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f'; did you mean "{lower[near[0]]}"?' if near else ""
    return f'unknown field "{name[:80]}"{hint}'


def _sizes_on_disk(spec: Mapping[str, Any]) -> Iterator[Finding]:
    """Size limits of volumes that are not in memory: a kubelet evicts the pod that exceeds them."""
    for volume, path in items(spec, "volumes", "spec"):
        source = volume.get("emptyDir")
        if (
            isinstance(source, Mapping)
            and not source.get("medium")
            and source.get("sizeLimit") is not None
        ):
            yield Finding(
                f"{path}.emptyDir.sizeLimit",
                Standing.NOTED,
                "not in force here: nobody measures what is on the disk",
            )


def _mounts_of_processes(spec: Mapping[str, Any]) -> Iterator[Finding]:
    """A process sees the files of the machine where they are, and may write as its user may."""
    volumes = {str(volume.get("name")): volume for volume, _ in items(spec, "volumes", "spec")}
    for key in CONTAINER_LISTS:
        for container, outer in items(spec, key, "spec"):
            for mount, path in items(container, "volumeMounts", outer):
                volume = volumes.get(str(mount.get("name")), {})
                yield from _seen_by_a_process(mount, volume, path)


def _seen_by_a_process(
    mount: Mapping[str, Any], volume: Mapping[str, Any], path: str
) -> Iterator[Finding]:
    target, source = mount.get("mountPath"), volume.get("hostPath")
    if isinstance(source, Mapping):
        place = source.get("path")
        if isinstance(target, str) and isinstance(place, str) and _norm(target) != _norm(place):
            yield Finding(
                f"{path}.mountPath",
                Standing.REFUSED,
                f"not available here: a process sees the machine's files, where {place} is at "
                f"{place}; write that",
            )
    elif any(isinstance(volume.get(kind), Mapping) for kind in ("emptyDir", "downwardAPI")):
        name = str(mount.get("name")).upper().replace("-", "_")
        yield Finding(
            f"{path}.mountPath",
            Standing.NOTED,
            f"not in force here: a process finds the volume at the path in PINFOLD_VOLUME_{name}",
        )


def _norm(path: str) -> str:
    return path.rstrip("/") or "/"
