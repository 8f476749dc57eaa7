"""The document of an explanation: what ``pinfold explain -o json`` prints."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET, UnsetType

from pinfold.admission.decision import Decision
from pinfold.admission.moves import rebalance_document
from pinfold.admission.pod_level import Bubble
from pinfold.core.cpu.allocation import Step
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.topology_manager.hints import ResourceHints, TopologyHint
from pinfold.core.values.cpuset import CPUSet, iter_bits
from pinfold.documents import explanation as form
from pinfold.documents.move_plan import MAKE_ROOM
from pinfold.planning.explaining.decision import ContainerReason, Explanation
from pinfold.planning.explaining.whole import describe_budget
from pinfold.planning.plan_document import kubelet_record, memory_blocks
from pinfold.planning.planner import Planner


def explain_document(planner: Planner, explanation: Explanation) -> form.Explanation:
    """The document of an explanation: what ``pinfold explain -o json`` prints."""
    decision = explanation.decision
    return form.Explanation(
        namespace=decision.pod.namespace,
        name=decision.pod.name,
        qos=decision.pod.qos.value,
        admitted=decision.admitted,
        reason=decision.reason,
        message=decision.message,
        kubelet_fault=None if decision.fault is None else decision.fault.slug,
        notes=decision.notes,
        kubelet=kubelet_record(planner.config),
        topology_manager_policy=planner.config.topology_manager_policy,
        memory_manager_policy=planner.config.memory_manager_policy,
        bubble=_bubble_document(decision),
        containers=[_container_document(decision, reason) for reason in explanation.containers],
        remedies=explanation.remedies,
        moves=UNSET
        if explanation.moves is None
        else rebalance_document(
            explanation.moves, MAKE_ROOM, explanation.names, _condition(planner.config)
        ),
    )


def _condition(config: NodeConfig) -> tuple[str, ...]:
    """What is to be set, so that room is made for a pod by itself."""
    dynamic = config.dynamic
    if dynamic is not None and dynamic.make_room:
        return ()
    policy = "makeRoom: true" if dynamic else "cpuManagerPolicy: dynamic and makeRoom: true"
    return (f"nobody makes these moves as it is configured; with {policy} an agent does",)


def _bubble_document(decision: Decision) -> form.ExplainedBubble | UnsetType:
    bubble = Bubble(decision.leaked) if decision.leaked else decision.bubble
    if bubble is None:
        return UNSET
    return form.ExplainedBubble(
        request=describe_budget(decision.pod),
        cpus=str(bubble.cpus),
        pool=str(bubble.pool),
        memory=memory_blocks(bubble.memory),
        steps=_steps_document(bubble.steps),
    )


def _steps_document(steps: Iterable[Step]) -> list[form.Step]:
    return [
        form.Step(kind=step.kind, id=step.id, cpus=str(CPUSet.from_mask(step.cpus)))
        for step in steps
    ]


def _container_document(decision: Decision, reason: ContainerReason) -> form.ExplainedContainer:
    kinds = {c.name: "sidecar" if c.is_sidecar else "init" for c in decision.pod.init_containers}
    idle = decision.idle.get(reason.name)
    return form.ExplainedContainer(
        name=reason.name,
        request=reason.request,
        hints=[_hints_document(provider, answer) for provider, answer in reason.answers],
        merged=None if reason.merged is None else _hint_document(reason.merged),
        constraint=reason.constraint,
        cpus=None if reason.cpus is None else str(reason.cpus),
        steps=_steps_document(reason.steps),
        memory=memory_blocks(reason.memory),
        devices=dict(reason.devices),
        kind=kinds.get(reason.name, UNSET),
        idle=UNSET if idle is None else str(idle),
    )


def _hints_document(provider: str, answer: ResourceHints | None) -> form.Hints:
    if answer is None:
        return form.Hints(provider=provider, resources=None)
    found = {
        resource: None if hints is None else [_hint_document(hint) for hint in hints]
        for resource, hints in answer.items()
    }
    return form.Hints(provider=provider, resources=found)


def _hint_document(hint: TopologyHint) -> form.Hint:
    nodes = None if hint.mask is None else list(iter_bits(hint.mask))
    return form.Hint(numa_nodes=nodes, preferred=hint.preferred)
