"""The wire's messages of plain values: podresources ``v1`` and ``v1alpha1``.

Where the kubelet's own structs have a nil pointer the message is left out; a memory block always
has a topology, with no node in it if need be.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from pinfold.adapters.podresources import podresources_pb2 as v1
from pinfold.adapters.podresources import podresources_v1alpha1_pb2 as v1alpha1
from pinfold.ports.podresources import (
    AllocatableResources,
    ContainerDevices,
    ContainerMemory,
    ContainerResources,
    PodResources,
)


def list_response(pods: Iterable[PodResources]) -> v1.ListPodResourcesResponse:
    """The answer of ``List``."""
    return v1.ListPodResourcesResponse(pod_resources=[_pod(pod) for pod in pods])


def get_response(pod: PodResources) -> v1.GetPodResourcesResponse:
    """The answer of ``Get``."""
    return v1.GetPodResourcesResponse(pod_resources=_pod(pod))


def allocatable_response(resources: AllocatableResources) -> v1.AllocatableResourcesResponse:
    """The answer of ``GetAllocatableResources``."""
    response = v1.AllocatableResourcesResponse(
        cpu_ids=resources.cpus, memory=[_memory(block) for block in resources.memory]
    )
    # There may be ten thousand of them: made in place, and not copied.
    for devices in resources.devices:
        nodes = devices.numa_nodes
        response.devices.add(
            resource_name=devices.resource_name,
            device_ids=devices.device_ids,
            topology=None if nodes is None else _topology(nodes),
        )
    return response


def alpha_list_response(pods: Iterable[PodResources]) -> v1alpha1.ListPodResourcesResponse:
    """The answer of v1alpha1's ``List``: devices only, and no sidecars."""
    return v1alpha1.ListPodResourcesResponse(
        pod_resources=[
            v1alpha1.PodResources(
                name=pod.name,
                namespace=pod.namespace,
                containers=[
                    v1alpha1.ContainerResources(
                        name=container.name,
                        devices=[
                            v1alpha1.ContainerDevices(
                                resource_name=devices.resource_name, device_ids=devices.device_ids
                            )
                            for devices in container.devices
                        ],
                    )
                    for container in pod.containers
                    if not container.restartable_init
                ],
            )
            for pod in pods
        ]
    )


def _pod(pod: PodResources) -> v1.PodResources:
    return v1.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[_container(container) for container in pod.containers],
        cpu_ids=pod.cpus,
        memory=[_memory(block) for block in pod.memory],
    )


def _container(container: ContainerResources) -> v1.ContainerResources:
    return v1.ContainerResources(
        name=container.name,
        devices=[_devices(devices) for devices in container.devices],
        cpu_ids=container.cpus,
        memory=[_memory(block) for block in container.memory],
    )


def _devices(devices: ContainerDevices) -> v1.ContainerDevices:
    nodes = devices.numa_nodes
    return v1.ContainerDevices(
        resource_name=devices.resource_name,
        device_ids=devices.device_ids,
        topology=None if nodes is None else _topology(nodes),
    )


def _memory(block: ContainerMemory) -> v1.ContainerMemory:
    return v1.ContainerMemory(
        memory_type=block.memory_type, size=block.size, topology=_topology(block.numa_nodes)
    )


@lru_cache(256)  # of few nodes, for many devices; whoever is given one copies it
def _topology(nodes: tuple[int, ...]) -> v1.TopologyInfo:
    return v1.TopologyInfo(nodes=[v1.NUMANode(ID=node) for node in nodes])
