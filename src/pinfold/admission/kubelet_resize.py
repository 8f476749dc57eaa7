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
from pinfold.admission.quota import FORBIDDEN
from pinfold.admission.settling import recount, settle
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.moves.kubelet_resize import INFEASIBLE, infeasible_resize
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.resize import ResizeDecision, resized
from pinfold.core.pod.pod import CPU, Pod
from pinfold.core.values.cpuset import CPUSet

_INIT_CONTAINER: Final = (
    "container {} is an init container that comes to an end; of those only sidecars can be resized"
)
_OTHER_QOS: Final = "Pod QOS Class may not change as a result of resizing"


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
        if admission.admitted:
            settled = settle(without, admission)
            has = settled.ledger.cpus_of(pod.uid, container) or CPUSet()
            return replace(answer, after=has, affinities=admission.affinities), settled
        refused = admission.reason or "", admission.message or ""
        answer = replace(answer, affinities=admission.affinities)
    reason, message = refused
    return replace(answer, reason=reason, message=message), state


def _refused_by_api(before: Pod, after: Pod, container: str) -> tuple[str, str] | None:
    if any(one.name == container and not one.is_sidecar for one in before.init_containers):
        return FORBIDDEN, _INIT_CONTAINER.format(container)
    return (FORBIDDEN, _OTHER_QOS) if before.qos is not after.qos else None


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
