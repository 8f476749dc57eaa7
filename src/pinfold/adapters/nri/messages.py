"""Between NRI's messages and the plain values of the node; nothing of protobuf gets past here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pinfold.adapters.nri import nri_pb2 as wire
from pinfold.ports.nri import (
    Container,
    ContainerAdjustment,
    ContainerState,
    ContainerUpdate,
    PodSandbox,
    Resources,
)

_REMOVED: Final = "-"
"""Before the name of what is to be removed (upstream ``MarkForRemoval``)."""

_STATES: Final = {
    wire.CONTAINER_CREATED: ContainerState.CREATED,
    wire.CONTAINER_PAUSED: ContainerState.PAUSED,
    wire.CONTAINER_RUNNING: ContainerState.RUNNING,
    wire.CONTAINER_STOPPED: ContainerState.STOPPED,
}


def seen_resources(message: wire.LinuxResources) -> Resources:
    """What a runtime says of resources."""
    cpu, memory = message.cpu, message.memory
    return Resources(
        cpu_shares=cpu.shares.value if cpu.HasField("shares") else None,
        cpu_quota=cpu.quota.value if cpu.HasField("quota") else None,
        cpu_period=cpu.period.value if cpu.HasField("period") else None,
        cpus=cpu.cpus,
        mems=cpu.mems,
        memory=memory.limit.value if memory.HasField("limit") else None,
        hugepages={limit.page_size: limit.limit for limit in message.hugepage_limits},
        unified=dict(message.unified),
    )


def seen_sandbox(message: wire.PodSandbox) -> PodSandbox:
    """A pod as a runtime tells it."""
    linux = message.linux
    return PodSandbox(
        id=message.id,
        uid=message.uid,
        name=message.name,
        namespace=message.namespace,
        annotations=dict(message.annotations),
        cgroup_parent=linux.cgroup_parent,
        pid=message.pid or None,
    )


def seen_container(message: wire.Container) -> Container:
    """A container as a runtime tells it."""
    linux = message.linux
    return Container(
        id=message.id,
        sandbox_id=message.pod_sandbox_id,
        name=message.name,
        state=_STATES.get(message.state, ContainerState.UNKNOWN),
        annotations=dict(message.annotations),
        resources=seen_resources(linux.resources),
        cgroups_path=linux.cgroups_path,
        pid=message.pid or None,
        variables=frozenset(entry.partition("=")[0] for entry in message.env),
        mounted=frozenset(mount.destination for mount in message.mounts),
    )


def _resources_message(resources: Resources) -> wire.LinuxResources:
    message = wire.LinuxResources(
        cpu=wire.LinuxCPU(cpus=resources.cpus, mems=resources.mems),
        hugepage_limits=[
            wire.HugepageLimit(page_size=size, limit=limit)
            for size, limit in resources.hugepages.items()
        ],
        unified=resources.unified,
    )
    if resources.cpu_shares is not None:
        message.cpu.shares.value = resources.cpu_shares
    if resources.cpu_quota is not None:
        message.cpu.quota.value = resources.cpu_quota
    if resources.cpu_period is not None:
        message.cpu.period.value = resources.cpu_period
    if resources.memory is not None:
        message.memory.limit.value = resources.memory
    return message


def update_messages(updates: Iterable[ContainerUpdate]) -> list[wire.ContainerUpdate]:
    """What containers are changed to; raises ValueError."""
    return [
        wire.ContainerUpdate(
            container_id=update.container_id,
            linux=wire.LinuxContainerUpdate(resources=_resources_message(update.resources)),
            ignore_failure=update.ignore_failure,
        )
        for update in updates
    ]


def adjustment_message(adjustment: ContainerAdjustment) -> wire.ContainerAdjustment:
    """What a container that is being created gets; raises ValueError."""
    message = wire.ContainerAdjustment(
        annotations=adjustment.annotations,
        env=[
            wire.KeyValue(key=f"{_REMOVED}{key}" if value is None else key, value=value or "")
            for key, value in adjustment.env.items()
        ],
        mounts=[
            wire.Mount(
                destination=mount.target,
                type="bind",
                source=mount.source,
                options=["rbind", "rprivate", "ro" if mount.read_only else "rw"],
            )
            for mount in adjustment.mounts
        ],
    )
    if adjustment.resources != Resources():
        message.linux.resources.CopyFrom(_resources_message(adjustment.resources))
    return message
