"""The labels and annotations by which pods and containers are found again.

``io.kubernetes.*`` are the kubelet's, for crictl and every other tool; ``pinfold.dev/managed``
tells ours from a kubelet's, which are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerSpec

POD_NAME: Final = "io.kubernetes.pod.name"
POD_NAMESPACE: Final = "io.kubernetes.pod.namespace"
POD_UID: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME: Final = "io.kubernetes.container.name"
MANAGED: Final = "pinfold.dev/managed"
OURS: Final[Mapping[str, str]] = {MANAGED: "true"}

ATTEMPT: Final = "pinfold.dev/attempt"
GRACE_PERIOD: Final = "pinfold.dev/grace-period"
CREATION: Final = "pinfold.dev/creation"
KEEPSAKE: Final = "pinfold.dev/keepsake"
HOST_NETWORK: Final = "pinfold.dev/host-network"


def pod_labels(spec: ContainerSpec) -> dict[str, str]:
    """What a pod's sandbox is found by."""
    return {
        POD_NAME: spec.pod_name,
        POD_NAMESPACE: spec.namespace,
        POD_UID: spec.key.pod_uid,
        **OURS,
    }


def container_labels(spec: ContainerSpec) -> dict[str, str]:
    """What a container is found by."""
    return {**pod_labels(spec), CONTAINER_NAME: spec.key.name}


def is_ours(labels: Mapping[str, str]) -> bool:
    """Whether it was made here, and can be told apart."""
    return (
        labels.get(MANAGED) == "true"
        and bool(labels.get(POD_UID))
        and bool(labels.get(CONTAINER_NAME))
    )


def key_of(labels: Mapping[str, str]) -> ContainerKey:
    """Which container it is."""
    return ContainerKey(labels[POD_UID], labels[CONTAINER_NAME])


def whole_number(annotations: Mapping[str, str], name: str, default: int) -> int:
    """An annotation that is a number; ``default`` where it is none."""
    text = annotations.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default
