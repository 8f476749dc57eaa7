"""What the API server would refuse in a pod, as far as resources go, in its words.

Source: upstream ``pkg/apis/core/validation`` (1.34).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from pinfold.core.pod import (
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    NO_RESOURCES,
    Container,
    Pod,
    Resources,
    container_limits,
    container_requests,
    is_pod_level_resource,
)
from pinfold.core.pod_api import PodError
from pinfold.core.quantity import Quantity, QuantityError

_STANDARD: Final = frozenset({CPU, MEMORY, "ephemeral-storage"})
_NAME_PART = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_LONGEST_NAME_PART: Final = 63
_NATIVE_DOMAIN: Final = "kubernetes.io/"


class _Kind(NamedTuple):
    """What may be asked of a resource of this name."""

    overcommitted: bool
    """Requests may be below limits."""
    whole: bool
    """No fractions."""
    page: int | None
    """Bytes of a huge page; 0 where the name has no size that one can have."""
    problem: str
    """Why no container can ask for it."""


def validate_pod(pod: Pod, path: str = "") -> None:
    """Check a pod after defaulting.

    Args:
        pod: the pod.
        path: where its ``spec`` is in the object, such as ``spec.template.``.

    Raises:
        PodError: the first thing that the API server would refuse.
    """
    for problem in pod_problems(pod, path):
        raise problem


def pod_problems(pod: Pod, path: str = "") -> Iterator[PodError]:
    """Yield everything that the API server would refuse; arguments as :func:`validate_pod`."""
    if not pod.name:
        yield PodError(f"{path}metadata.name", "Required value: name or generateName is required")
    for key, name in (("name", pod.name), ("namespace", pod.namespace)):
        yield from _name_problems(name, f"{path}metadata.{key}")
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


def _name_problems(name: str, path: str) -> Iterator[PodError]:
    if not name.isprintable():
        shown = name.encode("unicode_escape").decode()
        yield PodError(path, f"Invalid value: \"{shown}\": must be letters, digits, '-' and '.'")


def _container_problems(
    containers: Sequence[Container], path: str, seen: set[str]
) -> Iterator[PodError]:
    for index, container in enumerate(containers):
        here = f"{path}[{index}]"
        yield from _name_problems(container.name, f"{here}.name")
        if container.name in seen:
            yield PodError(f"{here}.name", f'Duplicate value: "{container.name}"')
        seen.add(container.name)
        if container.requests or container.limits:
            where = f"{here}.resources"
            yield from _resource_problems(container.requests, container.limits, where)


def _resource_problems(requests: Resources, limits: Resources, path: str) -> Iterator[PodError]:
    for name, quantity in limits.items():
        yield from _quantity_problems(name, quantity, path, "limits")
    for name, quantity in requests.items():
        yield from _quantity_problems(name, quantity, path, "requests")
        yield from _limit_problems(name, quantity, limits.get(name), path)
    names = (*limits, *requests)
    if CPU not in names and MEMORY not in names and any(_kind(n).page is not None for n in names):
        yield PodError(path, "Forbidden: HugePages require cpu or memory")


def _quantity_problems(name: str, quantity: Quantity, path: str, key: str) -> Iterator[PodError]:
    kind = _kind(name)
    if kind.problem:
        yield PodError(f"{path}.{key}[{name}]", f'Invalid value: "{name}": {kind.problem}')
    if quantity.sign < 0:
        yield PodError(
            f"{path}.{key}[{name}]",
            f'Invalid value: "{quantity}": must be greater than or equal to 0',
        )
    if kind.whole and quantity.milli_value() % 1000:
        yield PodError(f"{path}.{key}[{name}]", f'Invalid value: "{quantity}": must be an integer')
    if kind.page is not None and (kind.page == 0 or quantity.value() % kind.page):
        yield PodError(
            f"{path}.{key}[{name}]",
            f'Invalid value: "{quantity}": {quantity} is not positive integer multiple of {name}',
        )


def _limit_problems(
    name: str, request: Quantity, limit: Quantity | None, path: str
) -> Iterator[PodError]:
    overcommitted = _kind(name).overcommitted
    if limit is None:
        if not overcommitted:
            yield PodError(
                f"{path}.limits",
                "Required value: Limit must be set for non overcommitable resources",
            )
    elif overcommitted:
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
    pages = {n: q for n, q in container_limits(pod).items() if n.startswith(HUGEPAGES_PREFIX)}
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


@lru_cache(maxsize=1024)
def _kind(name: str) -> _Kind:
    prefix, slash, part = name.rpartition("/")
    native = not slash or _NATIVE_DOMAIN in name
    pages = name.startswith(HUGEPAGES_PREFIX)
    problem = _name_problem(part)
    if not problem and not slash and name not in _STANDARD and not pages:
        problem = "must be a standard resource for containers"
    if not problem and slash and not native and prefix.startswith("requests."):
        problem = "doesn't follow extended resource name standard"
    return _Kind(
        overcommitted=native and not pages,
        whole=not native,
        page=_page_size(name) if pages else None,
        problem=problem,
    )


def _name_problem(part: str) -> str:
    if len(part) > _LONGEST_NAME_PART:
        return f"name part must be no more than {_LONGEST_NAME_PART} bytes"
    if _NAME_PART.fullmatch(part):
        return ""
    return (
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and "
        "end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex "
        "used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
    )


def _page_size(name: str) -> int:
    try:
        size = Quantity.parse(name.removeprefix(HUGEPAGES_PREFIX))
    except QuantityError:
        return 0
    return size.value() if size.sign > 0 and size.milli_value() % 1000 == 0 else 0
