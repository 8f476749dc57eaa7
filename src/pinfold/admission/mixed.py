"""Mixed containers: CPUs of their own and the shared pool in one container.

The exclusive part is the whole part of the CPU request (:func:`guaranteed_cpus`), and everything
that is decided about CPUs is decided about that.  The rest of the container runs wherever the
containers do that share.  A kubelet knows no such thing.
"""

from __future__ import annotations

from collections.abc import Iterable

from pinfold.admission.refusal import INVALID_ANNOTATION, UnmetWishError
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.annotation import CONTAINER, POD, AnnotationError
from pinfold.core.pod.annotations import MIXED_CPUS
from pinfold.core.pod.pod import Pod, QOSClass, guaranteed_cpus
from pinfold.state.ledger import Ledger


def mixed_refusal(
    pod: Pod, *, heeded: bool, exclusive: bool = True, only: str | None = None
) -> UnmetWishError | None:
    """Why a pod with mixed containers cannot run here whatever is free.

    Said of the whole pod, it is about those of its containers that ask for a whole CPU or more; the
    others share.  Said of one container, that one has to.

    Args:
        pod: the pod.
        heeded: the node knows mixed containers.
        exclusive: the node gives out exclusive CPUs.
        only: the container that this is about, where not all of the pod's are known; None: all.
    """
    if not heeded:
        return None
    names = {one.name for one in pod.all_containers}
    try:
        said = MIXED_CPUS.said(pod.annotations, names if only is None else None)
    except AnnotationError as error:
        return UnmetWishError(str(error), INVALID_ANNOTATION)
    asked = {one.name: guaranteed_cpus(pod, one) for one in pod.all_containers}
    for holder in (holder for holder, mixed in said.items() if mixed):
        name = holder.removeprefix(CONTAINER)
        if holder != POD and only not in {None, name}:
            continue
        if (why := _why_not(pod, exclusive=exclusive)) is None:
            if holder == POD and (only is not None or any(asked.values())):
                continue
            if holder != POD and asked[name]:
                continue
            who = "no container of the pod asks" if holder == POD else f"{name} does not ask"
            why = f"{who} for a whole CPU; ask for 1 CPU or more"
        return UnmetWishError(f"annotation {MIXED_CPUS.key(holder)}: {why}")
    return None


def mixed_owners(ledger: Ledger, pods: Iterable[Pod]) -> frozenset[Owner]:
    """The containers of these pods that use the shared pool besides CPUs of their own."""
    return frozenset(
        Owner(pod.uid, name)
        for pod in pods
        for name in pod.mixed
        if ledger.cpus_of(pod.uid, name) is not None
    )


def _why_not(pod: Pod, *, exclusive: bool) -> str | None:
    if not exclusive:
        return "the node gives out no exclusive CPUs; set cpuManagerPolicy: static, or dynamic"
    if pod.has_pod_level_resources:
        return (
            "no container of a pod with resources of its own can be mixed; give resources to its "
            "containers only"
        )
    if pod.qos is not QOSClass.GUARANTEED:
        return (
            f"only Guaranteed pods own CPUs, and this one is {pod.qos.value}; let requests and "
            "limits of CPU and memory be the same in all containers"
        )
    return None
