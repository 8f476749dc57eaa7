"""The names of classes among a pod's resources.

Inside there is one form, :func:`class_resource`, which is an extended resource to everybody: what
a cluster's pods ask for.  The short one of the design proposal is rewritten to it where manifests
are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pinfold.core.values.names import LONGEST_LABEL, subdomain_problems

CLASS_DOMAIN: Final = "class.pinfold.dev/"
_QUOTA_PREFIX: Final = "requests."
_CONTAINER_LISTS: Final = ("initContainers", "containers")
_SHOWN: Final = 8
_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage", "storage", "pods"})
_NATIVE_PREFIXES: Final = ("hugepages-", "requests.", "limits.", "count/")


def class_resource(name: str) -> str:
    """What a pod asks for that wants a class.

    >>> class_resource("gpu-silver")
    'class.pinfold.dev/gpu-silver'
    """
    return f"{CLASS_DOMAIN}{name}"


def class_of(resource: str) -> str | None:
    """The class that a resource's name stands for; None where it is no class's."""
    return resource.removeprefix(CLASS_DOMAIN) if resource.startswith(CLASS_DOMAIN) else None


def no_such_class(name: str, known: Collection[str]) -> str:
    """What who asks for a class that nobody has defined is told.

    >>> no_such_class("glod", ["gold", "nic"])
    'there is no class glod; there is gold'
    """
    names = sorted(known)
    near = get_close_matches(name, names) or names
    more = f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else ""
    are = "is" if len(near) == 1 else "are"
    return f"there is no class {name}; there {are} {', '.join(near[:_SHOWN]) or 'none'}{more}"


def class_name_problems(name: str) -> Iterator[str]:
    """Yield why no class can be called so.

    >>> list(class_name_problems("memory"))
    ['is the name of a resource that every node has']
    """
    if "/" not in name and _is_foreign(name):
        yield "is the name of a resource that every node has"
        return
    yield from subdomain_problems(name)
    if len(name) > LONGEST_LABEL:
        yield f"must be no more than {LONGEST_LABEL} bytes, as it is part of a resource's name"


def with_class_resources(pod: Mapping[str, Any], classes: Collection[str]) -> Mapping[str, Any]:
    """A Pod manifest (or a template) that asks for classes by the names of their resources.

    Args:
        pod: the manifest; what is of another form than it has to be stays.
        classes: the names of the classes that there are.
    """
    spec = pod.get("spec")
    if not classes or not isinstance(spec, Mapping):
        return pod
    lists = {
        key: [_container(one, classes) for one in spec[key]]
        for key in _CONTAINER_LISTS
        if isinstance(spec.get(key), list)
    }
    return {**pod, "spec": {**spec, **lists}}


def doubled_names(pod: Mapping[str, Any], classes: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield where a Pod manifest asks for one class by both of its names: the field, and the name.

    >>> both = {"limits": {"gold": 1, "class.pinfold.dev/gold": 1}}
    >>> list(doubled_names({"spec": {"containers": [{"resources": both}]}}, {"gold"}))
    [('spec.containers[0].resources.limits', 'gold')]
    """
    spec = pod.get("spec")
    for key in _CONTAINER_LISTS:
        items = spec.get(key) if isinstance(spec, Mapping) else None
        for at, one in enumerate(items if isinstance(items, list) else ()):
            resources = one.get("resources") if isinstance(one, Mapping) else None
            for part in ("requests", "limits"):
                held = resources.get(part) if isinstance(resources, Mapping) else None
                if isinstance(held, Mapping):
                    both = (name for name in classes if name in held)
                    field = f"spec.{key}[{at}].resources.{part}"
                    yield from ((field, name) for name in both if class_resource(name) in held)


def unknown_names(pod: Mapping[str, Any], classes: Collection[str]) -> set[str]:
    """The names among a Pod manifest's resources that could only be those of other classes.

    >>> unknown_names({"spec": {"containers": [{"resources": {"limits": {"fast": 1}}}]}}, ())
    {'fast'}
    """
    spec = pod.get("spec")
    found: set[str] = set()
    for key in _CONTAINER_LISTS:
        items = spec.get(key) if isinstance(spec, Mapping) else None
        for one in items if isinstance(items, list) else ():
            resources = one.get("resources") if isinstance(one, Mapping) else None
            for part in ("requests", "limits"):
                held = resources.get(part) if isinstance(resources, Mapping) else None
                found |= held.keys() if isinstance(held, Mapping) else set()
    return {
        name
        for name in found
        if isinstance(name, str) and name not in classes and not _is_foreign(name)
    }


def misspelt_names(pod: Mapping[str, Any], classes: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names among a Pod manifest's resources that are nearly a class's, and its name.

    >>> pod = {"spec": {"containers": [{"resources": {"limits": {"glod": 1}}}]}}
    >>> list(misspelt_names(pod, {"gold"}))
    [('glod', 'gold')]
    """
    for name in sorted(unknown_names(pod, classes)):
        yield from ((name, near) for near in get_close_matches(name, classes, 1))


def with_class_quotas(hard: Mapping[str, Any], classes: Collection[str]) -> dict[str, Any]:
    """The limits of a quota (``spec.hard``) with classes by the names that quotas count.

    >>> with_class_quotas({"gpu-gold": "4", "requests.nvidia.com/gpu": "90"}, {"gpu-gold"})
    {'requests.class.pinfold.dev/gpu-gold': '4', 'requests.nvidia.com/gpu': '90'}
    """
    return {
        f"{_QUOTA_PREFIX}{class_resource(name)}" if name in classes else name: amount
        for name, amount in hard.items()
    }


def with_class_quota(quota: Mapping[str, Any], classes: Collection[str]) -> Mapping[str, Any]:
    """A ResourceQuota manifest with classes by the names that quotas count; as for pods."""
    spec = quota.get("spec")
    hard = spec.get("hard") if isinstance(spec, Mapping) else None
    if not classes or not isinstance(spec, Mapping) or not isinstance(hard, Mapping):
        return quota
    return {**quota, "spec": {**spec, "hard": with_class_quotas(hard, classes)}}


def _container(container: object, classes: Collection[str]) -> object:
    resources = container.get("resources") if isinstance(container, Mapping) else None
    if not isinstance(container, Mapping) or not isinstance(resources, Mapping):
        return container
    amounts = {
        key: {class_resource(name) if name in classes else name: amount for name, amount in held}
        for key in ("requests", "limits")
        if isinstance(resources.get(key), Mapping) and (held := resources[key].items())
    }
    return {**container, "resources": {**resources, **amounts}} if amounts else container


def _is_foreign(name: str) -> bool:
    """Whether no class can have it as its short name."""
    return "/" in name or name in _NATIVE or name.startswith(_NATIVE_PREFIXES)
