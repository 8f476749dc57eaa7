"""The state of a node after a decision, and once a pod is gone or is there again."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.admission.capacity import amounts
from pinfold.admission.decision import Decision
from pinfold.admission.load_driven import LoadDrivenPod
from pinfold.core.memory.memory import remove_pod
from pinfold.core.pod.pod import Pod


def settle(state: NodeState, decision: Decision) -> NodeState:
    """The state of the node after a decision.

    A rejected pod changes nothing, but for the CPUs that a kubelet never gives back.

    Raises:
        InvariantError: the decision does not fit the ledger (it was made on another one).
    """
    uid = decision.pod.uid
    if not decision.admitted:
        if not decision.leaked:
            return state
        return replace(state, ledger=state.ledger.with_bubble(uid, decision.leaked, {}))
    ledger, memory, devices = state.ledger, state.memory, state.devices
    if decision.bubble is not None and decision.bubble.cpus:
        ledger = ledger.with_bubble(uid, decision.bubble.cpus, decision.claims)
    elif decision.allocations:
        ledger = ledger.with_pod(uid, decision.claims, decision.idle)
    if decision.memory_state is not None:
        memory = decision.memory_state
    if decision.devices:
        devices = devices.with_pod(uid, decision.devices)
    load_driven = state.load_driven
    if decision.load_driven:
        one = LoadDrivenPod(decision.pod, frozenset(decision.load_driven))
        load_driven = {**load_driven, uid: one}
    requested = dict(state.requested)
    for name, amount in decision.requests.items():
        requested[name] = requested.get(name, 0) + amount
    return replace(
        state,
        ledger=ledger,
        memory=memory,
        devices=devices,
        requested=requested,
        pods=state.pods + 1,
        load_driven=load_driven,
    )


def release(state: NodeState, pod: Pod) -> NodeState:
    """The state of the node once an admitted pod is gone."""
    return replace(
        recount(state, pod, None),
        ledger=state.ledger.without(pod.uid),
        memory=None if state.memory is None else remove_pod(state.memory, pod.uid),
        devices=state.devices.without(pod.uid),
        load_driven={uid: one for uid, one in state.load_driven.items() if uid != pod.uid},
    )


def resume(state: NodeState, pod: Pod, load_driven: Collection[str] = ()) -> NodeState:
    """Count a pod that was admitted before, whose CPUs are in the ledger already.

    ``load_driven`` are its containers that have their CPUs by load.
    """
    state = recount(state, None, pod)
    if not load_driven:
        return state
    one = LoadDrivenPod(pod, frozenset(load_driven))
    return replace(state, load_driven={**state.load_driven, pod.uid: one})


def recount(state: NodeState, before: Pod | None, pod: Pod | None) -> NodeState:
    """Count a pod's requests as they are now, in place of those before; None is "not there"."""
    requested = dict(state.requested)
    for one, sign in ((before, -1), (pod, 1)):
        for name, amount in ({} if one is None else amounts(one)).items():
            requested[name] = requested.get(name, 0) + sign * amount
    load_driven = state.load_driven
    if pod is not None and pod.uid in load_driven:
        load_driven = {**load_driven, pod.uid: replace(load_driven[pod.uid], pod=pod)}
    return replace(
        state,
        requested=requested,
        pods=state.pods + (pod is not None) - (before is not None),
        load_driven=load_driven,
    )


def cpus_by_load(state: NodeState) -> tuple[int, int]:
    """How many CPUs load-driven containers own, and how many they are charged while they share."""
    owned = charged = 0
    for uid, one in state.load_driven.items():
        for name, count in one.counts().items():
            cpus = state.ledger.cpus_of(uid, name)
            owned, charged = owned + len(cpus or ()), charged + (0 if cpus else count)
    return owned, charged
