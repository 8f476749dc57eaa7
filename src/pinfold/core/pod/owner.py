"""The workloads that pods are of, and how users name them: ``deployment/web``.

Source: the Kubernetes API (``metav1.OwnerReference``), and the short names of ``kubectl``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": ("pod", "pods", "po"),
    "Deployment": ("deployment", "deployments", "deploy"),
    "StatefulSet": ("statefulset", "statefulsets", "sts"),
    "DaemonSet": ("daemonset", "daemonsets", "ds"),
    "ReplicaSet": ("replicaset", "replicasets", "rs"),
    "ReplicationController": ("replicationcontroller", "replicationcontrollers", "rc"),
    "Job": ("job", "jobs"),
    "CronJob": ("cronjob", "cronjobs", "cj"),
}
KIND_OF: Final[Mapping[str, str]] = {word: kind for kind, words in _KINDS.items() for word in words}
"""The kind that a word before a slash stands for; ``Pod`` is among them."""

_HASH: Final = "pod-template-hash"
"""The label by which a ReplicaSet of a Deployment is told; its name ends with the value."""


class PodOwner(Struct, frozen=True):
    """A workload that creates pods; ``namespace`` is the pods' own."""

    kind: str
    namespace: str
    name: str

    @property
    def word(self) -> str:
        """``deployment/web``."""
        return f"{self.kind.lower()}/{self.name}"


def owners_of(namespace: str, manifest: Mapping[str, Any]) -> tuple[PodOwner, ...]:
    """The workloads that a pod of a cluster is of: its controller, and that one's Deployment.

    Nothing where the object says none, or says it in no form of the API.
    """
    metadata = manifest.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    references = metadata.get("ownerReferences")
    labels = metadata.get("labels")
    labels = labels if isinstance(labels, Mapping) else {}
    found: list[PodOwner] = []
    for one in references if isinstance(references, list) else ():
        if not isinstance(one, Mapping) or one.get("controller") is not True:
            continue
        kind, name = one.get("kind"), one.get("name")
        if not isinstance(kind, str) or not isinstance(name, str):
            continue
        found.append(PodOwner(kind, namespace, name))
        ending = f"-{labels.get(_HASH)}"
        if kind == "ReplicaSet" and name.endswith(ending):
            found.append(PodOwner("Deployment", namespace, name.removesuffix(ending)))
    return tuple(found)


class PodsName(Struct, frozen=True):
    """What a user calls pods: a pod, or a workload with all that it has created.

    ``namespace`` is None where none is said; ``kind`` is ``Pod`` or that of a workload.
    """

    kind: str
    namespace: str | None
    name: str

    @property
    def full_name(self) -> str:
        """``NAMESPACE/NAME``, or the name alone."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"

    @property
    def text(self) -> str:
        """``deployment/web``, ``pod/team/web-0``."""
        return f"{self.kind.lower()}/{self.full_name}"

    @classmethod
    def parse(cls, text: str, namespace: str | None = None) -> PodsName:
        """Read ``KIND/NAME``, ``KIND/NAMESPACE/NAME``, ``NAMESPACE/NAME`` or ``NAME`` of a pod.

        Args:
            text: what was written.
            namespace: that of a name that says none.

        Raises:
            ValueError: a part is missing.

        >>> PodsName.parse("deploy/web").text
        'deployment/web'
        """
        first, slash, rest = text.partition("/")
        kind = KIND_OF.get(first.lower()) if slash else None
        plain = text if kind is None else rest
        said, slash, name = plain.rpartition("/")
        if not name or (slash and not said) or "/" in said:
            raise ValueError(f"{text!r} names no pod; write pod/NAME, NAMESPACE/NAME or KIND/NAME")
        return cls(kind or "Pod", said or namespace, name)

    def has(self, owners: Iterable[PodOwner]) -> bool:
        """Whether one of these workloads is meant."""
        return any(
            (one.kind, one.name) == (self.kind, self.name)
            and self.namespace in (None, one.namespace)
            for one in owners
        )
