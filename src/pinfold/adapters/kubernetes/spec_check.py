"""Does the API server's pod say what was decided by?

With NRI a decision is made of what the runtime shows: cgroup values, annotations, the name of the
pod's cgroup.  Here that is held against the pod that users wrote.  Nothing is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from pinfold.core.pod.annotation import DOMAIN
from pinfold.core.pod.annotations import EXCLUSIVE_CPUS
from pinfold.core.pod.api import PodError, pod_from_api
from pinfold.core.pod.cgroup_values import container_cgroup
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import Container, Pod, QOSClass
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.nri import Resources

_STATIC_UID: Final = "kubernetes.io/config.hash"
"""A static pod's uid as its kubelet and the runtime know it; the API has another one."""

_RESIZES: Final = frozenset({"PodResizePending", "PodResizeInProgress"})


class Decided(Struct, frozen=True):
    """A container as it was decided about.

    ``qos`` is the class of the pod's cgroup (None: unknown), ``seen`` what the runtime shows,
    ``cpus`` its exclusive CPUs (None: it shares), ``declined`` whether an annotation said so.
    ``bubble`` is whether its pod has CPUs as a whole: ``cpus`` may be what it shares of these then.
    """

    pod_uid: str
    container: str
    qos: QOSClass | None
    seen: Resources
    cpus: CPUSet | None
    declined: bool
    bubble: bool = False


class Due(Protocol):
    """What a node makes of a pod as it was written."""

    @property
    def owns(self) -> bool:
        """Whether the policy in force gives exclusive CPUs at all."""

    def seen(self, pod: Pod) -> Pod:
        """The pod without what the node passes over."""

    def cpus(self, pod: Pod, container: Container) -> int:
        """The CPUs that the container is to have for itself."""


def differences(api_pod: Mapping[str, Any], decided: Decided, due: Due) -> tuple[str, ...]:
    """How the API server's pod and the basis of a decision differ; () where they do not.

    A pod of another uid, a container that has no resources of its own (an ephemeral one) and a
    resize on its way are not compared.

    Args:
        api_pod: the Pod as the API server gives it.
        decided: see the class.
        due: what the node makes of such a pod.

    Raises:
        PodError: the server's answer is no pod.
    """
    pod = due.seen(apply_defaults(pod_from_api(api_pod)))
    if decided.pod_uid not in (pod.uid, pod.annotations.get(_STATIC_UID)):
        return ()
    spec, status = _mapping(api_pod.get("spec")), _mapping(api_pod.get("status"))
    container = _find(pod, decided.container)
    if container is None:
        ephemeral = [one.get("name") for one in _mappings(spec.get("ephemeralContainers"))]
        if decided.container in ephemeral:
            return ()
        return (f"the pod has no container {decided.container}",)
    return (
        *_about_qos(pod, status, decided),
        *_about_annotations(pod, decided),
        *(() if _is_being_resized(status) else _about_resources(pod, container, decided)),
        *(_about_cpus(pod, container, decided, due) if due.owns else ()),
    )


def _find(pod: Pod, name: str) -> Container | None:
    return next((one for one in pod.all_containers if one.name == name), None)


def _about_qos(pod: Pod, status: Mapping[str, Any], decided: Decided) -> tuple[str, ...]:
    said = status.get("qosClass") or pod.qos.value
    if decided.qos is None or said == decided.qos.value:
        return ()
    return (f"its QoS class is {said}, its cgroup is one of {decided.qos.value} pods",)


def _about_annotations(pod: Pod, decided: Decided) -> tuple[str, ...]:
    declined = not EXCLUSIVE_CPUS.of(pod.annotations, decided.container)
    if declined == decided.declined:
        return ()
    now, then = ("is", "was not") if declined else ("is not", "was")
    text = (
        f"it {now} annotated {EXCLUSIVE_CPUS.name}.{DOMAIN} with false, and {then} when its "
        "sandbox was created; annotations count for new pods only"
    )
    return (text,)


def _about_resources(pod: Pod, container: Container, decided: Decided) -> tuple[str, ...]:
    seen = decided.seen
    meant = container_cgroup(pod, container, memory_capacity=1 << 40)
    found = []
    if seen.cpu_shares is not None and seen.cpu_shares != meant.cpu_shares:
        found.append(f"its CPU request means cpu.shares {meant.cpu_shares}, not {seen.cpu_shares}")
    # The kubelet lets some containers go without a quota, and may be told to with all.
    if (quota := seen.cpu_quota or 0) > 0 and seen.cpu_period:
        whole = meant.cpu_quota * seen.cpu_period // meant.cpu_period
        if abs(whole - quota) > 1:
            found.append(f"its CPU limit means a quota of {whole or 'none'}, not {quota}")
    memory = seen.memory or 0
    if memory > 0 and memory != meant.memory_limit:
        found.append(f"its memory limit is {meant.memory_limit or 'none'}, not {memory}")
    return tuple(found)


def _about_cpus(pod: Pod, container: Container, decided: Decided, due: Due) -> tuple[str, ...]:
    count, has = due.cpus(pod, container), len(decided.cpus or ())
    if not EXCLUSIVE_CPUS.of(pod.annotations, container.name) or decided.declined:
        count = 0
    if count == has or (decided.bubble and count == 0):
        return ()
    why = " (resources of the pod as a whole give it none)"
    why = why if pod.has_pod_level_resources and not count else ""
    return (f"it is due {count} exclusive CPUs{why}, and has {has}",)


def _is_being_resized(status: Mapping[str, Any]) -> bool:
    return bool(status.get("resize")) or any(
        str(one.get("type")) in _RESIZES and one.get("status") == "True"
        for one in _mappings(status.get("conditions"))
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    found = value if isinstance(value, list) else []
    return [one for one in found if isinstance(one, Mapping)]


__all__ = ["Decided", "Due", "PodError", "differences"]
