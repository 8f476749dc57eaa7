"""What the API asks of an agent that runs pods itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import structlog

from pinfold.adapters.process.credentials import credentials_of
from pinfold.adapters.process.peers import process_of
from pinfold.admission.nearness import near_notes
from pinfold.agent.claims import ClaimKeeper
from pinfold.agent.loops.hugepages import HugepageFollower
from pinfold.agent.objects import Objects
from pinfold.config.agent import AgentConfig
from pinfold.core.classes.api import pod_with_classes
from pinfold.core.pod.annotation import AnnotationError
from pinfold.core.pod.annotations import NEAR
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.manifest.workload_fields import PROCESS, check_fields
from pinfold.core.pod.near_wishes import wishes_of
from pinfold.core.pod.security import Security
from pinfold.core.pod.workload import Workload
from pinfold.core.values.names import LONGEST_LABEL
from pinfold.node.moves.resizing import Answered
from pinfold.node.pods.caller import NOBODY, Caller
from pinfold.node.pods.manager import Manager
from pinfold.node.pods.pod_life import PodLife
from pinfold.node.pods.unchanged import unchanged
from pinfold.ports.devices import DevicePlugins
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.held_process import HeldProcess, Peer
from pinfold.ports.logs import PodLogs
from pinfold.ports.records import AppliedObject, ObjectKey, PodRecord

_LARGE: Final = 64 << 10
"""Characters of a manifest from which it is read in a thread, so that the loop goes on."""

_NO_COMMAND: Final = (
    "Required value: without a container runtime (runtime: process) there is no image to take one "
    "from; write the command out, or have the agent run containers (runtime: cri)"
)

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_ENDING: Final = 5
"""Letters that end a generated name; upstream ``apiserver/pkg/storage/names`` makes no words."""

log = structlog.get_logger("pinfold")


class Pods:
    """Admits and ends pods; fulfils :class:`pinfold.web.backend.PodBackend`.

    Args:
        config: what runs the containers.
        manager: who gives them their CPUs.
        claim: sees that the containers are this agent's.
        pages: knows how many huge pages there are.
    """

    def __init__(
        self, config: AgentConfig, manager: Manager, claim: ClaimKeeper, pages: HugepageFollower
    ) -> None:
        self._runtime = config.own.containers.runtime
        self._manager = manager
        self._claim = claim
        self._pages = pages
        self._objects = Objects(manager.books)

    @property
    def logs(self) -> PodLogs | None:
        """See :class:`pinfold.web.backend.PodBackend`."""
        return self._manager.containers.logs

    @property
    def plugins(self) -> DevicePlugins | None:
        """See :class:`pinfold.web.backend.PodBackend`."""
        return self._manager.plugins

    async def apply(
        self,
        manifest: Mapping[str, Any],
        *,
        source: str,
        held: HeldProcess | None = None,
        caller: Caller = NOBODY,
    ) -> PodRecord:
        """Admit the pod of a manifest.

        Raises:
            PodError: it is no pod, or not a valid one.
            NameTakenError: there is a pod of that name.
            PortError: it could not be written down, or no room could be made.
        """
        await self._claim.look()
        classes = self._manager.books.view.state.devices.classes
        named = pod_with_classes(_as_created(manifest), classes.names)
        text = json.dumps(named)
        notes = self.notes(named)
        if len(text) < _LARGE:
            workload = workload_from_api(named)
        else:
            workload = await asyncio.to_thread(workload_from_api, named)
        if self._runtime == PROCESS:
            check_processes(workload, attached=held is not None)
        if notes:
            pod = workload.pod.full_name
            log.warning("manifest", pod=pod, notes="; ".join(notes))
        await self._pages.look()
        return await self._manager.admit(
            workload, manifest=text, source=source, held=held, caller=caller
        )

    def unchanged(self, manifest: Mapping[str, Any]) -> PodRecord | None:
        """See :class:`pinfold.web.backend.PodBackend`."""
        view = self._manager.books.view
        names = view.state.devices.classes.names
        return unchanged(view.pods, pod_with_classes(manifest, names))

    def process_of(self, peer: Peer, pid: int) -> HeldProcess:
        """See :meth:`pinfold.web.backend.PodBackend.process_of`."""
        return process_of(peer, pid, agent=os.getpid())

    def notes(self, manifest: Mapping[str, Any]) -> Sequence[str]:
        """What of a manifest is not in force here; raises PodError where that cannot be."""
        return (*check_fields(manifest, self._runtime), *self._not_near(manifest))

    def _not_near(self, manifest: Mapping[str, Any]) -> Iterator[str]:
        """Yield which preferred wishes for a device this machine cannot meet."""
        metadata = manifest.get("metadata")
        said = metadata.get("annotations") if isinstance(metadata, Mapping) else None
        localities = self._manager.books.view.node.localities
        if localities is None or not isinstance(said, Mapping):
            return
        if any(str(key).startswith(f"{NEAR.name}.") for key in said):
            pod = workload_from_api(_as_created(manifest)).pod
            with contextlib.suppress(AnnotationError):  # the pod is rejected for it
                wishes = wishes_of(pod) or ()
                yield from near_notes(localities, (wish for wish in wishes if not wish.required))

    async def delete(self, name: str, *, grace: float | None, caller: Caller = NOBODY) -> None:
        """End a pod; see :meth:`pinfold.node.pods.manager.Manager.release`."""
        await self._claim.look()
        await self._manager.release(name, grace=grace, caller=caller)

    async def apply_object(self, manifest: Mapping[str, Any], caller: Caller) -> AppliedObject:
        """See :class:`pinfold.web.backend.PodBackend`."""
        return await self._objects.apply(manifest, caller=caller)

    async def delete_object(self, key: ObjectKey, caller: Caller) -> None:
        """See :class:`pinfold.web.backend.PodBackend`."""
        await self._objects.delete(key, caller=caller)

    async def resize(
        self, name: str, container: str | None, cpus: float, *, caller: Caller = NOBODY
    ) -> Answered:
        """See :meth:`pinfold.web.backend.PodBackend.resize`."""
        await self._claim.look()
        return await self._manager.resizing.resize(name, container, cpus, begun=caller.begin)

    def life(self, uid: str) -> PodLife | None:
        """See :meth:`pinfold.web.backend.PodBackend.life`."""
        return self._manager.lives.get(uid)


def _as_created(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The manifest with a uid, and with a name where it has only its beginning (as upstream)."""
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping):
        return manifest
    given = {} if metadata.get("uid") else {"uid": str(uuid.uuid4())}
    prefix = metadata.get("generateName")
    if isinstance(prefix, str) and prefix and not metadata.get("name"):
        ending = "".join(secrets.choice(_LETTERS) for _ in range(_ENDING))
        given["name"] = prefix[: LONGEST_LABEL - _ENDING] + ending
    return {**manifest, "metadata": {**metadata, **given}}


def check_processes(workload: Workload, *, attached: bool) -> None:
    """See that a pod's containers have commands, which can run with the rights that they are given.

    Args:
        workload: the pod.
        attached: its only process was started by somebody else, who has given it its rights.

    Raises:
        PodError: one cannot.
    """
    pod = workload.pod
    for key, containers in (
        ("initContainers", pod.init_containers),
        ("containers", pod.containers),
    ):
        for index, container in enumerate(containers):
            process, path = workload.processes[container.name], f"spec.{key}[{index}]"
            if not (attached or process.command):
                raise PodError(f"{path}.command", _NO_COMMAND)
            path, security = f"{path}.securityContext", process.security
            if attached and security != Security():
                raise PodError(path, "the process that is taken over has the rights of its parent")
            try:
                credentials_of(security)
            except RuntimeFailedError as error:
                raise PodError(path, str(error)) from None
