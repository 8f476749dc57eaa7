"""From a plan to what the renderers draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from pinfold.core.kubelet.faults import FAULTS
from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.machine.machine import Machine
from pinfold.core.memory.protection import MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN
from pinfold.core.pod.owner import PodOwner
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MovePlan
from pinfold.documents.plan import (
    BY_KEP,
    CgroupMemory,
    ClassMemory,
    DeviceCounts,
    InForce,
    MemoryUse,
    Plan,
    PlannedPod,
    PlannedResize,
)
from pinfold.planning import planner
from pinfold.planning.node_use import unlocated_devices
from pinfold.render.machine_map import machine_map
from pinfold.render.move_words import owner_facts, owner_name
from pinfold.render.node_map import Owner, number_owners, with_devices
from pinfold.render.numa_panel import Gauge, NUMAGauges, devices_at
from pinfold.render.plan_view import ContainerRow, PlanView, PodRow, ResizeRow, extras
from pinfold.render.topology_view import binary_size
from pinfold.views.node import (
    besides,
    bubble_lines,
    idle_siblings,
    kubelet_words,
    of_pod,
    owner_key,
    pod_owners,
    policies,
    quota_lines,
    quota_notes,
)

Owners: TypeAlias = Mapping[str, tuple[PodOwner, ...]]
"""The workloads that a pod is of, by its uid."""


class PlannedOn:
    """What a picture of a plan needs beside the plan.

    ``view`` is what the kubelet sees of the machine; of the ``unlocated`` devices nobody says at
    which NUMA node they are; ``owners`` are the workloads that a pod is of, by its uid.
    """

    def __init__(
        self,
        machine: Machine,
        view: KubeletView,
        unlocated: Mapping[str, DeviceCounts],
        owners: Owners = MappingProxyType({}),
    ) -> None:
        self.machine = machine
        self.unseen = view.unseen
        self.unlocated = unlocated
        self.owners = owners

    def owner_of(self, pod: PlannedPod) -> str | None:
        """The workload that has created a pod: of a ReplicaSet's, the Deployment."""
        owners = self.owners.get(pod.uid)
        return owners[-1].word if owners else None


def planned_on(plan: planner.Plan, owners: Owners = MappingProxyType({})) -> PlannedOn:
    """What a picture needs beside this plan."""
    node = plan.planner
    return PlannedOn(node.machine, node.view, unlocated_devices(plan.state), owners)


def plan_view(
    plan: Plan, on: PlannedOn, *, title: str = "", owners: tuple[Owner, ...] | None = None
) -> PlanView:
    """A plan as a picture: the node map, the pods, the sets; its notes stand below it."""
    config = plan.config
    policy = policies(config, config.memory_manager_policy, config.topology_manager_scope)
    drawn = number_owners(pod_owners(plan.pods)) if owners is None else owners
    keys = {owner.key for owner in drawn}
    shared, reserved = CPUSet.parse(plan.pool or plan.shared), CPUSet.parse(plan.reserved)
    idle = idle_siblings(plan.pods)
    gauges = _planned_gauges(plan, on.unlocated)
    return PlanView(
        title=title or plan.machine.name,
        subtitle=" · ".join((kubelet_words(plan.kubelet), policy, *_resize_rules(plan))),
        node_map=with_devices(
            machine_map(
                on.machine, drawn, unseen=on.unseen, shared=shared, reserved=reserved, idle=idle
            ),
            devices_at(gauges),
        ),
        # On a node with a section ``pinfold`` what is wished of containers tells it already.
        pods=tuple(
            replace(_planned(pod, keys, tells=config.pinfold is UNSET), owner=on.owner_of(pod))
            for pod in plan.pods
        ),
        shared=shared,
        reserved=reserved,
        allocatable=CPUSet.parse(plan.allocatable),
        isolated=on.machine.isolated,
        idle=idle,
        notes=(*plan.machine.notes, *(plan.notes or ()), *quota_notes(plan.quotas or ())),
        in_force=(*_classes(plan.memory_qos), *map(_wish, plan.in_force or ())),
        quotas=tuple(quota_lines(plan.quotas or ())),
        numa=gauges,
        resizes=tuple(_resize(resize, keys) for resize in plan.resizes or ()),
    )


def _resize_rules(plan: Plan) -> Iterator[str]:
    """That the answers to resizes are not those of the kubelet of the header."""
    # A node with a section ``pinfold`` is an agent's, and so are all of its answers.
    if plan.resize_rules == BY_KEP and plan.config.pinfold is UNSET:
        yield "resizes by Pinfold's rules (--kubelet-version: the kubelet's)"


def _resize(resize: PlannedResize, keys: set[str]) -> ResizeRow:
    key = f"{resize.pod}/{resize.container}"
    return ResizeRow(
        f"{resize.pod} {resize.container}",
        resize.cpus,
        CPUSet.parse(resize.before),
        CPUSet.parse(resize.after),
        key if key in keys else None,
        resize.reason,
        resize.message,
    )


def _wish(wish: InForce) -> str:
    """``partition: isolated (setting partition)``."""
    if wish.value is None:
        return f"{wish.feature}: not in force, {wish.reason} ({wish.source})"
    return f"{wish.feature}: {wish.value}{_provided(wish, ', on')} ({wish.source})"


def _provided(wish: InForce, on: str) -> str:
    """What has to be so on the machine, behind a word."""
    return f"{on} {wish.provided}" if wish.provided else ""


def _wishes(wishes: Sequence[InForce]) -> Iterator[str]:
    """Those of a container: what is in force by who wished it, and each that is not."""
    granted: dict[str, list[str]] = {}
    for wish in wishes:
        if wish.value is not None:
            granted.setdefault(wish.source.partition(" ")[0], []).append(
                f"{wish.feature} {wish.value}{_provided(wish, ' on')}"
            )
    for who, what in granted.items():
        yield f"by {who}: {', '.join(what)}"
    yield from (_wish(wish) for wish in wishes if wish.value is None)


def _planned(pod: PlannedPod, keys: set[str], *, tells: bool) -> PodRow:
    return PodRow(
        pod.namespace,
        pod.name,
        pod.qos,
        pod.admitted,
        tuple(
            ContainerRow(
                container.name,
                CPUSet.parse(container.cpus),
                container.exclusive,
                owner_key(pod, container, keys),
                "" if container.kind == "container" else container.kind,
                (
                    *besides(container),
                    *extras(container.memory, container.devices, container.classes),
                    *_protection(container.memory_qos if tells else UNSET),
                    *_wishes(container.in_force or ()),
                ),
                of_pod(container),
            )
            for container in pod.containers
        ),
        pod.reason,
        _message(pod),
        whole=(
            *bubble_lines(pod),
            *(() if pod.not_whole is UNSET else (f"no CPUs as a whole: {pod.not_whole}",)),
            *(() if pod.shares is UNSET else (f"no exclusive CPUs: {pod.shares}",)),
            *(f"pod {line}" for line in _protection(pod.memory_qos)),
            *_faulty(pod),
        ),
        uid=pod.uid,
    )


def _protection(cgroup: CgroupMemory | UnsetType) -> Iterator[str]:
    """``memory.min 1 GiB, memory.high 3.6 GiB``; a file with 0 protects nothing."""
    if cgroup is UNSET:
        return
    files = {MEMORY_MIN: cgroup.min, MEMORY_LOW: cgroup.low, MEMORY_HIGH: cgroup.high}
    if told := ", ".join(f"{file} {binary_size(size)}" for file, size in files.items() if size):
        yield told


def _classes(classes: ClassMemory | UnsetType) -> Iterator[str]:
    """``cgroup kubepods: memory.min 3 GiB``."""
    if classes is not UNSET:
        for name, cgroup in (("kubepods", classes.kubepods), ("burstable", classes.burstable)):
            yield from (f"cgroup {name}: {line}" for line in _protection(cgroup))


def _faulty(pod: PlannedPod) -> Iterator[str]:
    """What is wrong with the kubelet's answer to a pod that it admits."""
    for fault in FAULTS:
        if pod.admitted and fault.slug == pod.kubelet_fault:
            yield f"{fault.title} (kubelet fault {fault.slug})"


def _message(pod: PlannedPod) -> str | None:
    if pod.bubble and not pod.admitted:
        leak = f"CPUs {pod.bubble.cpus} stay its own (kubelet fault {pod.kubelet_fault})"
        return f"{pod.message}; {leak}"
    return pod.message if pod.moves is UNSET else f"{pod.message}; {_possible(pod.moves)}"


def _possible(moves: MovePlan) -> str:
    told = ", ".join(f"{owner_name(owner)} {change}" for owner, change, _ in owner_facts(moves))
    return f"it would be admitted after moves: {told}"


def _planned_gauges(plan: Plan, unlocated: Mapping[str, DeviceCounts]) -> tuple[NUMAGauges, ...]:
    """What of memory and devices is used, where somebody counts, or there are huge pages."""
    booked = plan.config.memory_manager_policy != "None"
    pages = any(len(node.memory) > 1 for node in plan.numa)
    if not booked and not pages and not plan.devices:
        return ()
    shown = [
        NUMAGauges(
            node.id,
            (
                *(_memory_gauge(use) for use in node.memory if use.total),
                *(_device_gauge(name, use) for name, use in node.devices.items() if use.total),
            ),
            tuple(node.group),
        )
        for node in plan.numa
    ]
    loose = tuple(_device_gauge(name, use) for name, use in unlocated.items())
    return (*shown, NUMAGauges(None, loose)) if loose else tuple(shown)


def _memory_gauge(use: MemoryUse) -> Gauge:
    return Gauge(use.type, use.used, use.total if use.allocatable is None else use.allocatable)


def _device_gauge(resource: str, use: DeviceCounts) -> Gauge:
    used = use.allocatable - use.free
    return Gauge(
        resource,
        used,
        use.allocatable,
        in_bytes=False,
        unhealthy=use.total - use.allocatable,
        unhealthy_used=use.used - used,
    )
