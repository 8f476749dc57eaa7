"""A pod of a plan as the webhook for classes would let it in: bound to raw names, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from pinfold.core.classes.binding import bound_pod
from pinfold.core.classes.bound import Bound, bound_key, bound_text
from pinfold.core.classes.names import class_of
from pinfold.core.classes.raw_names import RawName, Unbindable
from pinfold.core.pod.pod import Container, Pod, Resources
from pinfold.core.values.quantity import Quantity

Names = Mapping[str, RawName | Unbindable]
"""What each class is asked for by, or why it cannot be."""


def bind(pod: Pod, names: Names) -> Pod:
    """The pod with the raw name beside each class, and the annotations that say what is what.

    Raises:
        NotBindableError: it asks for what nobody can give it.
    """
    containers = (*pod.init_containers, *pod.containers)
    if not any(class_of(name) for one in containers for name in (*one.limits, *one.requests)):
        return pod
    bound = bound_pod(_manifest(pod), names).bound
    said = {bound_key(name): bound_text(found) for name, found in bound.items()}

    def beside(one: Container) -> Container:
        found = bound.get(one.name, ())
        if not found:
            return one
        return replace(one, requests=_more(one.requests, found), limits=_more(one.limits, found))

    return replace(
        pod,
        annotations={**pod.annotations, **said},
        init_containers=tuple(map(beside, pod.init_containers)),
        containers=tuple(map(beside, pod.containers)),
    )


def _more(held: Resources, bound: tuple[Bound, ...]) -> Resources:
    counts = Counter[str]()
    for one in bound:
        counts[one.resource] += one.count
    return {
        **held,
        **{name: held.get(name, Quantity(0)) + Quantity(count) for name, count in counts.items()},
    }


def _manifest(pod: Pod) -> dict[str, Any]:
    """What of a pod the webhook looks at, as the API has it."""

    def shown(containers: tuple[Container, ...]) -> list[dict[str, Any]]:
        return [
            {
                "name": one.name,
                "resources": {
                    "limits": {name: str(amount) for name, amount in one.limits.items()},
                    "requests": {name: str(amount) for name, amount in one.requests.items()},
                },
            }
            for one in containers
        ]

    return {
        "metadata": {"annotations": dict(pod.annotations)},
        "spec": {
            "nodeName": pod.node_name,
            "initContainers": shown(pod.init_containers),
            "containers": shown(pod.containers),
        },
    }
