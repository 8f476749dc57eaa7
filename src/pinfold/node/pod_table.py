"""The pods of a node: those that own their CPUs, and those that are remembered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct, field

from pinfold.core.pod.pod import Container, Pod
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import PodRecord


class NameTakenError(Exception):
    """There is an active pod of that name, of that uid, or with that process.

    ``remedy`` is what to do about it.
    """

    def __init__(
        self, problem: str, remedy: str = "delete it first, or choose another name"
    ) -> None:
        super().__init__(problem)
        self.remedy = remedy


class UnknownPodError(Exception):
    """There is no pod of that name or uid."""


class UnknownContainerError(UnknownPodError):
    """A pod has no container of that name, or several and none is named."""


class PodTable(Struct, frozen=True, dict=True):
    """By uid: ``active`` pods own their CPUs; ``ended`` ones do not, and stand oldest first."""

    active: Mapping[str, AdmittedPod] = field(default_factory=dict)
    ended: Mapping[str, PodRecord] = field(default_factory=dict)

    def records(self) -> list[PodRecord]:
        """All pods, the ended ones first."""
        return [*self.ended.values(), *(pod.record for pod in self.active.values())]

    @property
    def names(self) -> dict[str, str]:
        """What the active pods are called, ``namespace/name`` by uid."""
        return {uid: pod.name for uid, pod in self.active.items()}

    def find(self, name: str) -> str:
        """The uid of a pod called by uid, ``namespace/name`` or name (namespace ``default``).

        Where no pod has the name, it may be the uid of a pod of that namespace.

        Raises:
            UnknownPodError: no such pod.
        """
        if name in self.active or name in self.ended:
            return name
        full = name if "/" in name else f"default/{name}"
        for record in reversed(self.records()):
            if record.full_name == full:
                return record.uid
        namespace, _, uid = full.partition("/")
        if any((record.namespace, record.uid) == (namespace, uid) for record in self.records()):
            return uid
        raise UnknownPodError(f"there is no pod {full}")

    def containers(self) -> Mapping[ContainerKey, tuple[AdmittedPod, Container]]:
        """Every container of every active pod."""
        return self._containers

    @cached_property
    def _containers(self) -> Mapping[ContainerKey, tuple[AdmittedPod, Container]]:
        return {
            pod.key(container): (pod, container)
            for pod in self.active.values()
            for container in pod.workload.pod.all_containers
        }

    def check_free(self, wanted: Pod) -> None:
        """See that no active pod has this name or uid.

        Raises:
            NameTakenError: there is one.
        """
        full = wanted.full_name
        for pod in self.active.values():
            if pod.uid == wanted.uid or pod.name == full:
                raise NameTakenError(f"pod {pod.name} is there already (uid {pod.uid})")

    def ended_namesakes(self, wanted: Pod) -> tuple[str, ...]:
        """The uids of ended pods that a new one replaces."""
        return tuple(
            uid
            for uid, record in self.ended.items()
            if (record.namespace, record.name) == (wanted.namespace, wanted.name)
            or uid == wanted.uid
        )
