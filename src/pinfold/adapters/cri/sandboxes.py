"""The sandbox of each pod: made with its first container, found again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import CriClient, CriError, Retry
from pinfold.adapters.cri.labels import HOST_NETWORK, OURS, POD_UID, pod_labels
from pinfold.adapters.cri.status import condition
from pinfold.logs.layout import LogLimits, file_name, pod_folder, remove_folder
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec

_LONGEST_HOSTNAME: Final = 63


class CriSettings(Struct, frozen=True):
    """How pods are run.

    ``log_root`` holds a folder for each pod, as ``/var/log/pods`` does for the kubelet's (each log
    bounded by ``log_limits`` whenever :meth:`CriRuntime.bound_logs` looks), and
    ``volume_root`` the emptyDir volumes.  ``cgroup_parent`` gives the cgroup of a pod whose
    specification says none ("": the runtime's own).  With ``require_network`` a pod that wants a
    network of its own fails where the runtime has none to give; it gets the host's otherwise.
    ``oom_score_floor`` None finds out what the runtime may set.  ``protects_memory``: the runtime's
    cgroups are of version 2, the only one with files that protect a container's memory; a runtime
    refuses a container with such files elsewhere.
    """

    log_root: Path
    volume_root: Path
    log_limits: LogLimits = LogLimits()
    cgroup_parent: Callable[[ContainerSpec], str] | None = None
    require_network: bool = False
    oom_score_floor: int | None = None
    protects_memory: bool = False


class PodSandbox(Struct, frozen=True):
    """A sandbox that is ready, and what it was made from."""

    id: str
    config: pb.PodSandboxConfig


class Sandboxes:
    """Makes, finds and removes the sandboxes of our pods."""

    def __init__(self, client: CriClient, settings: CriSettings) -> None:
        self._client = client
        self._settings = settings
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def protects_memory(self) -> bool:
        """See :class:`CriSettings`."""
        return self._settings.protects_memory

    def lock(self, pod_uid: str) -> asyncio.Lock:
        """Held while a pod's sandbox is looked for or changed."""
        return self._locks.setdefault(pod_uid, asyncio.Lock())

    async def ensure(self, spec: ContainerSpec) -> PodSandbox:
        """The sandbox of a container's pod; ``lock`` is held; raises RuntimeFailedError."""
        attempt = 0
        for found in await self._find(spec.key.pod_uid):
            if found.state == pb.PodSandboxState.SANDBOX_READY:
                host_network = HOST_NETWORK in found.annotations
                config = self._config(spec, found.metadata.attempt, host_network=host_network)
                return PodSandbox(found.id, config)
            attempt = max(attempt, found.metadata.attempt + 1)
            # After a reboot: its containers ended with it, and are still there to be asked.
        config = self._config(spec, attempt, host_network=await self._on_host_network(spec))
        self._make_folder(Path(config.log_directory))
        request = pb.RunPodSandboxRequest(
            config=config, runtime_handler=spec.sandbox.runtime_class or ""
        )
        client = self._client
        try:
            answer = await client.call(
                "RunPodSandbox",
                request,
                pb.RunPodSandboxResponse,
                timeout=client.long,
                retry=Retry.ONCE,
            )
        except CriError as error:
            raise CriError(
                f"the sandbox of pod {spec.namespace}/{spec.pod_name} could not be made: {error}",
                code=error.code,
            ) from None
        if not answer.pod_sandbox_id:
            raise client.garbage("RunPodSandbox", "no id")
        return PodSandbox(answer.pod_sandbox_id, config)

    def to_be(self, spec: ContainerSpec) -> pb.PodSandboxConfig:
        """What the sandbox of a container's pod is made from, for who needs none that is there."""
        return self._config(spec, 0, host_network=spec.sandbox.host_network)

    async def remove(self, pod_uid: str) -> None:
        """Stop and remove all sandboxes of a pod, and its volumes; its logs stay.

        Raises:
            RuntimeFailedError: something is left; it can be tried again.
        """
        async with self.lock(pod_uid):
            client = self._client
            for found in await self._find(pod_uid):
                await client.call(
                    "StopPodSandbox",
                    pb.StopPodSandboxRequest(pod_sandbox_id=found.id),
                    pb.StopPodSandboxResponse,
                    timeout=client.long,
                )
                await client.call(
                    "RemovePodSandbox",
                    pb.RemovePodSandboxRequest(pod_sandbox_id=found.id),
                    pb.RemovePodSandboxResponse,
                    timeout=client.long,
                )
            await asyncio.to_thread(remove_folder, self.volumes(pod_uid))
        self._locks.pop(pod_uid, None)

    def volumes(self, pod_uid: str) -> Path:
        """The folder of a pod's emptyDir volumes."""
        return self._settings.volume_root / file_name(pod_uid)

    async def _find(self, pod_uid: str) -> list[pb.PodSandbox]:
        selector = {POD_UID: pod_uid, **OURS}
        answer = await self._client.call(
            "ListPodSandbox",
            pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector=selector)),
            pb.ListPodSandboxResponse,
        )
        # A runtime that does not filter would have others' sandboxes removed.
        return [
            item
            for item in answer.items
            if all(item.labels.get(name) == value for name, value in selector.items())
        ]

    async def _on_host_network(self, spec: ContainerSpec) -> bool:
        if spec.sandbox.host_network:
            return True
        status = await self._client.call("Status", pb.StatusRequest(), pb.StatusResponse)
        problem = condition(status, "NetworkReady")
        if problem and self._settings.require_network:
            raise RuntimeFailedError(
                f"pod {spec.namespace}/{spec.pod_name} wants a network of its own, and the runtime"
                f" at {self._client.address} has none to give: {problem}",
                "install a CNI plugin with its configuration, or set hostNetwork: true",
            )
        return bool(problem)

    def _config(
        self, spec: ContainerSpec, attempt: int, *, host_network: bool
    ) -> pb.PodSandboxConfig:
        settings = self._settings
        parent = spec.cgroup_parent
        if not parent and settings.cgroup_parent is not None:
            parent = settings.cgroup_parent(spec)
        uid = spec.key.pod_uid
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(
                name=spec.pod_name, uid=uid, namespace=spec.namespace, attempt=attempt
            ),
            hostname="" if host_network else spec.pod_name[:_LONGEST_HOSTNAME].rstrip("-."),
            log_directory=str(
                pod_folder(self._settings.log_root, spec.namespace, spec.pod_name, uid)
            ),
            labels=pod_labels(spec),
            annotations={HOST_NETWORK: "true"} if host_network else {},
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=parent,
                security_context=pb.LinuxSandboxSecurityContext(
                    namespace_options=namespaces(spec, host_network=host_network),
                    privileged=spec.sandbox.privileged or spec.process.security.privileged,
                ),
            ),
        )

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RuntimeFailedError(f"{folder} cannot be made: {error.strerror}") from None


def namespaces(spec: ContainerSpec, *, host_network: bool) -> pb.NamespaceOption:
    """Whose namespaces a container is in."""
    sandbox, mode = spec.sandbox, pb.NamespaceMode
    return pb.NamespaceOption(
        network=mode.NODE if host_network else mode.POD,
        pid=mode.NODE if sandbox.host_pid else mode.CONTAINER,
        ipc=mode.NODE if sandbox.host_ipc else mode.POD,
    )
