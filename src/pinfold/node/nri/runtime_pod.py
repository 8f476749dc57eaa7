"""What pod is behind what a container runtime shows: its QoS class, requests and limits.

A runtime knows cgroup values only.  The kubelet's way from a pod to these (upstream
``ResourceConfigForPod``, ``MilliCPUToShares``, ``MilliCPUToQuota``) is one to one for CPUs, so it
is gone backwards here; the QoS class is in the name of the pod's cgroup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field

from pinfold.core.pod.cgroup_values import quota_to_milli_cpu, shares_to_milli_cpu
from pinfold.core.pod.pod import QOSClass
from pinfold.node.nri.kubelet_specs import PodSpec
from pinfold.ports.nri import Container, ContainerState, PodSandbox

_KUBEPODS: Final = re.compile(r"kubepods(?:[-/](?:kubepods-)?(burstable|besteffort)(?![a-z]))?")
_SECONDS: Final = re.compile(r"[0-9]{1,12}\.[0-9]{2}")
_QOS: Final = {
    None: QOSClass.GUARANTEED,
    "burstable": QOSClass.BURSTABLE,
    "besteffort": QOSClass.BEST_EFFORT,
}


RAN_SHARED: Final = "ran-shared-seconds.pinfold.dev"
"""The annotation in the record, with ``/NAME`` of a container, that says how long it ran shared."""

NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


class RuntimePod(Struct):
    """A pod as the runtime shows it: its newest sandbox, its newest containers by name."""

    sandbox: PodSandbox
    containers: dict[str, Container] = field(default_factory=dict)
    ran_shared: dict[str, float] = field(default_factory=dict)
    """How many seconds an owner ran before anybody gave it its CPUs."""
    spec: PodSpec | None = None
    """What is known of its specification; None: nobody was asked so far."""

    @property
    def name(self) -> str:
        """``namespace/name``."""
        return self.sandbox.full_name

    @property
    def runs(self) -> bool:
        """Whether any of its containers runs, or is about to."""
        return not all(self.has_ended(name) for name in self.containers)

    def has_ended(self, container: str) -> bool:
        """Whether the newest container of this name runs no more."""
        seen = self.containers.get(container)
        return seen is None or seen.state is ContainerState.STOPPED


def ran_shared(annotations: Mapping[str, str]) -> dict[str, float]:
    """Container -> seconds for which an owner ran before it had its CPUs, of a record's pod."""
    return {
        key.removeprefix(f"{RAN_SHARED}/"): float(text)
        for key, text in annotations.items()
        if key.startswith(f"{RAN_SHARED}/") and _SECONDS.fullmatch(text)
    }


def qos_of(pod: PodSandbox) -> QOSClass | None:
    """The QoS class that a kubelet has put a pod's cgroup under; None where none did.

    ``/kubepods/burstable/pod...`` (cgroupfs) and ``.../kubepods-burstable-pod....slice`` (systemd);
    a Guaranteed pod sits directly below ``kubepods``.
    """
    matches = list(_KUBEPODS.finditer(pod.cgroup_parent))
    if not matches:
        return None
    return _QOS[next((m[1] for m in reversed(matches) if m[1]), None)]


def container_resources(container: Container, qos: QOSClass | None) -> dict[str, Any]:
    """The ``resources`` of a container, as far as the runtime's values tell them.

    Where no kubelet has named the class, a container whose quota is its shares, and whose memory
    is limited, is one that a Guaranteed pod may have.
    """
    seen = container.resources
    requested = shares_to_milli_cpu(seen.cpu_shares or 0)
    limited = quota_to_milli_cpu(seen.cpu_quota or 0, seen.cpu_period or 0)
    if qos is QOSClass.BEST_EFFORT:
        return {}
    if qos is QOSClass.GUARANTEED:
        # Without quotas (cpuCFSQuota off) the request tells the limit; it is the same.
        limited = limited or requested
        requested = limited
    requests, limits = _list(requested), _list(limited)
    memory = seen.memory if seen.memory and seen.memory > 0 else None
    if qos is QOSClass.GUARANTEED or (qos is None and memory and requests == limits != {}):
        # A Guaranteed container without a memory limit cannot be; one byte keeps the class.
        requests["memory"] = limits["memory"] = str(memory or 1)
    else:
        # The request is not told; a zero keeps the limit from being taken for it.
        requests["memory"] = "0"
        if memory:
            limits["memory"] = str(memory)
    for size, amount in seen.hugepages.items():
        if amount:
            name = f"hugepages-{_page_size(size)}"
            requests[name] = limits[name] = str(amount)
    if qos is QOSClass.BURSTABLE and not limits and requests == {"memory": "0"}:
        # It can have asked for memory only, and how much is not told; a byte keeps the class.
        requests["memory"] = "1"
    return {"requests": requests, "limits": limits}


def _list(milli: int) -> dict[str, str]:
    return {"cpu": f"{milli}m"} if milli else {}


def _page_size(name: str) -> str:
    """A page size as the kubelet names it (``2Mi``), of a runtime's (``2MB``)."""
    return name.replace("KB", "Ki").replace("MB", "Mi").replace("GB", "Gi")


def pod_manifest(
    pod: PodSandbox,
    containers: Iterable[Container],
    ran_shared: Mapping[str, float] = NOTHING,
    spec: PodSpec | None = None,
) -> Mapping[str, Any]:
    """A Pod object of what the runtime shows; enough to decide by, and to go on from later.

    One that has resources of its own is what its specification says, with all of its containers,
    and those that nobody specified, such as ephemeral ones.
    """
    qos = qos_of(pod)
    before = {f"{RAN_SHARED}/{name}": f"{seconds:.2f}" for name, seconds in ran_shared.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "annotations": {**_without_ours(pod.annotations), **before},
        },
        "spec": {
            "containers": [
                {"name": one.name, "resources": container_resources(one, qos)} for one in containers
            ]
        }
        if spec is None or spec.whole is None
        else _with_others(spec.whole, [one.name for one in containers]),
    }


def _with_others(whole: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    known = {one["name"] for kind in ("initContainers", "containers") for one in whole[kind]}
    others = [{"name": name} for name in names if name not in known]
    return {**whole, "containers": [*whole["containers"], *others]}


def _without_ours(annotations: Mapping[str, str]) -> dict[str, str]:
    """What a user has written; what the record says is not for users to say."""
    return {key: text for key, text in annotations.items() if not key.startswith(RAN_SHARED)}
