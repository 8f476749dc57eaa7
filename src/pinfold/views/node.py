"""What the pictures of a plan and of a live node have in common: whose the CPUs are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from pinfold.core.kubelet.own_policies import OwnPolicies, in_words
from pinfold.core.kubelet.versions import told_version
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.plan import PlannedContainer, PlannedPod, QuotaUse
from pinfold.documents.records import Kubelet, Policies
from pinfold.documents.status import Container, Pod
from pinfold.render.node_map import POOL, Owner
from pinfold.render.plan_view import POD_POOL, extras

POD: Final = "pod"
"""The ``isolation`` of a container on its pod's shared pool."""

ENDED: Final = ("Succeeded", "Failed", "Rejected")
"""The phases of pods that have nothing any more."""

_DEFAULTS: Final = OwnPolicies().by_group

PlacedPod: TypeAlias = PlannedPod | Pod
PlacedContainer: TypeAlias = PlannedContainer | Container


def pod_owners(pods: Iterable[PlacedPod]) -> Iterator[Owner]:
    """Every container with CPUs of its own, and what the others of a pod have in its bubble.

    An init container's CPUs are used again by the containers after it; only what it alone holds
    is drawn as its own.
    """
    for pod in pods:
        taken, pool = CPUSet(), _pod_pool(pod)
        bubble = _pod_key(pod) if pod.bubble else None
        containers: Sequence[PlacedContainer] = pod.containers
        for container in sorted(containers, key=lambda c: c.kind == "init"):
            if pool and container.kind == "init":
                yield _pool_owner(pod, pool)
                taken, pool = taken | pool, CPUSet()
            if not container.exclusive:
                continue
            cpus = CPUSet.parse(container.cpus)
            if own := cpus - taken:
                kind = "" if container.kind == "container" else f" ({container.kind})"
                mixed = bool(container.shared)
                besides = " and the shared pool" if mixed else ""
                label = f"{pod.namespace}/{pod.name} {container.name}{kind}{besides}"
                yield Owner(
                    _key(pod, container),
                    label,
                    own,
                    kind=container.kind,
                    mixed=mixed,
                    bubble=bubble,
                )
            taken |= cpus
        if pool:
            yield _pool_owner(pod, pool)
        if pod.bubble and not pod.bubble.pool and (kept := CPUSet.parse(pod.bubble.cpus) - taken):
            label = f"{pod.namespace}/{pod.name}, rejected: nobody gets these back"
            yield Owner(_pod_key(pod), label, kept, kind=POOL, bubble=bubble)


def _pod_pool(pod: PlacedPod) -> CPUSet:
    return CPUSet.parse(pod.bubble.pool) if pod.bubble else CPUSet()


def _pool_owner(pod: PlacedPod, pool: CPUSet) -> Owner:
    used = "" if _is_pool_used(pod) else ", used by nobody"
    label = f"{pod.namespace}/{pod.name} {POD_POOL}{used}"
    return Owner(_pod_key(pod), label, pool, kind=POOL, bubble=_pod_key(pod))


def _is_pool_used(pod: PlacedPod) -> bool:
    return any(one.isolation == POD and one.kind != "init" for one in pod.containers)


def bubble_lines(pod: PlacedPod) -> Iterator[str]:
    """What a pod has as a whole: ``bubble 2-7, 6 CPUs, of them 4-7 its shared pool``."""
    bubble = pod.bubble
    if not bubble:
        return
    if bubble.cpus:
        count = len(CPUSet.parse(bubble.cpus))
        told = f"bubble {bubble.cpus}, {count} CPU{'s' * (count != 1)}"
        if bubble.pool and (bubble.pool != bubble.cpus or not _is_pool_used(pod)):
            what = f"the {POD_POOL}" if _is_pool_used(pod) else "used by nobody"
            told += f", of them {bubble.pool} {what}"
        yield told
    yield from (f"in all {one}" for one in extras(bubble.memory, {}))


def idle_siblings(pods: Iterable[PlacedPod]) -> CPUSet:
    """The siblings that stay idle, so that somebody is alone on his cores."""
    return CPUSet.union_of(
        CPUSet.parse(container.idle)
        for pod in pods
        for container in pod.containers
        if container.idle
    )


def _pod_key(pod: PlacedPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _key(pod: PlacedPod, container: PlacedContainer) -> str:
    return f"{_pod_key(pod)}/{container.name}"


def owner_key(pod: PlacedPod, container: PlacedContainer, keys: set[str]) -> str | None:
    """In whose colour a container's CPUs are drawn; None on the shared pool."""
    if container.isolation == POD:
        pool = _pod_key(pod)
        return pool if pool in keys else None
    if not container.exclusive:
        return None
    own = _key(pod, container)
    if own in keys:
        return own
    # An init container all of whose CPUs were handed on: those of the pod that it shares most with.
    cpus = CPUSet.parse(container.cpus)
    heirs = [c for c in pod.containers if _key(pod, c) in keys]
    heir = max(heirs, key=lambda c: len(CPUSet.parse(c.cpus) & cpus), default=None)
    return None if heir is None else _key(pod, heir)


def of_pod(container: PlacedContainer) -> str:
    """With whom it shares the CPUs that it has of its pod; "" where these are no pod's."""
    if container.isolation != POD:
        return ""
    # Before the main containers start, all that no sidecar has is there for it.
    return "of the bubble" if container.kind == "init" else POD_POOL


def besides(container: PlacedContainer) -> Iterator[str]:
    """What a mixed container runs on beside its own CPUs, and what stays idle for it."""
    if container.shared:
        yield f"and the shared pool {container.shared}, no CPU quota"
    if container.idle:
        yield f"alone on its cores, CPUs {container.idle} idle"


def policies(config: Policies, memory: str, scope: str = "") -> str:
    """The policies in force, in one line; the topology manager's scope where it is given."""
    options = [
        name if value.lower() in ("true", "1", "t") else f"{name}={value}"
        for name, value in config.cpu_manager_policy_options.items()
    ]
    options += [
        f"{group}.{name}={in_words(value)}"
        for group, own in (config.pinfold or {}).items()
        for name, value in own.items()
        if value != _DEFAULTS.get(group, {}).get(name)
    ]
    cpu = f"CPU manager {config.cpu_manager_policy}" + (
        f" ({', '.join(options)})" if options else ""
    )
    return f"{cpu} · {alignment(config.topology_manager_policy, memory, scope)}"


def kubelet_words(kubelet: Kubelet) -> str:
    """``kubelet 1.36``; with the patch where another one is meant than that of the line."""
    version = told_version(kubelet.version).version
    shown = version.shown if version.full == kubelet.version else kubelet.version
    return f"kubelet {shown}"


def alignment(policy: str, memory: str, scope: str = "") -> str:
    """The topology manager's policy, and the memory manager's where it has one."""
    more = f" (scope {scope})" if scope and policy != "none" else ""
    booked = "" if memory == "None" else f" · memory manager {memory}"
    return f"topology manager {policy}{more}{booked}"


def quota_lines(quotas: Sequence[QuotaUse]) -> Iterator[str]:
    """``trading/cpus: pinfold.dev/exclusive-cpus 6 of 8``."""
    for quota in quotas:
        told = ", ".join(
            f"{name} {quota.used[name]} of {most}" if name in quota.used else f"{name} ? of {most}"
            for name, most in quota.hard.items()
        )
        of = f" ({', '.join(quota.scopes)})" if quota.scopes else ""
        yield f"{quota.namespace}/{quota.name}{of}: {told}"


def quota_notes(quotas: Sequence[QuotaUse]) -> Iterator[str]:
    """Which names of quotas are not counted, and why: ``?`` stands for what is in use of them."""
    for quota in quotas:
        for note in quota.notes or ():
            yield f"ResourceQuota {quota.namespace}/{quota.name}: {note}"
