"""``assigned.cpuset`` and ``assigned.memset`` in a manifest: known only when a container starts.

KEP-6369 makes them values of ``resourceFieldRef.resource``.  Until they are known, a mark stands
for each in the texts of a pod, which nobody else can write, as no text has a NUL character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from pinfold.core.pod.api import PodError
from pinfold.core.pod.workload import Process

ASSIGNED_CPUSET: Final = "assigned.cpuset"
ASSIGNED_MEMSET: Final = "assigned.memset"
ASSIGNED: Final = (ASSIGNED_CPUSET, ASSIGNED_MEMSET)

_MARK: Final = re.compile(r"\0([^\0/]*)/([^\0]*)\0")

Values = Callable[[str, str], str]
"""What a resource is for a container: ``values(resource, container)``."""


def nothing_assigned(_resource: str, _container: str) -> str:
    """The values of a pod without exclusive CPUs."""
    return ""


def mark_of(field: Mapping[str, Any], path: str, own: str, containers: tuple[str, ...]) -> str:
    """What stands for a ``resourceFieldRef`` until it is known.

    Args:
        field: it, as the API server would take it.
        path: where it is.
        own: the container that it is in, which is meant where none is named; "" in a volume.
        containers: all of the pod.

    Raises:
        PodError: another resource, or a container that the pod does not have.
    """
    resource, name = field.get("resource"), field.get("containerName") or own
    if resource not in ASSIGNED:
        raise PodError(
            f"{path}.resource", f"only {' and '.join(ASSIGNED)} are known here; write a value"
        )
    if name not in containers:
        raise PodError(f"{path}.containerName", f'Not found: "{str(name)[:80]}"')
    return f"\0{resource}/{name}\0"


def filled(text: str, values: Values) -> str:
    """A text with what its marks stand for."""
    return _MARK.sub(lambda match: values(match[1], match[2]), text)


def filled_process(process: Process, values: Values) -> Process:
    """What a container executes, with what the marks in it stand for."""
    texts = (*process.argv, *process.command, *process.args, *process.env.values())
    if not any("\0" in text for text in texts):
        return process

    def words(some: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(filled(word, values) for word in some)

    return replace(
        process,
        argv=words(process.argv),
        command=words(process.command),
        args=words(process.args),
        env={name: filled(text, values) for name, text in process.env.items()},
    )
