"""What the API server would refuse in a pod, as far as resources go, in its words.

Source: upstream ``pkg/apis/core/validation`` (1.34).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pinfold.core.pod.annotation_values import MAX_GRACE_PERIOD
from pinfold.core.pod.api import PodError, quantity_from_api
from pinfold.core.pod.hugepages import is_divisible
from pinfold.core.pod.manifest.downward_validation import downward_problems, resource_field_problems
from pinfold.core.pod.manifest.names import CONTAINER_LISTS, items, name_problems, refused
from pinfold.core.pod.pod import (
    CPU,
    MEMORY,
    NO_RESOURCES,
    Container,
    Pod,
    Resources,
    container_limits,
    container_requests,
    is_hugepages,
    is_pod_level_resource,
)
from pinfold.core.pod.resource_names import container_resource_problem, may_be_overcommitted
from pinfold.core.values.names import label_problems, subdomain_problems
from pinfold.core.values.quantity import Quantity
from pinfold.core.values.resource_names import is_extended

_FORKS_VOLUME: Final = "hugePages"
_SIZE: Final = re.compile(r"[0-9]{1,15}[KMG]i?")


def validate_pod(pod: Pod, path: str = "") -> None:
    """Check a pod after defaulting; ``path`` is where its ``spec`` is: ``spec.template.``.

    Raises:
        PodError: the first thing that the API server would refuse.
    """
    for problem in pod_problems(pod, path):
        raise problem


def pod_problems(pod: Pod, path: str = "") -> Iterator[PodError]:
    """Yield everything that the API server would refuse; arguments as :func:`validate_pod`."""
    if not pod.name:
        yield PodError(f"{path}metadata.name", "Required value: name or generateName is required")
    else:
        yield from refused(pod.name, subdomain_problems, f"{path}metadata.name")
    yield from refused(pod.namespace, label_problems, f"{path}metadata.namespace")
    if not pod.containers:
        yield PodError(f"{path}spec.containers", "Required value")
    seen: set[str] = set()
    for key, containers in (
        ("initContainers", pod.init_containers),
        ("containers", pod.containers),
    ):
        yield from _container_problems(containers, f"{path}spec.{key}", seen)
    if pod.overhead:
        yield from _resource_problems(NO_RESOURCES, pod.overhead, f"{path}spec.overhead")
    if pod.resources is not None:
        yield from _pod_level_problems(pod, f"{path}spec.resources")
    grace = pod.scale_down_grace_period
    if grace is not None and not 0 <= grace <= MAX_GRACE_PERIOD:
        yield PodError(
            f"{path}spec.scaleDownGracePeriodSeconds",
            f"Invalid value: {grace}: must be between 0 and {MAX_GRACE_PERIOD}, inclusive",
        )


def _container_problems(
    containers: Sequence[Container], path: str, seen: set[str]
) -> Iterator[PodError]:
    for index, container in enumerate(containers):
        here = f"{path}[{index}]"
        yield from refused(container.name, label_problems, f"{here}.name")
        if container.name in seen:
            yield PodError(f"{here}.name", f'Duplicate value: "{container.name}"')
        seen.add(container.name)
        if container.requests or container.limits:
            where = f"{here}.resources"
            yield from _resource_problems(container.requests, container.limits, where)


def requirement_problems(
    requests: Resources, limits: Resources, path: str = "resources"
) -> Iterator[PodError]:
    """Yield what is wrong with a container's resources by themselves.

    This is upstream's smaller validator (``pkg/apis/core/v1/validation``): it asks neither whole
    pages nor a limit where there must be one.
    """
    for name, quantity in limits.items():
        yield from _amount_problems(name, quantity, f"{path}.limits")
    for name, quantity in requests.items():
        yield from _amount_problems(name, quantity, f"{path}.requests")
        if name in limits:
            yield from _limit_problems(name, quantity, limits[name], path)


def _resource_problems(requests: Resources, limits: Resources, path: str) -> Iterator[PodError]:
    yield from requirement_problems(requests, limits, path)
    for key, resources in (("limits", limits), ("requests", requests)):
        for name, quantity in resources.items():
            if is_hugepages(name) and not is_divisible(name, quantity):
                yield PodError(
                    f"{path}.{key}[{name}]",
                    f'Invalid value: "{quantity}": {quantity} is not positive integer multiple '
                    f"of {name}",
                )
    for name in requests:
        if name not in limits and not may_be_overcommitted(name):
            yield PodError(
                f"{path}.limits",
                "Required value: Limit must be set for non overcommitable resources",
            )
    names = {*limits, *requests}
    if CPU not in names and MEMORY not in names and any(map(is_hugepages, names)):
        yield PodError(path, "Forbidden: HugePages require cpu or memory")


def _amount_problems(name: str, quantity: Quantity, path: str) -> Iterator[PodError]:
    problem = container_resource_problem(name)
    if problem:
        yield PodError(f"{path}[{name}]", f'Invalid value: "{name}": {problem}')
    if quantity.sign < 0:
        yield PodError(
            f"{path}[{name}]", f'Invalid value: "{quantity}": must be greater than or equal to 0'
        )
    if is_extended(name) and quantity.milli_value() % 1000:
        yield PodError(f"{path}[{name}]", f'Invalid value: "{quantity}": must be an integer')


def _limit_problems(name: str, request: Quantity, limit: Quantity, path: str) -> Iterator[PodError]:
    if may_be_overcommitted(name):
        if limit < request:
            yield PodError(
                f"{path}.requests",
                f'Invalid value: "{request}": must be less than or equal to '
                f"{name} limit of {limit}",
            )
    elif limit != request:
        yield PodError(
            f"{path}.requests",
            f'Invalid value: "{request}": must be equal to {name} limit of {limit}',
        )


def _pod_level_problems(pod: Pod, path: str) -> Iterator[PodError]:
    if pod.resources is None:
        return
    requests, limits = pod.resources.requests, pod.resources.limits
    for key, resources in (("limits", limits), ("requests", requests)):
        for name in resources:
            if not is_pod_level_resource(name):
                yield PodError(
                    f"{path}.{key}[{name}]",
                    f'Unsupported value: "{name}": supported values: "cpu", "hugepages-", "memory"',
                )
    yield from _resource_problems(requests, limits, path)
    yield from _aggregate_problems(requests, container_requests(pod), f"{path}.requests")
    pages = {n: q for n, q in container_limits(pod).items() if is_hugepages(n)}
    yield from _aggregate_problems(limits, pages, f"{path}.limits")
    for index, container in enumerate(pod.containers):
        for name, quantity in container.limits.items():
            if name in limits and limits[name] < quantity:
                yield PodError(
                    f"{path}.containers[{index}][{name}].limits",
                    f'Invalid value: "{quantity}": must be less than or equal to '
                    f"pod limits of {limits[name]}",
                )


def _aggregate_problems(whole: Resources, parts: Resources, path: str) -> Iterator[PodError]:
    key = path.rpartition(".")[2]
    for name, quantity in parts.items():
        if name in whole and whole[name] < quantity:
            yield PodError(
                f"{path}[{name}]",
                f'Invalid value: "{whole[name]}": must be greater than or equal to '
                f"aggregate container {key} of {quantity}",
            )


def validate_manifest(manifest: Mapping[str, Any], path: str = "") -> None:
    """Check what :func:`validate_pod` cannot see, as its fields are not part of a pod here.

    Raises:
        PodError: the first of :func:`manifest_problems`.
    """
    for problem in manifest_problems(manifest, path):
        raise problem


def manifest_problems(manifest: Mapping[str, Any], path: str = "") -> Iterator[PodError]:
    """Yield what the API server would refuse in fields of a pod that only its manifest has.

    These are names, the size limits of ``emptyDir`` volumes, the files of ``downwardAPI`` volumes,
    variables of ``resourceFieldRef`` and volumes ``hugePages``, which only Intel's fork had: a pod
    without the pages that it counts on would be another one.
    Arguments are as of :func:`pinfold.core.pod.api.pod_from_api`.
    """
    yield from name_problems(manifest, path)
    spec = manifest.get("spec")
    if not isinstance(spec, Mapping):
        return
    yield from forks_volume_problems(spec, f"{path}spec")
    for volume, here in items(spec, "volumes", f"{path}spec"):
        source = volume.get("emptyDir")
        if isinstance(source, Mapping):
            yield from _size_limit_problems(source.get("sizeLimit"), f"{here}.emptyDir.sizeLimit")
        source = volume.get("downwardAPI")
        if isinstance(source, Mapping):
            yield from downward_problems(source, f"{here}.downwardAPI")
    for key in CONTAINER_LISTS:
        for container, outer in items(spec, key, f"{path}spec"):
            for variable, here in items(container, "env", outer):
                source = variable.get("valueFrom")
                field = source.get("resourceFieldRef") if isinstance(source, Mapping) else None
                if isinstance(field, Mapping):
                    yield from resource_field_problems(field, f"{here}.valueFrom.resourceFieldRef")


def forks_volume_problems(spec: Mapping[str, Any], path: str) -> Iterator[PodError]:
    """Yield the volumes ``hugePages`` of a pod's ``spec``, which is at ``path``.

    Each says what asks for the same in Kubernetes.
    """
    for volume, here in items(spec, "volumes", path):
        if _FORKS_VOLUME in volume:
            yield PodError(f"{here}.{_FORKS_VOLUME}", _forks_volume(volume[_FORKS_VOLUME]))


def _forks_volume(value: object) -> str:
    said = value if isinstance(value, Mapping) else {}
    page, size = (str(said.get(key) or "") for key in ("pageSize", "size"))
    # The fork has the kernel's units, which are powers of 1024 without the "i".
    resource = f"hugepages-{_binary(page, '2M')}"
    amount = _binary(size, "SIZE")
    return (
        f'unknown field "{_FORKS_VOLUME}": only a fork of Kubernetes had such volumes; write '
        f"emptyDir: {{medium: HugePages}}, and {resource}: {amount} into the limits of the "
        "container"
    )


def _binary(text: str, default: str) -> str:
    text = text if _SIZE.fullmatch(text) else default
    return f"{text}i" if text[-1:] in "KMG" else text


def _size_limit_problems(value: object, path: str) -> Iterator[PodError]:
    if value is None:
        return
    try:
        limit = quantity_from_api(value, path)
    except PodError as error:
        yield error
        return
    if limit.sign < 0:
        yield PodError(path, "Forbidden: SizeLimit field must be a valid resource quantity")
