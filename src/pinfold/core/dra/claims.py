"""Pods and quotas that name classes, as those that claim devices, and back.

A pod that asks for classes gets one claim from a template, with a request for each container and
class.  Source: ``resource.k8s.io/v1`` (1.34), ``ResourceClaimTemplateSpec``; ``v1beta1`` has no
``exactly``; quota: ``pkg/quota/v1/evaluator/core/resource_claims.go``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.core.classes.api import pod_with_classes
from pinfold.core.classes.names import class_of, class_resource, with_class_quota
from pinfold.core.dra.names import API_VERSION, MOST_REQUESTS, DRAError
from pinfold.core.pod.api import quantities_from_api, quantity_from_api
from pinfold.core.pod.manifest.fields import mapping, mappings, number, text_of
from pinfold.core.values.names import LONGEST_LABEL, LONGEST_SUBDOMAIN

TEMPLATE: Final = "ResourceClaimTemplate"
CLAIM: Final = "ResourceClaim"
QUOTA_SUFFIX: Final = ".deviceclass.resource.k8s.io/devices"

_CLAIM_NAME: Final = "classes"
_MOST_RESULTS: Final = 32
_LISTS: Final = ("initContainers", "containers")
_PARTS: Final = ("requests", "limits")
_BOUND: Final = "binding.pinfold.dev/"
_REQUESTS: Final = "requests."
_KNOWN_REQUEST: Final = frozenset(
    {"name", "exactly", "firstAvailable", "deviceClassName", "count", "allocationMode"}
)


class Claimed(Struct, frozen=True):
    """A pod (or template of pods) that claims, the template of its claim, and notes."""

    pod: Mapping[str, Any]
    template: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


class Wanted(Struct, frozen=True):
    """One request of a template: so many devices of a class."""

    class_name: str
    count: int


def pod_with_claims(
    pod: Mapping[str, Any], name: str, namespace: str | None, classes: Collection[str], path: str
) -> Claimed:
    """A pod that claims what it asked for by class.

    Args:
        pod: a Pod manifest, or the template of pods.
        name: of the pod or the workload, by which the template is called.
        namespace: the namespace of both, None where none is said.
        classes: the names of the classes that there are.
        path: where the pod is in its object, such as ``spec.template.``.

    Raises:
        PodError: a field that is wrong, or what no claim can ask for.
    """
    pod = pod_with_classes(pod, classes, path)
    spec = mapping(pod.get("spec"), f"{path}spec")
    metadata = mapping(pod.get("metadata"), f"{path}metadata")
    requests: dict[str, Wanted] = {}
    notes: list[str] = []
    lists: dict[str, Any] = {}
    containers = [
        (key, one, where)
        for key in _LISTS
        for one, where in mappings(spec.get(key), f"{path}spec.{key}")
    ]
    used = {str(one.get("name")) for _, one, _ in containers}
    claim = _unused(_CLAIM_NAME, {str(one.get("name")) for one in _claims_of(spec, path)})
    for key, container, where in containers:
        wanted = dict(_asked(container, where))
        lists.setdefault(key, []).append(container)
        if not wanted:
            continue
        title = text_of(container.get("name"), f"{where}.name") or "container"
        mine: list[dict[str, str]] = []
        for class_name, count in sorted(wanted.items()):
            if count:
                request = title if title not in requests else _unused(title, used | requests.keys())
                requests[request] = Wanted(class_name, count)
                mine.append({"name": claim, "request": request})
        if mine and key == "initContainers" and container.get("restartPolicy") != "Always":
            notes.append(
                f"{where}: its devices stay with the pod to its end; by class they would have been "
                "free for the containers after it"
            )
        lists[key][-1] = _without_classes(container, mine)
    for key in sorted(metadata.get("annotations") or {}):
        if requests and str(key).startswith(_BOUND):
            raise DRAError(
                f"{path}metadata.annotations[{str(key)[:80]}]",
                "a pod that has been bound to devices; convert the manifest that it was made of",
            )
    if not lists or all(lists[key] == spec.get(key) for key in lists):
        return Claimed(pod)
    if not requests:
        return Claimed({**pod, "spec": {**spec, **lists}})
    _check_size(requests, f"{path}spec")
    notes += _unknown_classes(requests.values(), classes)
    template = _template(_template_name(name), namespace, requests)
    claims = [
        *_claims_of(spec, path),
        {"name": claim, "resourceClaimTemplateName": template["metadata"]["name"]},
    ]
    return Claimed(
        {**pod, "spec": {**spec, **lists, "resourceClaims": claims}}, template, tuple(notes)
    )


def template_requests(manifest: Mapping[str, Any]) -> dict[str, Wanted]:
    """What a ResourceClaimTemplate asks for, by the names of its requests.

    Raises:
        PodError: a field that is wrong, or that no class stands for.
    """
    spec = mapping(manifest.get("spec"), "spec")
    devices = mapping(mapping(spec.get("spec"), "spec.spec").get("devices"), "spec.spec.devices")
    for field in sorted(str(name)[:80] for name in devices.keys() - {"requests"}):
        if devices.get(field):
            raise DRAError(
                f"spec.spec.devices.{field}", "a container that asks by class has nothing for it"
            )
    found: dict[str, Wanted] = {}
    for request, path in mappings(devices.get("requests"), "spec.spec.devices.requests"):
        name = text_of(request.get("name"), f"{path}.name") or ""
        if request.get("firstAvailable"):
            raise DRAError(
                f"{path}.firstAvailable",
                "a container asks for one class; make one that selects all of them",
            )
        exact = mapping(request.get("exactly"), f"{path}.exactly") or request
        at = f"{path}.exactly" if exact is not request else path
        for field in sorted(str(name)[:80] for name in exact.keys() - _KNOWN_REQUEST):
            if exact.get(field):
                raise DRAError(f"{at}.{field}", "a container that asks by class cannot say it")
        if text_of(exact.get("allocationMode"), f"{at}.allocationMode") == "All":
            raise DRAError(f"{at}.allocationMode", "a container asks for a number of devices")
        class_name = text_of(exact.get("deviceClassName"), f"{at}.deviceClassName")
        if not class_name:
            raise DRAError(f"{at}.deviceClassName", "Required value")
        found[name] = Wanted(class_name, number(exact.get("count"), f"{at}.count") or 1)
    return found


def template_notes(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What of a ResourceClaimTemplate no pod has that asks by class; raises PodError."""
    spec = mapping(manifest.get("spec"), "spec")
    for field in sorted(str(name)[:80] for name in spec.keys() - {"spec"}):
        if spec.get(field):
            yield f"spec.{field} is left out: there is no claim to have it"


def pod_with_class_resources(
    pod: Mapping[str, Any],
    templates: Mapping[str, Mapping[str, Wanted]],
    resources: Mapping[str, str],
    path: str,
) -> Mapping[str, Any]:
    """A pod that asks by class for what it claimed.

    Args:
        pod: a Pod manifest, or the template of pods.
        templates: the templates of its namespace: name -> :func:`template_requests`.
        resources: extended resource -> the class whose devices serve it.
        path: where the pod is in its object.

    Raises:
        PodError: a field that is wrong, or a claim that no class stands for.
    """
    spec = mapping(pod.get("spec"), f"{path}spec")
    claimed: dict[str, Mapping[str, Wanted]] = {}
    for one, where in mappings(spec.get("resourceClaims"), f"{path}spec.resourceClaims"):
        name = text_of(one.get("name"), f"{where}.name") or ""
        template = text_of(
            one.get("resourceClaimTemplateName"), f"{where}.resourceClaimTemplateName"
        )
        if template is None:
            raise DRAError(
                f"{where}.resourceClaimName",
                "pods may share this claim; devices by class belong to one container",
            )
        if template not in templates:
            raise DRAError(
                f"{where}.resourceClaimTemplateName",
                f"there is no ResourceClaimTemplate {template[:253]} among these",
            )
        claimed[name] = templates[template]
    taken: dict[tuple[str, str], str] = {}
    lists: dict[str, Any] = {}
    for key in _LISTS:
        for container, where in mappings(spec.get(key), f"{path}spec.{key}"):
            lists.setdefault(key, []).append(_by_class(container, where, claimed, resources, taken))
    for claim, requests in claimed.items():
        for request in requests:
            if (claim, request) not in taken:
                raise DRAError(
                    f"{path}spec.resourceClaims[{claim}]",
                    f"no container has its request {request}; by class a container has its devices",
                )
    kept = {key: value for key, value in spec.items() if key != "resourceClaims"}
    return {**pod, "spec": {**kept, **lists}}


def quota_of_claims(quota: Mapping[str, Any], classes: Collection[str]) -> Mapping[str, Any]:
    """A ResourceQuota of classes as one of device classes; raises PodError."""
    quota = with_class_quota(quota, classes)
    return _renamed(quota, _claim_limit)


def unknown_quota_classes(quota: Mapping[str, Any], classes: Collection[str]) -> Iterator[str]:
    """Yield what a quota of device classes limits that is not there; raises PodError."""
    spec = mapping(quota.get("spec"), "spec")
    for name in mapping(spec.get("hard"), "spec.hard"):
        found = name.removesuffix(QUOTA_SUFFIX) if isinstance(name, str) else name
        if found != name and found not in classes:
            yield f"class {found} is not among these: a DeviceClass of its name has to be there"


def quota_of_classes(quota: Mapping[str, Any], resources: Mapping[str, str]) -> Mapping[str, Any]:
    """A ResourceQuota of device classes as one of classes; raises PodError."""
    return _renamed(quota, lambda name: _class_limit(name, resources))


def _claim_limit(name: str) -> str | None:
    found = class_of(name.removeprefix(_REQUESTS)) if name.startswith(_REQUESTS) else None
    return None if found is None else f"{found}{QUOTA_SUFFIX}"


def _class_limit(name: str, resources: Mapping[str, str]) -> str | None:
    if name.endswith(QUOTA_SUFFIX):
        found: str | None = name.removesuffix(QUOTA_SUFFIX)
    else:
        found = resources.get(name.removeprefix(_REQUESTS)) if name.startswith(_REQUESTS) else None
    return None if found is None else f"{_REQUESTS}{class_resource(found)}"


def _renamed(quota: Mapping[str, Any], rename: Callable[[str], str | None]) -> Mapping[str, Any]:
    spec = mapping(quota.get("spec"), "spec")
    hard: dict[str, Any] = {}
    for name, amount in mapping(spec.get("hard"), "spec.hard").items():
        key = (rename(name) if isinstance(name, str) else None) or name
        if hard.get(key, amount) != amount:
            raise DRAError(f"spec.hard[{str(name)[:160]}]", f"{key} is limited already, otherwise")
        hard[key] = amount
    return {**quota, "spec": {**spec, "hard": hard}}


def _asked(container: Mapping[str, Any], path: str) -> Iterator[tuple[str, int]]:
    """The classes that a container asks for, and how many devices of each."""
    resources = mapping(container.get("resources"), f"{path}.resources")
    requests, limits = (
        quantities_from_api(
            {
                name: amount
                for name, amount in mapping(resources.get(part), f"{path}.resources.{part}").items()
                if isinstance(name, str) and class_of(name) is not None
            },
            f"{path}.resources.{part}",
        )
        for part in _PARTS
    )
    for resource in {**requests, **limits}:
        amount = limits.get(resource, requests.get(resource))
        where = f"{path}.resources.limits[{resource}]"
        if amount is None or requests.get(resource, amount) != amount:
            raise DRAError(where, "must be equal to the request, as devices are not overcommitted")
        if amount.sign < 0 or amount.value() * 1000 != amount.milli_value():
            raise DRAError(where, f"Invalid value: {amount}: must be a whole number of devices")
        yield class_of(resource) or "", amount.value()


def _without_classes(container: Mapping[str, Any], claims: list[dict[str, str]]) -> dict[str, Any]:
    """A container that claims, and asks for nothing by class."""
    resources = dict(container["resources"])
    for part in _PARTS:
        if part in resources:
            held = {
                name: amount
                for name, amount in (resources.pop(part) or {}).items()
                if class_of(str(name)) is None
            }
            resources |= {part: held} if held else {}
    if claims:
        resources["claims"] = [*(resources.get("claims") or []), *claims]
    kept = {key: value for key, value in container.items() if key != "resources"}
    return kept | ({"resources": resources} if resources else {})


def _check_size(requests: Mapping[str, Wanted], path: str) -> None:
    devices = sum(one.count for one in requests.values())
    if len(requests) > MOST_REQUESTS or devices > _MOST_RESULTS:
        raise DRAError(
            path,
            f"asks {len(requests)} times for {devices} devices in all; a claim has at most "
            f"{MOST_REQUESTS} requests and {_MOST_RESULTS} devices",
        )


def _unknown_classes(requests: Iterable[Wanted], classes: Collection[str]) -> Iterator[str]:
    for name in sorted({one.class_name for one in requests} - set(classes)):
        yield f"class {name} is not among these: a DeviceClass of its name has to be there"


def _template_name(name: str) -> str:
    end = f"-{_CLAIM_NAME}"
    return name[: LONGEST_SUBDOMAIN - len(end)].rstrip("-.") + end


def _template(name: str, namespace: str | None, requests: Mapping[str, Wanted]) -> dict[str, Any]:
    asked = [
        {"name": request, "exactly": {"deviceClassName": one.class_name, "count": one.count}}
        for request, one in requests.items()
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": TEMPLATE,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {"spec": {"devices": {"requests": asked}}},
    }


def _claims_of(spec: Mapping[str, Any], path: str) -> list[Mapping[str, Any]]:
    return [one for one, _ in mappings(spec.get("resourceClaims"), f"{path}spec.resourceClaims")]


def _unused(name: str, used: Collection[str]) -> str:
    """The name, with a number where it is taken; a DNS label if the name is."""
    found, number_ = name, 1
    while found in used:
        number_ += 1
        end = f"-{number_}"
        found = f"{name[: LONGEST_LABEL - len(end)].rstrip('-')}{end}"
    return found


def _by_class(
    container: Mapping[str, Any],
    path: str,
    claimed: Mapping[str, Mapping[str, Wanted]],
    resources: Mapping[str, str],
    taken: dict[tuple[str, str], str],
) -> Mapping[str, Any]:
    """A container that asks by class; who has which request is written into ``taken``."""
    held = mapping(container.get("resources"), f"{path}.resources")
    counts: dict[str, int] = {}
    for one, where in mappings(held.get("claims"), f"{path}.resources.claims"):
        claim = text_of(one.get("name"), f"{where}.name") or ""
        if claim not in claimed:
            raise DRAError(f"{where}.name", f"there is no claim {claim[:63]} in the pod")
        only = text_of(one.get("request"), f"{where}.request")
        if only and only not in claimed[claim]:
            raise DRAError(f"{where}.request", f"there is no request {only[:63]} in the template")
        for request in [only] if only else claimed[claim]:
            wanted = claimed[claim][request]
            if (claim, request) in taken:
                raise DRAError(
                    where, f"shared with {taken[claim, request]}; by class devices are not shared"
                )
            taken[claim, request] = path
            counts[wanted.class_name] = counts.get(wanted.class_name, 0) + wanted.count
    parts: dict[str, Any] = {}
    for part in _PARTS:
        for name, amount in mapping(held.get(part), f"{path}.resources.{part}").items():
            key = class_resource(resources[name]) if name in resources else name
            parts.setdefault(part, {})[key] = amount
    for class_name, count in counts.items():
        key = class_resource(class_name)
        limits = parts.setdefault("limits", {})
        before = quantity_from_api(limits.get(key, 0), f"{path}.resources.limits[{key}]")
        limits[key] = before.value() + count
        if key in parts.get("requests", {}):
            parts["requests"][key] = limits[key]
    rest = {key: value for key, value in held.items() if key not in (*_PARTS, "claims")}
    if not (parts or rest or "resources" in container):
        return container
    kept = {key: value for key, value in container.items() if key != "resources"}
    found = rest | parts
    return kept | ({"resources": found} if found else {})
