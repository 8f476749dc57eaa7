"""Objects among other manifests that no pod is made of, and that decide about pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from pinfold.adapters.kubernetes.class_manifests import ClassManifests
from pinfold.adapters.kubernetes.files import object_refused
from pinfold.core.classes.names import class_of, no_such_class
from pinfold.core.kubelet.node_object import NodeObject, node_from_api
from pinfold.core.pod.api import PodError, described
from pinfold.core.pod.hugepages import MEDIUM_MEMORY
from pinfold.core.pod.manifest.fields import mapping, text_of
from pinfold.core.pod.manifest.names import items
from pinfold.core.pod.pod import Pod
from pinfold.core.pod.priorities import PriorityClass, priority_class_from_api
from pinfold.core.pod.scheduling import ANYWHERE, Scheduling, scheduling_from_api
from pinfold.core.quota.claims import ClaimedCPUs, ClaimRules, claimed_cpus
from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.quota.names import REQUESTS
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.quota.remarks import namespace_findings, quota_findings
from pinfold.core.quota.validation import namespace_name, valid_quota
from pinfold.core.values.notes import Note

_Made = TypeVar("_Made")
_GROUPS: Final = {
    "ResourceQuota": ("",),
    "Namespace": ("",),
    "Node": ("",),
    "PriorityClass": ("scheduling.k8s.io",),
    "ResourceClaim": ("resource.k8s.io",),
    "ResourceClaimTemplate": ("resource.k8s.io",),
}

ClaimNames = Mapping[tuple[str, str], ClaimedCPUs]
"""By namespace and name."""


class BesidePods(Struct):
    """What was read so far; ``rules`` say which claims are for CPUs."""

    rules: ClaimRules
    classes: ClassManifests
    quotas: dict[str, ResourceQuota] = field(default_factory=dict)
    nodes: dict[str, NodeObject] = field(default_factory=dict)
    priorities: dict[str, PriorityClass] = field(default_factory=dict)
    claims: dict[tuple[str, str], ClaimedCPUs] = field(default_factory=dict)
    templates: dict[tuple[str, str], ClaimedCPUs] = field(default_factory=dict)

    @staticmethod
    def are(kind: str, group: str | None) -> bool:
        """Whether objects of this kind are read here; None is a group that is not said."""
        return kind in _GROUPS and group in (None, *_GROUPS[kind])

    def read(self, kind: str, content: Mapping[str, Any], where: str) -> Iterator[str]:
        """Read one, and yield what is to be said of it; raises ManifestError, which names it."""
        try:
            yield from self._readers[kind](content)
        except PodError as error:
            raise object_refused(where, f"{described(content)}: {error}") from None

    @property
    def _readers(self) -> Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]]:
        return {
            "ResourceQuota": self._quota,
            "Namespace": self._namespace,
            "Node": self._node,
            "PriorityClass": self._priority,
            "ResourceClaim": lambda content: self._claim(content, self.claims),
            "ResourceClaimTemplate": lambda content: self._claim(content, self.templates),
        }

    def _quota(self, content: Mapping[str, Any]) -> Iterator[str]:
        quota = valid_quota(self.classes.in_quota(content))
        _put(self.quotas, quota.full_name, quota, f"ResourceQuota {quota.full_name}")
        for one in quota_findings(content):
            yield f"{one}; planned without it"
        known = self.classes.classes
        for name in quota.hard if known else ():
            asked = class_of(name.removeprefix(REQUESTS))
            if asked is not None and asked not in known:
                yield f"spec.hard[{name}]: {no_such_class(asked, known)}"

    @staticmethod
    def _namespace(content: Mapping[str, Any]) -> Iterator[str]:
        # Pods and quotas name their namespace; nothing more of it matters to a node.
        namespace_name(content)
        for one in namespace_findings(content):
            yield f"{one}; planned without it"

    def _node(self, content: Mapping[str, Any]) -> Iterator[str]:
        node = node_from_api(content)
        _put(self.nodes, node.name, node, f"Node {node.name}")
        yield from ()

    def _priority(self, content: Mapping[str, Any]) -> Iterator[str]:
        one = priority_class_from_api(content)
        _put(self.priorities, one.name, one, f"PriorityClass {one.name}")
        yield from ()

    def _claim(
        self, content: Mapping[str, Any], there: dict[tuple[str, str], ClaimedCPUs]
    ) -> Iterator[str]:
        metadata = mapping(content.get("metadata"), "metadata")
        name = text_of(metadata.get("name"), "metadata.name")
        namespace = text_of(metadata.get("namespace"), "metadata.namespace") or "default"
        if not name:
            raise PodError("metadata.name", "Required value: name or generateName is required")
        claimed = claimed_cpus(content, self.rules)
        _put(there, (namespace, name), claimed, f"{content.get('kind')} {namespace}/{name}")
        yield from ()

    def unknown_claims(self, pods: Mapping[str, CountedPod]) -> Iterator[Note]:
        """Yield a note for what pods claim that is not among the manifests."""
        missing = {}
        for one in pods.values():
            namespace = one.pod.namespace
            for claim in one.claims:
                if claim.claim is not None and (namespace, claim.claim) not in self.claims:
                    missing[f"ResourceClaim {namespace}/{claim.claim}"] = one.pod.full_name
                if claim.template is not None and (namespace, claim.template) not in self.templates:
                    what = f"ResourceClaimTemplate {namespace}/{claim.template}"
                    missing[what] = one.pod.full_name
        for what, pod in missing.items():
            yield Note(
                f"{what} of pod {pod}",
                "is not among the manifests: quotas count nothing for it",
                " ",
            )


def scheduling_of(
    pods: Iterable[tuple[Pod, str, Mapping[str, Any]]],
) -> Iterator[tuple[str, Scheduling]]:
    """Yield what pods say of where they may run, by uid; raises ManifestError.

    ``pods`` are with the place and the manifest, which those of one template share.
    """
    seen: dict[int, Scheduling] = {}
    for pod, where, content in pods:
        if (one := seen.get(id(content))) is None:
            try:
                one = seen[id(content)] = scheduling_from_api(content)
            except PodError as error:
                raise object_refused(where, f"pod {pod.full_name}: {error}") from None
        if one is not ANYWHERE:
            yield pod.uid, one


def in_memory(content: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a pod's volumes whose files are ordinary memory; of a manifest that is valid."""
    return tuple(
        str(volume.get("name"))
        for volume, _ in items(content.get("spec") or {}, "volumes", "spec")
        if isinstance(found := volume.get("emptyDir"), dict)
        and found.get("medium") == MEDIUM_MEMORY
    )


def _put(there: dict[Any, _Made], key: object, made: _Made, called: str) -> None:
    if key in there:
        raise PodError("metadata.name", f"{called} is there already; give it another name")
    there[key] = made
