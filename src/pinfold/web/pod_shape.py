"""What a manifest says of a pod: its class, and which containers of which kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.pod import Container, Pod


class PodShape(Struct, frozen=True):
    """What a manifest says of a pod: QoS class, and containers as (name, kind)."""

    qos: str
    containers: tuple[tuple[str, str], ...]


def kinds(pod: Pod) -> Iterable[tuple[Container, str]]:
    """Each container with its kind: ``init``, ``sidecar`` or ``container``."""
    for container in pod.init_containers:
        yield container, "sidecar" if container.is_sidecar else "init"
    for container in pod.containers:
        yield container, "container"


def shape_of(manifest: str) -> PodShape:
    """Of a pod on record; an empty one where a manifest is none."""
    try:
        fields = msgspec.json.decode(manifest, type=dict[str, Any])
        pod = workload_from_api(fields, admitted=True).pod
    except (PodError, msgspec.DecodeError):
        # A record of another version may hold what is no pod today; it has ended anyway.
        return PodShape("", ())
    return PodShape(pod.qos.value, tuple((c.name, kind) for c, kind in kinds(pod)))
