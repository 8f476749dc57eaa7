"""Quotas of a live node: computed from the books, so that a restart changes nothing.

They are looked at within the change that admits a pod or begins a resize: nobody comes in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from msgspec.structs import replace

from pinfold.admission.quota import FORBIDDEN, Quotas
from pinfold.core.pod.pod import Pod
from pinfold.core.quota.charge import Refused
from pinfold.core.quota.counted_pod import CountedPod, new_pod_from_api
from pinfold.core.quota.quota import ResourceQuota, quota_from_api
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.view import View
from pinfold.ports.records import PodPhase

RESOURCE_QUOTA: Final = "ResourceQuota"
Clock: TypeAlias = Callable[[], float]


def admission_refusal(view: View, pod: Pod, manifest: str, clock: Clock) -> Refused | None:
    """Why a quota does not let a new pod in; ``manifest`` is the pod as JSON.

    Raises:
        PodError: a field of it that quotas read is malformed.
    """
    found = quotas_of(view, clock, pod.namespace, instead_of=pod)
    if not found.quotas:
        return None
    return _refused(found.admit(new_pod_from_api(json.loads(manifest), pod)))


def let_in(view: View, pods: Iterable[Pod], clock: Clock) -> Iterator[Pod]:
    """Yield those of the pods that were refused which the quotas would now let in, one by one."""
    found = quotas_of(view, clock)
    for pod in pods:
        record = view.pods.ended[pod.uid]
        charged = found.admit(_counted(record.manifest, pod))
        if not isinstance(charged, Refused):
            found = charged
            yield pod


def resize_refusal(view: View, active: AdmittedPod, wanted: Pod, clock: Clock) -> Refused | None:
    """Why a quota does not let a pod ask for what it is to be."""
    pod = active.workload.pod
    there, asked = (_counted(active.record.manifest, one) for one in (pod, wanted))
    return _refused(quotas_of(view, clock, pod.namespace).resize(there, asked))


def quotas_of(
    view: View, clock: Clock, namespace: str | None = None, instead_of: Pod | None = None
) -> Quotas:
    """The quotas with what is in use of them.

    Args:
        view: the books.
        clock: tells the time, in seconds since the epoch.
        namespace: which; None: of all.
        instead_of: a new pod: those that have ended and have its name are to be forgotten.
    """
    quotas = [
        _quota(one.manifest)
        for key, one in view.objects.items()
        if key.kind == RESOURCE_QUOTA and namespace in (None, key.namespace)
    ]
    if not quotas:
        return Quotas()
    return Quotas.of(quotas, _pods(view, {one.namespace for one in quotas}, instead_of), clock())


def in_use_of(view: View, manifest: str, clock: Clock) -> ResourceQuota:
    """A quota, which need not be on record, with what is in use of it."""
    quota = _quota(manifest)
    (found,) = Quotas.of([quota], _pods(view, {quota.namespace}, None), clock()).quotas
    return found


def _pods(view: View, namespaces: set[str], instead_of: Pod | None) -> Iterator[CountedPod]:
    """What counts: pods that run or are to, and of those that have ended the object."""
    replaced = () if instead_of is None else view.pods.ended_namesakes(instead_of)
    for active in view.pods.active.values():
        if active.record.namespace in namespaces:
            yield _counted(active.record.manifest, active.workload.pod)
    for uid, record in view.pods.ended.items():
        never = record.phase is PodPhase.REJECTED and record.reason == FORBIDDEN
        if record.namespace in namespaces and not never and uid not in replaced:
            pod = Pod(uid, record.name, record.namespace)
            yield replace(_counted(record.manifest, pod), phase="Failed")


def _counted(manifest: str, pod: Pod) -> CountedPod:
    try:
        return new_pod_from_api(json.loads(manifest), pod)
    except ValueError:
        # Of a pod that was found without its record nobody knows the manifest; one that came when
        # there was no quota may say what no quota can read.
        return CountedPod(pod, may_decline=False)


def _quota(manifest: str) -> ResourceQuota:
    return quota_from_api(json.loads(manifest))


def _refused(answer: Quotas | Refused) -> Refused | None:
    return answer if isinstance(answer, Refused) else None
