"""Manifests: Pods, and the pods that workloads would create, from YAML and JSON files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.adapters.kubernetes.beside_pods import BesidePods, ClaimNames, in_memory, scheduling_of
from pinfold.adapters.kubernetes.class_manifests import ClassManifests
from pinfold.adapters.kubernetes.files import (
    ManifestError,
    manifest_documents,
    object_refused,
    printable,
)
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.names import misspelt_names, unknown_names
from pinfold.core.classes.resource_class import ResourceClass
from pinfold.core.kubelet.node_object import NodeObject
from pinfold.core.pod.annotations import named
from pinfold.core.pod.api import PodError, described, pod_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.manifest.pod_templates import POD_GROUPS, WORKLOADS, pod_template
from pinfold.core.pod.manifest.validation import validate_manifest, validate_pod
from pinfold.core.pod.manifest.workload_fields import (
    annotation_findings,
    annotations_above,
    unknown_fields,
)
from pinfold.core.pod.owner import PodOwner, owners_of
from pinfold.core.pod.pod import Pod
from pinfold.core.pod.priorities import Priorities
from pinfold.core.pod.scheduling import Scheduling
from pinfold.core.quota.claims import ClaimRules
from pinfold.core.quota.counted_pod import CountedPod, new_pod_from_api
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.values.notes import Note, said_once
from pinfold.formats.paths import StrPath, path_texts

__all__ = ["MAX_PODS", "MAX_REPLICAS", "ManifestError", "Manifests", "read_manifests"]

MAX_REPLICAS: Final = 100_000
MAX_PODS: Final = 200_000
_MAX_LISTS: Final = 5
_OF_CLASSES: Final = frozenset({"DeviceClass", "ResourceSlice"})
_HAS_ENDED: Final = frozenset({"Succeeded", "Failed"})
_NO_NAME: Final = "Required value: name or generateName is required"


class Manifests(Struct, frozen=True):
    """The pods of some files in their order, and notes on what was left out.

    Of each pod that says where it may run, ``scheduling`` has that, and ``owners`` the workloads
    that it is of, and ``in_memory`` the names of its volumes there; where there are ``quotas``,
    ``counted`` is what of the pods decides about them; all of these by uid.  What pods and quotas
    name by the short name of one of the ``classes`` is under that of its resource.
    """

    pods: tuple[Pod, ...]
    notes: tuple[str, ...]
    quotas: tuple[ResourceQuota, ...] = ()
    counted: Mapping[str, CountedPod] = {}
    classes: tuple[ResourceClass, ...] = ()
    compute_resources: tuple[ComputeResource, ...] = ()
    claims: ClaimNames = {}
    templates: ClaimNames = {}
    nodes: tuple[NodeObject, ...] = ()
    scheduling: Mapping[str, Scheduling] = {}
    owners: Mapping[str, tuple[PodOwner, ...]] = {}
    in_memory: Mapping[str, tuple[str, ...]] = {}


def read_manifests(
    paths: StrPath | Iterable[StrPath],
    *,
    own: bool = False,
    claims: ClaimRules = ClaimRules(),  # noqa: B008 - frozen
    live: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> Manifests:
    """Read files, folders (their ``*.yaml``, ``*.yml``, ``*.json`` in name order) and ``-``.

    Pods that have run to their end are left out, as the kubelet does not count them; pods that a
    kubelet has rejected are planned again.

    Args:
        paths: the files and folders, or one of them.
        own: whether the node's configuration has a section ``pinfold``.
        claims: which claims are for CPUs.
        live: objects that an API server has told, with where they are; they come first.

    Raises:
        ManifestError: see the class.
        TypeError: a path that is neither a text nor a ``pathlib.Path``.
    """
    reader = _Reader(claims, own=own)

    def empty(path: str) -> None:
        reader.notes.append(Note(path, "nothing in it"))

    for place, content in live:
        reader.read(content, place)
    if (texts := path_texts(paths)) or not live:
        for place, document in manifest_documents(texts, empty):
            reader.read(document.content, place)
    reader.read_postponed()
    reader.give_priorities()
    pods = tuple(pod for pod, _ in reader.pods.values())
    counted, beside = reader.counted(), reader.beside
    reader.notes.extend(beside.unknown_claims(counted))
    said = said_once((*reader.notes, *_passed_over(pods, own=own)))
    return Manifests(
        pods,
        tuple(map(printable, said)),
        tuple(beside.quotas.values()),
        counted,
        tuple(reader.of_classes.classes.values()),
        tuple(reader.of_classes.compute_resources.values()),
        beside.claims,
        beside.templates,
        tuple(beside.nodes.values()),
        dict(scheduling_of((*one, reader.objects[one[0].uid]) for one in reader.pods.values())),
        reader.owners,
        {uid: names for uid, one in reader.objects.items() if (names := in_memory(one))},
    )


def _passed_over(pods: Sequence[Pod], *, own: bool) -> Iterator[Note]:
    """What a plan of a kubelet's own configuration says nothing of, once for all pods."""
    rows = () if own else [row for pod in pods for row in named(pod.annotations).values()]
    if names := sorted({row.name for row in rows if row.told}):
        yield Note(
            f"annotations {', '.join(names)} of pinfold.dev",
            "planned without them; with a section pinfold in the configuration the plan says what "
            "would be in force",
        )


class _Reader:
    """Collects the pods of objects, and keeps them apart."""

    def __init__(self, claims: ClaimRules, *, own: bool) -> None:
        self._own = own
        self.pods: dict[tuple[str, str], tuple[Pod, str]] = {}
        self.of_classes = ClassManifests()
        self.beside = BesidePods(claims, self.of_classes)
        self.notes: list[Note] = []
        self._postponed: list[tuple[Mapping[str, Any], str]] = []
        self._last: list[tuple[Mapping[str, Any], str]] = []
        self._uids: dict[str, Pod] = {}
        self._generated: dict[str, int] = {}
        self.objects: dict[str, Mapping[str, Any]] = {}
        self.owners: dict[str, tuple[PodOwner, ...]] = {}

    def give_priorities(self) -> None:
        """Give each pod the priority of its class: one may have come after the pod."""
        known = Priorities.of(self.beside.priorities.values())
        unknown = {}
        for key, (pod, where) in self.pods.items():
            if not known.knows(pod):
                unknown[pod.priority_class_name] = pod.full_name
            self.pods[key] = (known.given(pod), where)
        for name, pod_name in unknown.items():
            self.notes.append(
                Note(
                    f"PriorityClass {name} of pod {pod_name}",
                    "is not among the manifests; an API server refuses the pod without it",
                    " ",
                )
            )

    def counted(self) -> dict[str, CountedPod]:
        """What quotas see of the pods, where there are any."""
        if not self.beside.quotas:
            return {}
        counted: dict[str, CountedPod] = {}
        seen: dict[int, CountedPod] = {}
        for pod, where in self.pods.values():
            content = self.objects[pod.uid]
            try:
                one = seen.get(id(content)) or new_pod_from_api(content, pod)
            except PodError as error:
                raise object_refused(where, f"pod {pod.full_name}: {error}") from None
            seen[id(content)] = one
            counted[pod.uid] = replace(one, pod=pod)
        return counted

    def read(self, content: object, where: str, depth: int = 0) -> None:
        if not isinstance(content, dict):
            raise ManifestError(f"{where}: not a Kubernetes object (no mapping with a kind)")
        kind = content.get("kind")
        if not isinstance(kind, str) or not kind:
            fault = "is missing" if kind in (None, "") else "must be a text"
            raise ManifestError(f"{where}: kind {fault}; say what it is, such as kind: Pod")
        if kind.endswith("List") and isinstance(content.get("items", []), list):
            if depth == _MAX_LISTS:
                raise ManifestError(f"{where}: lists within lists within lists; write them out")
            for index, item in enumerate(content.get("items", [])):
                self.read(_with_kind(item, kind), f"{where}: items[{index}]", depth + 1)
            return
        if kind == "List":
            raise ManifestError(f"{where}: items must be a list")
        known = self.of_classes
        if known.are(kind, _group(content)):
            known.read(kind, content, where)
        elif self.beside.are(kind, _group(content)):
            self._last.append((content, where))
        elif self._postponed or unknown_names(pod_template(kind, content), known.classes):
            # A class may come later; who comes after a pod that waits for one, waits behind it.
            self._postponed.append((content, where))
        else:
            self._read_object(kind, content, where)

    def read_postponed(self) -> None:
        """Read what had to wait until all classes were known."""
        for content, where in self._postponed:
            self._read_object(content["kind"], content, where)
        for content, where in self._last:
            for said in self.beside.read(content["kind"], content, where):
                self.notes.append(Note(f"{where}: {described(content)}", said))

    def _read_object(self, kind: str, content: Mapping[str, Any], where: str) -> None:
        group = _group(content)
        try:
            if kind == "Pod" and group in (None, *POD_GROUPS):
                self._read_pod(content, where)
            elif kind in WORKLOADS and group in (None, *WORKLOADS[kind].groups):
                for pod, template, owner in self._workload(kind, content, where):
                    self._add(pod, where, template, (owner,))
            else:
                self.notes.append(Note(where, f"{_left_out(kind, content)}, left out"))
        except PodError as error:
            names = misspelt_names(pod_template(kind, content), self.of_classes.classes)
            meant = [f"; did you mean {near}?" for name, near in names if f"[{name}]" in error.path]
            hint = "".join(meant)
            raise object_refused(where, f"{described(content)}: {error}{hint}") from None

    def _read_pod(self, content: Mapping[str, Any], where: str) -> None:
        pod = self._pod({**content, "metadata": self._named(content)}, "")
        self._tell_unknown(content, "", where)
        ended = _end_of(content)
        if ended is None:
            self._add(pod, where, content, owners_of(pod.namespace, content))
        else:
            at = f"{where}: pod {pod.full_name}"
            self.notes.append(Note(at, f"has ended ({ended}), left out", " "))

    def _pod(self, content: Mapping[str, Any], path: str) -> Pod:
        content = self.of_classes.in_pod(content, path)
        pod = apply_defaults(pod_from_api(content, path))
        validate_pod(pod, path)
        validate_manifest(content, path)
        return pod

    def _add(
        self, pod: Pod, where: str, content: Mapping[str, Any], owners: tuple[PodOwner, ...]
    ) -> None:
        key = (pod.namespace, pod.name)
        if key in self.pods:
            raise ManifestError(
                f"{where}: pod {pod.full_name} is there already "
                f"({self.pods[key][1]}); give it another name"
            )
        other = self._uids.setdefault(pod.uid, pod)
        if other is not pod:
            raise ManifestError(
                f"{where}: pod {pod.full_name} has the uid of pod "
                f"{other.full_name} ({pod.uid}); drop metadata.uid"
            )
        self.pods[key] = (pod, where)
        self.objects[pod.uid] = content
        if owners:
            self.owners[pod.uid] = owners
        if len(self.pods) > MAX_PODS:
            raise ManifestError(f"{where}: more than can be planned at once ({MAX_PODS})")

    def _named(self, content: Mapping[str, Any]) -> object:
        """The metadata, with a name: the API server makes one of ``generateName``."""
        metadata = content.get("metadata")
        if not isinstance(metadata, dict) or metadata.get("name"):
            return metadata
        prefix = metadata.get("generateName")
        if not isinstance(prefix, str) or not prefix:
            return metadata
        number = self._generated.get(prefix, 0)
        self._generated[prefix] = number + 1
        return {**metadata, "name": f"{prefix}{number}"}

    def _tell_unknown(self, content: Mapping[str, Any], path: str, where: str) -> None:
        """Note what the API server would refuse as misspelt, and annotations that are no wish."""
        annotations = annotation_findings(content, path, own=self._own)
        for field in (*unknown_fields(content, path), *annotations):
            self.notes.append(Note(where, f"{field}; planned without it"))

    def _workload(
        self, kind: str, content: Mapping[str, Any], where: str
    ) -> Iterator[tuple[Pod, Mapping[str, Any], PodOwner]]:
        holder: Any = content
        path = ""
        for key in WORKLOADS[kind].path:
            path += f"{key}."
            holder = holder.get(key)
            if not isinstance(holder, dict):
                raise PodError(path.rstrip("."), "Required value")
        template = holder.get("template")
        if not isinstance(template, dict):
            raise PodError(f"{path}template", "Required value")
        metadata = self._named(content)
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise PodError("metadata.name", _NO_NAME)
        name, namespace = metadata["name"], metadata.get("namespace") or "default"
        labels = template.get("metadata") or {}
        if not isinstance(labels, dict):
            raise PodError(f"{path}template.metadata", "must be a mapping")
        labelled = {**labels, "name": name, "namespace": namespace}
        created = metadata.get("creationTimestamp")
        if isinstance(created, str):
            labelled["creationTimestamp"] = created
        pod = self._pod({**template, "metadata": labelled}, f"{path}template.")
        self._tell_unknown(template, f"{path}template.", where)
        for field in annotations_above(content, f"{path}template."):
            self.notes.append(Note(where, f"{field}; planned without it"))
        first = _first_ordinal(kind, holder)
        owner = PodOwner(kind, namespace, name)
        for index in range(first, first + _count(kind, holder, path)):
            one = f"{name}-{index}"
            yield replace(pod, name=one, uid=f"{namespace}/{one}"), template, owner


def _with_kind(item: object, list_kind: str) -> object:
    if isinstance(item, dict) and "kind" not in item and list_kind != "List":
        return {"kind": list_kind.removesuffix("List"), **item}
    return item


def _group(content: Mapping[str, Any]) -> str | None:
    """The API group; "" is the core's, None is not said."""
    version = content.get("apiVersion")
    if not isinstance(version, str):
        return None
    group, slash, _ = version.partition("/")
    return group if slash else ""


def _left_out(kind: str, content: Mapping[str, Any]) -> str:
    spec = content.get("spec")
    if kind in _OF_CLASSES and _group(content) == "resource.k8s.io":
        return f"{kind}: a plan knows classes (pinfold convert --to classes)"
    if kind not in WORKLOADS and not (isinstance(spec, dict) and "template" in spec):
        meant = get_close_matches(kind, ("Pod", *WORKLOADS), 1, 0.8)
        return f"{kind} has no pods{f' (did you mean {meant[0]}?)' if meant else ''}"
    return f"{kind} of {content.get('apiVersion')} is no kind whose pods are known"


def _end_of(content: Mapping[str, Any]) -> str | None:
    """How a pod has ended, if it has: a rejected one never ran."""
    status = content.get("status")
    phase = status.get("phase") if isinstance(status, dict) else None
    if not isinstance(status, dict) or not isinstance(phase, str) or phase not in _HAS_ENDED:
        return None
    ran = phase == "Succeeded" or status.get("containerStatuses")
    return phase if ran or status.get("reason") == "Evicted" else None


def _first_ordinal(kind: str, holder: Mapping[str, Any]) -> int:
    ordinals = holder.get("ordinals")
    if kind != "StatefulSet" or not isinstance(ordinals, dict):
        return 0
    return _number(ordinals, "start", "spec.ordinals.", default=0)


def _count(kind: str, holder: Mapping[str, Any], path: str) -> int:
    if kind == "DaemonSet":
        return 1
    if kind in ("Job", "CronJob"):
        parallel = _number(holder, "parallelism", path)
        if holder.get("completions") is None:
            return parallel
        return min(parallel, _number(holder, "completions", path))
    return _number(holder, "replicas", path)


def _number(holder: Mapping[str, Any], key: str, path: str, default: int = 1) -> int:
    value = holder.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise PodError(f"{path}{key}", f"must be an integer, not {str(value)[:80]!r}")
    if value < 0:
        raise PodError(
            f"{path}{key}", f"Invalid value: {value}: must be greater than or equal to 0"
        )
    if value > MAX_REPLICAS:
        raise PodError(
            f"{path}{key}", f"{value} pods are more than can be planned ({MAX_REPLICAS})"
        )
    return value
