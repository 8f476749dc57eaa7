"""What a webhook does to a pod that asks for classes: the raw name beside each, and what is what.

A pod that is bound already is left as it is: a webhook may be asked again after others have changed
the pod.  So a pod may bring the annotation of its binding only as it would be written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.core.classes.bound import (
    KEY_PREFIX,
    LONGEST_CONTAINER,
    Bound,
    bound_key,
    bound_text,
    parsed_bound,
)
from pinfold.core.classes.names import class_of, class_resource, no_such_class
from pinfold.core.classes.raw_names import RawName, Unbindable
from pinfold.core.pod.api import quantity_from_api
from pinfold.core.pod.manifest.fields import mapping, mappings
from pinfold.core.values.quantity import Quantity

MOST: Final = 1_000_000_000
"""Devices that a container may ask for; no node has as many."""

_LISTS: Final = ("initContainers", "containers")
_SHOWN: Final = 80

Amounts = Mapping[str, Any]


class NotBindableError(ValueError):
    """A pod cannot have what it asks for; the text says why and what to do."""


class Step(Struct, frozen=True):
    """One step of a JSON patch (RFC 6902)."""

    op: str
    path: str
    value: object


class BoundPod(Struct, frozen=True):
    """A pod with its binding.

    Attributes:
        patch: what makes it of the one that was asked for; empty where it is so already.
        bound: what each container has for its classes.
        notes: what whoever has created it may want to know.
    """

    patch: tuple[Step, ...]
    bound: Mapping[str, tuple[Bound, ...]]
    notes: tuple[str, ...] = ()


def bound_pod(pod: Mapping[str, Any], names: Mapping[str, RawName | Unbindable]) -> BoundPod:
    """Bind a pod (as the API has it) to the raw names of the classes that it asks for.

    Args:
        pod: as an API server shows it to an admission webhook.
        names: what each class of the cluster is asked for by; see
            :func:`pinfold.core.classes.raw_names.raw_names`.

    Raises:
        NotBindableError: it asks for what nobody can give it, or says itself what it is bound to.
        PodError: a field of the wrong type.
    """
    spec = mapping(pod.get("spec"), "spec")
    metadata = mapping(pod.get("metadata"), "metadata")
    said = mapping(metadata.get("annotations"), "metadata.annotations")
    patch: list[Step] = []
    bound: dict[str, tuple[Bound, ...]] = {}
    asks = False
    for container, path in _containers(spec):
        asked = dict(_asked(container, path, names))
        asks = asks or bool(asked)
        name = str(container.get("name") or "")
        found = tuple(
            Bound(one, resource, count) for one, (resource, count) in asked.items() if resource
        )
        has = _said(said, name)
        if has and _plain(has) != found:
            shown = bound_text(found) or "nothing"
            raise NotBindableError(
                f"metadata.annotations[{bound_key(name)}]: says {bound_text(has)}, and the pod is "
                f"bound to {shown} (leave it out: it is written when the pod comes in)"
            )
        if found:
            _refuse_long(name, path)
            bound[name] = found
            patch += _steps(container, path, found, has)
    for key in said:
        if key.startswith(KEY_PREFIX) and key.removeprefix(KEY_PREFIX) not in bound:
            raise NotBindableError(
                f"metadata.annotations[{key[:_SHOWN]}]: that container asks for no class that is "
                "bound to devices (leave it out: it is written when the pod comes in)"
            )
    if asks and spec.get("nodeName"):
        raise NotBindableError(
            f"spec.nodeName: {str(spec['nodeName'])[:_SHOWN]}: a pod that asks for a class is "
            "placed by the scheduler, which alone looks whether the node has it (leave it out, or "
            "choose a node by spec.nodeSelector)"
        )
    annotations = {bound_key(name): bound_text(found) for name, found in bound.items()}
    patch += _annotation_steps("annotations" in metadata and metadata["annotations"], annotations)
    used = {one.class_name: one for found in bound.values() for one in found}
    return BoundPod(tuple(patch), bound, tuple(_notes(used, names)))


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    for key in _LISTS:
        yield from mappings(spec.get(key), f"spec.{key}")


def _amounts(container: Mapping[str, Any], path: str) -> tuple[Amounts, Amounts]:
    """Limits and requests."""
    resources = mapping(container.get("resources"), f"{path}.resources")
    limits = mapping(resources.get("limits"), f"{path}.resources.limits")
    return limits, mapping(resources.get("requests"), f"{path}.resources.requests")


def _asked(
    container: Mapping[str, Any], path: str, names: Mapping[str, RawName | Unbindable]
) -> Iterator[tuple[str, tuple[str, int]]]:
    """The classes that a container asks for, in order: the raw name of each, and how many."""
    limits, requests = _amounts(container, path)
    wanted = sorted({one for key in (*limits, *requests) if (one := class_of(str(key)))})
    for name in wanted:
        count = _count(limits, requests, class_resource(name), path)
        if not count:
            continue
        found = names.get(name)
        if found is None:
            raise NotBindableError(
                f"{path}.resources: {no_such_class(name, names)} (kubectl get resourceclasses "
                "lists them)"
            )
        if isinstance(found, Unbindable):
            raise NotBindableError(f"{path}.resources: {found}")
        yield name, (found.resource, count)


def _count(limits: Amounts, requests: Amounts, name: str, path: str) -> int:
    """How many devices are asked for by a name: 0 where none are."""
    where = f"{path}.resources"
    if name not in limits and name in requests:
        raise NotBindableError(
            f"{where}.limits[{name}]: has to be there, as devices are not overcommitted"
        )
    if name not in limits:
        return 0
    limit = quantity_from_api(limits[name], f"{where}.limits[{name}]")
    request = quantity_from_api(requests.get(name, limits[name]), f"{where}.requests[{name}]")
    if limit != request:
        raise NotBindableError(
            f"{where}.requests[{name}]: is {request}, and has to be the limit, {limit}"
        )
    count = limit.value()
    if limit.sign < 0 or Quantity(count) != limit:
        raise NotBindableError(f"{where}.limits[{name}]: is {limit}, and has to be a whole number")
    if count > MOST:
        raise NotBindableError(f"{where}.limits[{name}]: is {limit}, and may be {MOST} at most")
    return count


def _said(annotations: Mapping[str, Any], container: str) -> tuple[Bound, ...]:
    """What a container's annotation says already; none where there is none."""
    key = bound_key(container)
    try:
        return parsed_bound(str(annotations.get(key, "")))
    except ValueError as error:
        raise NotBindableError(f"metadata.annotations[{key}]: {error}") from None


def _plain(bound: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """Without where they are from, which is known when a node is: a pod may be created again."""
    return tuple(Bound(one.class_name, one.resource, one.count) for one in bound)


def _refuse_long(name: str, path: str) -> None:
    if len(name) > LONGEST_CONTAINER:
        raise NotBindableError(
            f"{path}.name: {name} has {len(name)} characters; a container that asks for a class "
            f"has {LONGEST_CONTAINER} at most, as the name is part of an annotation's"
        )


def _steps(
    container: Mapping[str, Any], path: str, bound: tuple[Bound, ...], has: tuple[Bound, ...]
) -> Iterator[Step]:
    """What adds the raw devices to limits and requests; nothing where they are there."""
    limits, requests = _amounts(container, path)
    needed: dict[str, int] = {}
    for one in bound:
        needed[one.resource] = needed.get(one.resource, 0) + one.count
    own = {name: _count(limits, requests, name, path) for name in needed}
    if has:
        for name, count in needed.items():
            if own[name] < count:
                raise NotBindableError(
                    f"{path}.resources.limits[{name}]: is {own[name]}, and the pod's annotation "
                    f"says {count} (leave the annotation out)"
                )
        return
    total = {name: str(own[name] + count) for name, count in needed.items()}
    pointer = "/" + path.replace(".", "/").replace("[", "/").replace("]", "") + "/resources"
    if not container.get("resources"):
        yield Step("add", pointer, {"limits": total, "requests": total})
        return
    for part, held in (("limits", limits), ("requests", requests)):
        if held:
            for name, text in total.items():
                op = "replace" if name in held else "add"
                yield Step(op, f"{pointer}/{part}/{_escaped(name)}", text)
        else:
            yield Step("add", f"{pointer}/{part}", total)


def _annotation_steps(held: object, wanted: Mapping[str, str]) -> Iterator[Step]:
    if wanted and not isinstance(held, Mapping):
        yield Step("add", "/metadata/annotations", dict(wanted))
    elif isinstance(held, Mapping):
        for key, text in wanted.items():
            if held.get(key) != text:
                op = "replace" if key in held else "add"
                yield Step(op, f"/metadata/annotations/{_escaped(key)}", text)


def _escaped(name: str) -> str:
    """A name as part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _notes(used: Mapping[str, Bound], names: Mapping[str, RawName | Unbindable]) -> Iterator[str]:
    for name, one in sorted(used.items()):
        found = names[name]
        if isinstance(found, RawName) and not found.nodes:
            yield f"class {name}: no node has {one.resource} of it now; the pod waits for one"
