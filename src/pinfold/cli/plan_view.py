"""From decisions to what the renderers draw."""

from __future__ import annotations

from collections.abc import Iterator

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.node_use import DeviceUse, MemoryUse, numa_use, unlocated_devices
from pinfold.planning.planner import ContainerPlacement, Plan, Planner, PodPlacement
from pinfold.render.machine_map import machine_map
from pinfold.render.node_map import Owner, number_owners
from pinfold.render.numa_panel import Gauge, NUMAGauges
from pinfold.render.plan_view import ContainerRow, PlanView, PodRow, extras


def plan_view(
    plan: Plan,
    title: str,
    *,
    notes: tuple[str, ...] = (),
    owners: tuple[Owner, ...] | None = None,
) -> PlanView:
    """A plan as a picture: the node map, the pods, the sets; ``notes`` stand below it."""
    planner = plan.planner
    drawn = number_owners(plan_owners(plan)) if owners is None else owners
    keys = {owner.key for owner in drawn}
    return PlanView(
        title=title,
        subtitle=policies(planner),
        node_map=machine_map(
            planner.machine,
            drawn,
            unseen=planner.view.unseen,
            shared=plan.shared,
            reserved=plan.reserved,
        ),
        pods=tuple(_pod(placement, keys) for placement in plan.pods),
        shared=plan.shared,
        reserved=plan.reserved,
        allocatable=plan.allocatable,
        notes=(*planner.view.notes, *notes),
        numa=_numa(plan),
    )


def _numa(plan: Plan) -> tuple[NUMAGauges, ...]:
    """What of memory and devices is used, where somebody counts, or there are huge pages."""
    nodes = numa_use(plan.planner.view, plan.state)
    booked = plan.state.memory is not None
    pages = any(len(node.memory) > 1 for node in nodes)
    if not booked and not pages and not plan.planner.devices:
        return ()
    shown = [
        NUMAGauges(
            node.id,
            (
                *(_memory_gauge(use) for use in node.memory if use.total),
                *(_device_gauge(use) for use in node.devices if use.total),
            ),
            node.group,
        )
        for node in nodes
    ]
    loose = tuple(_device_gauge(use) for use in unlocated_devices(plan.state))
    return (*shown, NUMAGauges(None, loose)) if loose else tuple(shown)


def _memory_gauge(use: MemoryUse) -> Gauge:
    return Gauge(use.type, use.used, use.total if use.allocatable is None else use.allocatable)


def _device_gauge(use: DeviceUse) -> Gauge:
    used = use.allocatable - use.free
    return Gauge(
        use.resource,
        used,
        use.allocatable,
        in_bytes=False,
        unhealthy=use.total - use.allocatable,
        unhealthy_used=use.used - used,
    )


def plan_owners(plan: Plan) -> Iterator[Owner]:
    """Every container with CPUs of its own.

    An init container's CPUs are used again by the containers after it; only what it alone holds
    is drawn as its own.
    """
    for placement in plan.admitted:
        pod = placement.pod
        exclusive = [c for c in placement.containers if c.exclusive]
        running = 0
        for container in sorted(exclusive, key=lambda c: c.kind == "init"):
            own = container.cpus.mask & ~running
            running |= container.cpus.mask
            if own:
                kind = "" if container.kind == "container" else f" ({container.kind})"
                yield Owner(
                    key=_key(placement, container.name),
                    label=f"{pod.namespace}/{pod.name} {container.name}{kind}",
                    cpus=CPUSet.from_mask(own),
                    kind=container.kind,
                )


def _key(placement: PodPlacement, container: str) -> str:
    return f"{placement.pod.namespace}/{placement.pod.name}/{container}"


def _pod(placement: PodPlacement, keys: set[str]) -> PodRow:
    pod, decision = placement.pod, placement.decision
    return PodRow(
        pod.namespace,
        pod.name,
        pod.qos.value,
        decision.admitted,
        tuple(
            ContainerRow(
                container.name,
                container.cpus,
                container.exclusive,
                _owner_key(placement, container, keys),
                "" if container.kind == "container" else container.kind,
                tuple(extras(container.memory, container.devices)),
            )
            for container in placement.containers
        ),
        decision.reason,
        decision.message,
    )


def _owner_key(
    placement: PodPlacement, container: ContainerPlacement, keys: set[str]
) -> str | None:
    """In whose colour a container's CPUs are drawn; None on the shared pool."""
    if not container.exclusive:
        return None
    own = _key(placement, container.name)
    if own in keys:
        return own
    # An init container all of whose CPUs were handed on: those of the pod that it shares most with.
    heirs = [c for c in placement.containers if _key(placement, c.name) in keys]
    heir = max(heirs, key=lambda c: len(c.cpus & container.cpus), default=None)
    return None if heir is None else _key(placement, heir.name)


def policies(planner: Planner) -> str:
    """The policies in force, in one line."""
    config = planner.config
    options = [
        name if value.lower() in ("true", "1", "t") else f"{name}={value}"
        for name, value in config.cpu_manager_policy_options.items()
    ]
    cpu = f"CPU manager {config.cpu_manager_policy}" + (
        f" ({', '.join(options)})" if options else ""
    )
    memory = config.memory_manager_policy
    more = "" if memory == "None" else f" · memory manager {memory}"
    if config.topology_manager_policy == "none":
        return f"{cpu} · topology manager none{more}"
    scope = config.topology_manager_scope
    return f"{cpu} · topology manager {config.topology_manager_policy} (scope {scope}){more}"
