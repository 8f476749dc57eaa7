"""A plan as a document: what ``pinfold plan -o json`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import UNSET, UnsetType

from pinfold.admission.in_force.table import wishes_of_container, wishes_of_node
from pinfold.admission.in_force.wished import PlacedContainer, PlannedNode, Wish
from pinfold.admission.moves import rebalance_document, resize_document
from pinfold.admission.pod_level import Bubble
from pinfold.admission.quota import quota_use
from pinfold.core.classes.names import class_of
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import is_recorded
from pinfold.core.memory.memory import Block
from pinfold.core.pod.pod import MEMORY
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents import plan as form
from pinfold.documents.move_plan import MAKE_ROOM
from pinfold.documents.records import Bubble as BubbleRecord
from pinfold.documents.records import Kubelet, MemoryBlock
from pinfold.planning.explaining.whole import why_it_has_none, why_it_shares_all
from pinfold.planning.memory_qos import of_classes, rules_of, with_memory_qos, without_effect
from pinfold.planning.node_use import class_use, device_use, numa_use
from pinfold.planning.placement import ContainerPlacement
from pinfold.planning.planner import Plan, Planner, PodPlacement, ResizedContainer

_Of = TypeVar("_Of")


def plan_document(plan: Plan, notes: Sequence[str] | UnsetType = UNSET) -> form.Plan:
    """The document of a plan; ``notes`` are on what was passed over while reading."""
    topology, machine = plan.planner.view.topology, plan.planner.machine
    names = {one.pod.uid: one.pod.full_name for one in plan.pods}
    config = plan.planner.config
    memory = plan.planner.node.allocatable.get(MEMORY)
    node = None if config.own is None else PlannedNode(config, machine, plan.planner.kernel, memory)
    protection = rules_of(plan.planner)
    pool = str(plan.pool)
    return form.Plan(
        machine=form.PlannedMachine(
            name=machine.name,
            cpus=str(topology.cpus),
            sockets=topology.num_sockets,
            numa_nodes=topology.num_numa_nodes,
            cores=topology.num_cores,
            isolated=str(machine.isolated) or UNSET,
            nohz_full=str(machine.nohz_full) or UNSET,
            rcu_nocbs=str(machine.rcu_nocbs) or UNSET,
            notes=(*plan.planner.view.notes, *without_effect(plan.planner)),
        ),
        kubelet=kubelet_record(config),
        config=planned_config(config),
        pods=[
            with_memory_qos(
                _pod(pod, plan.planner, pool, names, node), pod.pod, plan.planner, protection
            )
            for pod in plan.pods
        ],
        shared=str(plan.shared),
        pool=UNSET if pool == str(plan.shared) else pool,
        reserved=str(plan.reserved),
        allocatable=str(plan.allocatable),
        numa=numa_use(plan.planner.view, plan.state),
        devices=device_use(plan.state),
        classes=_by_short_name(class_use(plan.state)) or UNSET,
        memory_qos=of_classes(plan.planner, (one.pod for one in plan.admitted), protection),
        in_force=UNSET if node is None else _in_force(wishes_of_node(node)),
        resizes=[_resize(one) for one in plan.resizes] or UNSET,
        resize_rules=_resize_rules(plan),
        quotas=list(quota_use(plan.quotas)) or UNSET,
        notes=notes,
    )


def _resize_rules(plan: Plan) -> str | UnsetType:
    if not plan.resizes:
        return UNSET
    return form.BY_KUBELET if plan.planner.resizes_as_kubelet else form.BY_KEP


def planned_config(config: NodeConfig) -> form.PlannedConfig:
    """The settings that are in force."""
    return form.PlannedConfig(
        cpu_manager_policy=config.cpu_manager_policy,
        cpu_manager_policy_options=dict(config.cpu_manager_policy_options),
        topology_manager_policy=config.topology_manager_policy,
        topology_manager_scope=config.topology_manager_scope,
        topology_manager_policy_options=dict(config.topology_manager_policy_options),
        memory_manager_policy=config.memory_manager_policy,
        pinfold=UNSET if config.own is None else config.own.by_group,
    )


def kubelet_record(config: NodeConfig) -> Kubelet:
    """Whose answers are given under a configuration."""
    version = config.kubelet_version
    return Kubelet(
        version=version.full,
        source=config.kubelet_version_from.value,
        recorded=is_recorded(version),
        remark=config.kubelet_version_remark or UNSET,
    )


def _pod(
    placement: PodPlacement,
    planner: Planner,
    pool: str,
    names: Mapping[str, str],
    node: PlannedNode | None,
) -> form.PlannedPod:
    pod, decision = placement.pod, placement.decision
    return form.PlannedPod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        qos=pod.qos.value,
        admitted=decision.admitted,
        reason=decision.reason,
        message=decision.message,
        kubelet_fault=None if decision.fault is None else decision.fault.slug,
        notes=decision.notes,
        bubble=bubble_document(placement.bubble),
        not_whole=why_it_has_none(planner.node, planner.config, decision) or UNSET,
        shares=why_it_shares_all(planner.node, decision) or UNSET,
        containers=[
            _container(container, pool, _placed(container, placement, node))
            for container in placement.containers
        ],
        moves=UNSET
        if placement.moves is None
        else rebalance_document(placement.moves, MAKE_ROOM, names),
    )


def _placed(
    container: ContainerPlacement, placement: PodPlacement, node: PlannedNode | None
) -> PlacedContainer | None:
    """A container of which something may be wished; None where nobody heeds that."""
    if node is None or not placement.admitted:
        return None
    own = container.cpus if container.exclusive else CPUSet()
    return PlacedContainer(node, placement.pod, container.name, own, container.mixed)


def _in_force(wishes: Iterable[tuple[str, Wish]]) -> list[form.InForce] | UnsetType:
    return [
        form.InForce(
            feature=name,
            value=wish.value,
            source=wish.source,
            reason=wish.reason,
            provided=wish.provided or UNSET,
        )
        for name, wish in wishes
    ] or UNSET


def _container(
    container: ContainerPlacement, pool: str, placed: PlacedContainer | None
) -> form.PlannedContainer:
    return form.PlannedContainer(
        name=container.name,
        kind=container.kind,
        cpus=str(container.cpus),
        exclusive=container.exclusive,
        shared=pool if container.mixed else UNSET,
        idle=UNSET if container.idle is None else str(container.idle),
        isolation=UNSET if container.isolation is None else container.isolation.value,
        numa_nodes=container.numa_nodes,
        memory=memory_blocks(container.memory),
        devices=dict(container.devices),
        classes=_by_short_name(container.by_class) or UNSET,
        in_force=UNSET if placed is None else _in_force(wishes_of_container(placed)),
    )


def _resize(answer: ResizedContainer) -> form.PlannedResize:
    pod = answer.pod.full_name
    return resize_document(form.PlannedResize, pod, answer.cpus, answer.decision, answer.moves)


def _by_short_name(by_class: Mapping[str, _Of]) -> dict[str, _Of]:
    return {class_of(name) or name: one for name, one in by_class.items()}


def bubble_document(bubble: Bubble | None) -> BubbleRecord | UnsetType:
    """What a pod has as a whole; UNSET: nothing."""
    if bubble is None:
        return UNSET
    return BubbleRecord(
        cpus=str(bubble.cpus), pool=str(bubble.pool), memory=memory_blocks(bubble.memory)
    )


def memory_blocks(blocks: Iterable[Block]) -> list[MemoryBlock]:
    """Memory that a container has."""
    return [
        MemoryBlock(type=block.type, size=block.size, numa_nodes=tuple(block.numa_affinity or ()))
        for block in blocks
    ]
