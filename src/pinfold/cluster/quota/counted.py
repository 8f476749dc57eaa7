"""What the pods and claims of a cluster count for, without keeping the pods.

Most pods are like many others: what decides about a pod is kept once for all that are alike, and of
each of them only its uid.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import Raw, Struct, field

from pinfold.core.pod.annotation import DOMAIN
from pinfold.core.pod.api import PodError
from pinfold.core.pod.pod import QOSClass
from pinfold.core.quota.claims import NO_CLAIMS, ClaimRules, Claims, claimed_cpus
from pinfold.core.quota.counted_pod import CountedPod, counted_pod_from_api
from pinfold.core.quota.exclusive_cpus import exclusive_cpus
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.quota.scopes import matches
from pinfold.ports import kubernetes as resources
from pinfold.ports.kubernetes import Changed, Kind, Listed, Object, Progress, version_of

PODS: Final = resources.PODS.plural
CLAIMS: Final = resources.RESOURCE_CLAIMS.plural
TEMPLATES: Final = resources.RESOURCE_CLAIM_TEMPLATES.plural

_PENDING: Final = b"PodResizePending"
"""The only condition that matters; few pods have it."""

_MOST_GONE: Final = 10_000

_NOTHING: Final = Raw(b"null")
"""What is not there; msgspec knows no union with Raw."""

_DOMAIN: Final = DOMAIN.encode()
_ANNOTATIONS: Final = msgspec.json.Decoder(dict[str, str])
_ENCODER: Final = msgspec.json.Encoder()


class _Metadata(Struct, rename="camel", omit_defaults=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: Raw = _NOTHING
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None


class _Container(Struct, rename="camel", omit_defaults=True, gc=False):
    name: str
    restart_policy: str = ""
    resources: Raw = _NOTHING
    # Of a status.
    allocated_resources: Raw = _NOTHING


class _Spec(Struct, rename="camel", omit_defaults=True, gc=False):
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    overhead: Raw = _NOTHING
    resources: Raw = _NOTHING
    resource_claims: Raw = _NOTHING
    affinity: Raw = _NOTHING
    priority_class_name: str = ""
    active_deadline_seconds: int | None = None


class _Status(Struct, rename="camel", omit_defaults=True, gc=False):
    phase: str = ""
    qos_class: str = ""
    container_statuses: list[_Container] = []
    init_container_statuses: list[_Container] = []
    conditions: Raw = _NOTHING
    resource_claim_statuses: Raw = _NOTHING


class SeenPod(Struct):
    """A pod as it is read: the fields that decide what it counts for."""

    metadata: _Metadata
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = field(default_factory=_Status)


def _cpus(pod: CountedPod, now: float, claims: Claims) -> int:
    # As usage() has it; nothing else of that is of matter here, and it is asked for each kind.
    return 0 if pod.is_over(now) else exclusive_cpus(pod, claims)


class Alike:
    """All pods of which a quota sees the same; ``cpus`` where neither time nor claims matter."""

    __slots__ = ("__weakref__", "_cpus", "pod")

    def __init__(self, pod: CountedPod) -> None:
        self.pod = pod
        self._cpus = None if pod.claims or pod.ends_at is not None else _cpus(pod, 0.0, Claims())

    def cpus(self, now: float, claims: Claims) -> int:
        """The exclusive CPUs that one of them counts for."""
        return _cpus(self.pod, now, claims) if self._cpus is None else self._cpus


_ENDED: Final = frozenset(("Failed", "Succeeded"))
_MAY_OWN: Final = frozenset(("", QOSClass.GUARANTEED.value))
"""Of a pod of another QoS class nothing has to be read: it owns no CPUs."""
_NOBODY: Final = Alike(counted_pod_from_api({"status": {"phase": "Failed"}}))


class _Namespace:
    def __init__(self) -> None:
        self.pods: dict[str, Alike] = {}
        self.alike: dict[Alike, int] = {}
        self.claims: dict[str, tuple[str, int]] = {}
        self.templates: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.pods or self.claims or self.templates)


class Counted:
    """What counts in a cluster, by namespace.

    Args:
        rules: which claims are for CPUs.
        report: told what cannot be read, and counts for nothing.
        heeds_opt_out: whether ``exclusive-cpus: "false"`` counts 0.
    """

    def __init__(
        self,
        rules: ClaimRules = ClaimRules(),  # noqa: B008 - frozen
        report: Callable[[str], None] = lambda _problem: None,
        *,
        heeds_opt_out: bool = True,
    ) -> None:
        self._rules = rules
        self._report = report
        self._heeds_opt_out = heeds_opt_out
        self._namespaces: dict[str, _Namespace] = {}
        self._alike: WeakValueDictionary[bytes, Alike] = WeakValueDictionary()
        self._listed: set[str] = set()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self.versions: dict[str, int] = {}
        """Up to which version is known what, by resource; what was not listed yet is not there."""

    # ------------------------------------------------------------------------------ what comes

    def pods(self, change: Listed[SeenPod] | Changed[SeenPod] | Progress) -> set[str]:
        """Take note of pods; the namespaces in which something counts otherwise."""
        touched: set[str] = set()
        match change:
            case Listed():
                if change.is_first:
                    self._listed = set()
                for pod in change.objects:
                    self._listed.add(pod.metadata.uid)
                    if self._put(pod, namespace := pod.metadata.namespace):
                        touched.add(namespace)
                if change.is_last:
                    touched |= self._forget_unlisted()
                    self._listed = set()
            case Changed(kind=Kind.DELETED):
                touched = self._drop(change.object.metadata.namespace, change.object.metadata.uid)
            case Changed():
                namespace = change.object.metadata.namespace
                touched = {namespace} if self._put(change.object, namespace) else set()
        self._came(PODS, change)
        return touched

    def claims(self, change: Listed[Object] | Changed[Object] | Progress, of: str) -> set[str]:
        """Take note of claims, or of templates; the namespaces in which something may change."""
        touched: set[str] = set()
        match change:
            case Listed():
                if change.is_first:
                    touched = {name for name, one in self._namespaces.items() if _held(one, of)}
                    for name in touched:
                        _held(self._namespaces[name], of).clear()
                for one in change.objects:
                    touched |= self._put_claim(one, of)
            case Changed(kind=Kind.DELETED):
                metadata = change.object["metadata"]
                _held(self._of(metadata["namespace"]), of).pop(metadata["name"], None)
                touched = {metadata["namespace"]}
            case Changed():
                touched = self._put_claim(change.object, of)
        self._came(of, change)
        return touched

    # ------------------------------------------------------------------------------ what is

    def claims_of(self, namespace: str) -> Claims:
        """The CPUs of a namespace's claims and templates, by name."""
        found = self._namespaces.get(namespace)
        if found is None:
            return Claims()
        return Claims({name: cpus for name, (_, cpus) in found.claims.items()}, found.templates)

    def total(self, quota: ResourceQuota, now: float) -> int:
        """The exclusive CPUs that a quota counts; raises ScopeError."""
        found = self._namespaces.get(quota.namespace)
        if found is None:
            return 0
        claims = self._claims_for(quota)
        total = sum(cpus for _, cpus in found.claims.values()) if quota.counts_claims else 0
        for alike, number in found.alike.items():
            cpus = alike.cpus(now, claims)
            if cpus and matches(quota, alike.pod):
                total += cpus * number
        return total

    def of_object(self, quota: ResourceQuota, uid: str, now: float) -> int | None:
        """The CPUs that one object counts for; None where it is not there."""
        found = self._namespaces.get(quota.namespace)
        if found is None:
            return None
        if (alike := found.pods.get(uid)) is not None:
            cpus = alike.cpus(now, self._claims_for(quota))
            return cpus if matches(quota, alike.pod) else 0
        return next((cpus for one, cpus in found.claims.values() if one == uid), None)

    def has_gone(self, uid: str) -> bool:
        """Whether a pod was there and was deleted; of those before the last 10,000 nobody knows."""
        return uid in self._gone

    def next_end(self, namespace: str, now: float) -> float | None:
        """When the next pod will count no more by itself."""
        found = self._namespaces.get(namespace)
        ends = (one.pod.ends_at for one in found.alike) if found is not None else ()
        return min((end for end in ends if end is not None and end >= now), default=None)

    # ------------------------------------------------------------------------------ inside

    def _claims_for(self, quota: ResourceQuota) -> Claims:
        return self.claims_of(quota.namespace) if quota.counts_claims else NO_CLAIMS

    def _put(self, pod: SeenPod, namespace: str) -> bool:
        """Whether it counts otherwise than before; 100,000 of them are listed at a time."""
        uid = pod.metadata.uid
        alike = self._alike_of(pod)
        there = self._namespaces.get(namespace) or self._of(namespace)
        before = there.pods.get(uid)
        if before is alike:
            return False
        if before is not None:
            _less(there.alike, before)
        there.pods[uid] = alike
        there.alike[alike] = there.alike.get(alike, 0) + 1
        return True

    def _drop(self, namespace: str, uid: str) -> set[str]:
        there = self._of(namespace)
        before = there.pods.pop(uid, None)
        if before is not None:
            _less(there.alike, before)
            self._gone[uid] = None
            if len(self._gone) > _MOST_GONE:
                self._gone.popitem(last=False)
        if not there:
            del self._namespaces[namespace]
        return set() if before is None else {namespace}

    def _forget_unlisted(self) -> set[str]:
        gone = [
            (namespace, uid)
            for namespace, there in self._namespaces.items()
            for uid in there.pods
            if uid not in self._listed
        ]
        touched: set[str] = set()
        for namespace, uid in gone:
            touched |= self._drop(namespace, uid)
        return touched

    def _alike_of(self, pod: SeenPod) -> Alike:
        metadata, status = pod.metadata, pod.status
        if status.phase in _ENDED or status.qos_class not in _MAY_OWN:
            return _NOBODY
        namespace, name = metadata.namespace, metadata.name
        metadata.name = metadata.namespace = metadata.uid = ""
        if metadata.annotations is not _NOTHING:
            metadata.annotations = _own(metadata.annotations)
        if status.conditions is not _NOTHING and _PENDING not in bytes(status.conditions):
            status.conditions = _NOTHING
        key = _ENCODER.encode(pod)
        found = self._alike.get(key)
        if found is None:
            try:
                counted = counted_pod_from_api(
                    msgspec.json.decode(key), may_decline=self._heeds_opt_out
                )
            except PodError as error:
                self._report(f"pod {namespace}/{name} counts for nothing: {error}")
                return _NOBODY
            found = self._alike[key] = Alike(counted)
        return found

    def _put_claim(self, found: Object, of: str) -> set[str]:
        metadata = found["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        kind = {CLAIMS: "ResourceClaim", TEMPLATES: "ResourceClaimTemplate"}[of]
        try:
            cpus = claimed_cpus({**found, "kind": kind}, self._rules).cpus
        except PodError as error:
            self._report(f"{kind} {namespace}/{name} counts for nothing: {error}")
            cpus = 0
        there = self._of(namespace)
        if of == CLAIMS:
            there.claims[name] = metadata["uid"], cpus
        else:
            there.templates[name] = cpus
        return {namespace}

    def _of(self, namespace: str) -> _Namespace:
        there = self._namespaces.get(namespace)
        if there is None:
            there = self._namespaces[namespace] = _Namespace()
        return there

    def _came(self, of: str, change: Listed[Any] | Changed[Any] | Progress) -> None:
        if not isinstance(change, Listed) or change.is_last:
            # Also where that is less than before: the server was restored from a backup.
            self.versions[of] = version_of(change.version)


def _own(annotations: Raw) -> Raw:
    """Those that decide; few pods have one, and the others are not read."""
    text = bytes(annotations)
    if _DOMAIN not in text:
        return _NOTHING
    try:
        found = _ANNOTATIONS.decode(text)
    except msgspec.MsgspecError:
        return annotations  # they are told when the pod is read
    return Raw(_ENCODER.encode({key: value for key, value in found.items() if DOMAIN in key}))


def _held(there: _Namespace, of: str) -> dict[str, Any]:
    return there.claims if of == CLAIMS else there.templates


def _less(numbers: dict[Alike, int], one: Alike) -> None:
    numbers[one] -= 1
    if not numbers[one]:
        del numbers[one]


__all__ = ["CLAIMS", "PODS", "TEMPLATES", "Alike", "Counted", "SeenPod"]
