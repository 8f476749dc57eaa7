"""What the API server would refuse in a pod, as far as resources go, in its words.

Source: upstream ``pkg/apis/core/validation`` (1.34).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinfold.core.pod import CPU, MEMORY, Container, Pod, Resources
from pinfold.core.pod_api import PodError

_OVERCOMMITTED = frozenset({CPU, MEMORY, "ephemeral-storage"})


def validate_pod(pod: Pod, path: str = "") -> None:
    """Check a pod after defaulting.

    Args:
        pod: the pod.
        path: where its ``spec`` is in the object, such as ``spec.template.``.

    Raises:
        PodError: the first thing that the API server would refuse.
    """
    for problem in _problems(pod, path):
        raise problem


def _problems(pod: Pod, path: str) -> Iterator[PodError]:
    if not pod.name:
        yield PodError(f"{path}metadata.name", "Required value: name or generateName is required")
    if not pod.containers:
        yield PodError(f"{path}spec.containers", "Required value")
    seen: set[str] = set()
    for key, containers in (
        ("initContainers", pod.init_containers),
        ("containers", pod.containers),
    ):
        yield from _container_problems(containers, f"{path}spec.{key}", seen)
    yield from _negative(pod.overhead, f"{path}spec.overhead")
    if pod.resources is not None:
        where = f"{path}spec.resources"
        yield from _resource_problems(pod.resources.requests, pod.resources.limits, where)


def _container_problems(
    containers: Sequence[Container], path: str, seen: set[str]
) -> Iterator[PodError]:
    for index, container in enumerate(containers):
        here = f"{path}[{index}]"
        if container.name in seen:
            yield PodError(f"{here}.name", f'Duplicate value: "{container.name}"')
        seen.add(container.name)
        if container.requests or container.limits:
            where = f"{here}.resources"
            yield from _resource_problems(container.requests, container.limits, where)


def _resource_problems(requests: Resources, limits: Resources, path: str) -> Iterator[PodError]:
    yield from _negative(limits, f"{path}.limits")
    yield from _negative(requests, f"{path}.requests")
    for name, request in requests.items():
        limit = limits.get(name)
        if limit is None:
            if name not in _OVERCOMMITTED and not _is_standard(name):
                yield PodError(
                    f"{path}.limits",
                    "Required value: Limit must be set for non overcommitable resources",
                )
        elif name in _OVERCOMMITTED or name == "storage":
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


def _is_standard(name: str) -> bool:
    return "/" not in name and not name.startswith("hugepages-")


def _negative(resources: Resources, path: str) -> Iterator[PodError]:
    for name, quantity in resources.items():
        if quantity.sign < 0:
            yield PodError(
                f"{path}.{name}",
                f'Invalid value: "{quantity}": must be greater than or equal to 0',
            )
