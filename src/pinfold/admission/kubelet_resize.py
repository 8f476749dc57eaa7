"""A resize as a kubelet answers it, which takes no CPU from a container and adds none.

The API server is asked first, then the kubelet's handler of resizes, then the pod is admitted anew
as it is to be, with all that it has.  A container that has exclusive CPUs keeps exactly these,
whatever it asks for: under a policy of the topology manager that rejects, it cannot ask for another
number.  Whoever gets none of these answers (:data:`~.kubelet_resize.INFEASIBLE`) is deferred: the
kubelet asks again.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.capacity import amounts
from pinfold.admission.decision import Decision
from pinfold.admission.settling import recount, settle
from pinfold.core.kubelet.faults import BUBBLE_TWICE
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.moves.kubelet_resize import INFEASIBLE, infeasible_resize
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.resize import ResizeDecision, resized
from pinfold.core.pod.manifest.validation import pod_problems
from pinfold.core.pod.pod import CPU, Pod
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.core.values.cpuset import CPUSet

INVALID: Final = "Invalid"
"""The reason of the API server, which lets it come to no kubelet."""

_INIT_CONTAINER: Final = (
    "container {} is an init container that comes to an end; of those only sidecars can be resized"
)
_OTHER_QOS: Final = 'Invalid value: "{}": Pod QOS Class may not change as a result of resizing'


def resize_as_kubelet(
    node: Node, state: NodeState, config: NodeConfig, pod: Pod, asked: tuple[str, int]
) -> tuple[ResizeDecision, NodeState]:
    """Decide as a kubelet with this configuration; nothing is changed.

    Args:
        node: its policies.
        state: what runs.
        config: version, gates and policies.
        pod: the pod as it is now.
        asked: which of its containers is to ask for how many CPUs.

    Returns:
        The answer, and the state afterwards: the same where it is refused.
    """
    container, cpus = asked
    held = state.ledger.cpus_of(pod.uid, container) or CPUSet()
    after = resized(pod, container, cpus)
    answer = ResizeDecision(Owner(pod.uid, container), held, held, held)
    refused = _refused_by_api(pod, after, container) or _infeasible(node, config, pod, after)
    if refused is None:
        without = recount(state, pod, None)
        admission = decide(node, without, after)
        second = _second_bubble(state, pod, admission)
        if second is not None:
            refused = UNEXPECTED_ADMISSION_ERROR, second
        elif admission.admitted:
            settled = settle(without, admission)
            has = settled.ledger.cpus_of(pod.uid, container) or CPUSet()
            return replace(answer, after=has, affinities=admission.affinities), settled
        else:
            refused = admission.reason or "", admission.message or ""
        answer = replace(answer, affinities=admission.affinities)
    reason, message = refused
    return replace(answer, reason=reason, message=message), state


def _second_bubble(state: NodeState, pod: Pod, admission: Decision) -> str | None:
    """What is to be said of a pod that has a bubble, and is given another one; else None."""
    in_memory = state.memory is not None and pod.uid in state.memory.bubbles
    if not in_memory and state.ledger.bubble_of(pod.uid) is None:
        return None
    if admission.bubble is None and not admission.leaked:
        return None
    cpus = admission.leaked if admission.bubble is None else admission.bubble.cpus
    more = f", CPUs {cpus}," if cpus else ""
    return (
        f"the kubelet would give pod {pod.full_name} all that it has once more{more} and have "
        f"the first in no record, so that it does not start again (kubelet fault "
        f"{BUBBLE_TWICE.slug})"
    )


def _refused_by_api(before: Pod, after: Pod, container: str) -> tuple[str, str] | None:
    if any(one.name == container and not one.is_sidecar for one in before.init_containers):
        return INVALID, _INIT_CONTAINER.format(container)
    if before.qos is not after.qos:
        return INVALID, _OTHER_QOS.format(after.qos.value)
    problem = next(pod_problems(after, "spec"), None)
    return None if problem is None else (INVALID, str(problem))


def _infeasible(node: Node, config: NodeConfig, before: Pod, after: Pod) -> tuple[str, str] | None:
    problem = infeasible_resize(before, after, config)
    if problem is None:
        requested, capacity = amounts(after).get(CPU, 0), node.allocatable.get(CPU, 0)
        if requested > capacity:
            problem = (
                "Node didn't have enough capacity: "
                f"cpu, requested: {requested}, capacity: {capacity}"
            )
    return None if problem is None else (INFEASIBLE, problem)
