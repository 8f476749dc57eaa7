"""Everything that a runtime runs, whoever asked for it: for audit and explain."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import CriClient, CriError
from pinfold.adapters.cri.endpoint import (
    CRICTL_YAML,
    VARIABLE,
    Endpoint,
    find_endpoint,
    is_socket,
    read_endpoint,
)
from pinfold.adapters.cri.resources import from_wire
from pinfold.adapters.cri.status import info_document
from pinfold.adapters.cri.table import pid_of
from pinfold.audit.record import KnownContainer
from pinfold.audit.told import Told
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.nri import Container, ContainerState, Existing, PodSandbox, Resources

_AT_ONCE: Final = 8
_QUICK_SECONDS: Final = 3.0
_STATES: Final = {
    pb.ContainerState.CONTAINER_CREATED: ContainerState.CREATED,
    pb.ContainerState.CONTAINER_RUNNING: ContainerState.RUNNING,
    pb.ContainerState.CONTAINER_EXITED: ContainerState.STOPPED,
    pb.ContainerState.CONTAINER_UNKNOWN: ContainerState.UNKNOWN,
}


class CriListing:
    """The :class:`pinfold.ports.nri.RuntimeListing` of a CRI runtime."""

    def __init__(self, client: CriClient) -> None:
        self._client = client

    async def existing(self) -> Existing:
        """See :class:`pinfold.ports.nri.RuntimeListing`."""
        call = self._client.call
        # The sandboxes last: those of the containers that are listed are there.
        containers = await call(
            "ListContainers", pb.ListContainersRequest(), pb.ListContainersResponse
        )
        pods = await call("ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse)
        ended = pb.ContainerState.CONTAINER_EXITED
        return Existing(
            {one.id: one.state == pb.PodSandboxState.SANDBOX_READY for one in pods.items},
            {one.id: one.state != ended for one in containers.containers},
        )


async def list_cri_containers(
    client: CriClient,
) -> tuple[Sequence[PodSandbox], Sequence[Container]]:
    """List every pod and every container, with their processes and recorded resources.

    What is removed while this asks is left out.

    Raises:
        CriError: the runtime does not answer.
    """
    gate = asyncio.Semaphore(_AT_ONCE)

    async def sandbox(item: pb.PodSandbox) -> PodSandbox | None:
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=item.id, verbose=True)
        try:
            async with gate:
                answer = await client.call("PodSandboxStatus", request, pb.PodSandboxStatusResponse)
        except CriError as error:
            if error.code != "NOT_FOUND":
                raise
            return None
        info = answer.info
        return PodSandbox(
            id=item.id,
            uid=item.metadata.uid,
            name=item.metadata.name,
            namespace=item.metadata.namespace,
            annotations=dict(item.annotations),
            cgroup_parent=_text(info_document(info), "config", "linux", "cgroup_parent"),
            pid=pid_of(info),
        )

    async def container(item: pb.Container) -> Container | None:
        request = pb.ContainerStatusRequest(container_id=item.id, verbose=True)
        try:
            async with gate:
                answer = await client.call("ContainerStatus", request, pb.ContainerStatusResponse)
        except CriError as error:
            if error.code != "NOT_FOUND":
                raise
            return None
        status = answer.status
        state = _STATES.get(status.state, ContainerState.UNKNOWN)
        return Container(
            id=item.id,
            sandbox_id=item.pod_sandbox_id,
            name=item.metadata.name,
            state=state,
            annotations=dict(item.annotations),
            # What came through NRI at its creation is in the runtime's spec only.
            resources=_recorded(from_wire(status.resources.linux), answer.info),
            cgroups_path=_text(info_document(answer.info), "runtimeSpec", "linux", "cgroupsPath"),
            pid=None if state is ContainerState.STOPPED else pid_of(answer.info),
        )

    pods, containers = await asyncio.gather(
        client.call("ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse),
        client.call("ListContainers", pb.ListContainersRequest(), pb.ListContainersResponse),
    )
    found_pods = await asyncio.gather(*map(sandbox, pods.items))
    found = await asyncio.gather(*map(container, containers.containers))
    return [pod for pod in found_pods if pod is not None], [c for c in found if c is not None]


async def tell_containers(setting: str, root: Path) -> Told:
    """What the container runtime of a machine says; nothing where there is none.

    Args:
        setting: its address, where somebody has named it.
        root: the machine's root; another than ``/`` may have the runtime's socket in it.

    Raises:
        RuntimeFailedError: the address that was named is none.
    """
    endpoint = _endpoint(setting, root)
    if endpoint is None or isinstance(endpoint, str):
        return Told(problem=endpoint or "")
    client = CriClient(endpoint.address, quick=_QUICK_SECONDS)
    try:
        async with asyncio.timeout(2 * _QUICK_SECONDS):
            pods, containers = await list_cri_containers(client)
    except TimeoutError:
        problem = f"{endpoint.address} did not answer in time"
    except CriError as error:
        problem = str(error)
    else:
        by_id = {pod.id: pod for pod in pods}
        known = (_known(one, by_id.get(one.sandbox_id)) for one in containers)
        return Told((*map(_known_sandbox, pods), *known), endpoint.address)
    finally:
        await client.close()
    return Told(
        problem=f"the container runtime ({endpoint.source}) does not tell its containers: {problem}"
    )


def _endpoint(setting: str, root: Path) -> Endpoint | str | None:
    """The runtime's address; None where there is none, a sentence where what names it is wrong."""
    if setting:
        return read_endpoint(setting)
    is_live = root == Path("/")
    try:
        if is_live:
            return read_endpoint()
        # Another machine's files name another machine's runtime: only a socket in it is meant.
        found = find_endpoint({}, None, lambda path: is_socket(f"{root}{path}"))
    except RuntimeFailedError as error:
        named = is_live and (os.environ.get(VARIABLE) or CRICTL_YAML.exists())
        return f"the container runtime was not asked: {error}" if named else None
    return Endpoint(f"unix://{root.resolve()}{found.path}", found.source)


def _known_sandbox(pod: PodSandbox) -> KnownContainer:
    return KnownContainer(
        id=pod.id,
        pod_uid=pod.uid,
        pod=pod.full_name,
        pid=pod.pid,
        is_sandbox=True,
        has_ended=pod.pid is None,
    )


def _known(one: Container, pod: PodSandbox | None) -> KnownContainer:
    return KnownContainer(
        id=one.id,
        pod_uid="" if pod is None else pod.uid,
        pod="" if pod is None else pod.full_name,
        name=one.name,
        pid=one.pid,
        recorded=_cpus(one.resources.cpus),
        has_ended=one.state is ContainerState.STOPPED,
    )


def _cpus(text: str) -> CPUSet | None:
    """The CPUs on record; None where there are none, or a runtime has written what is no list."""
    try:
        return CPUSet.parse(text) if text else None
    except CPUSetError:
        return None


def _recorded(resources: Resources, info: Mapping[str, str]) -> Resources:
    cpus = _text(info_document(info), "runtimeSpec", "linux", "resources", "cpu", "cpus")
    return replace(resources, cpus=cpus) if cpus else resources


def _text(document: Mapping[str, Any], *path: str) -> str:
    """A text deep in a runtime's own words; "" where it is not."""
    value: Any = document
    for name in path:
        if not isinstance(value, Mapping):
            return ""
        value = value.get(name)
    return value if isinstance(value, str) else ""
