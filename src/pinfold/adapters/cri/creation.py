"""Creating a container: sandbox, container; and undoing it where that went wrong."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import Final

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import CriClient, CriError, Retry, gone_is_fine
from pinfold.adapters.cri.configs import container_config
from pinfold.adapters.cri.labels import CREATION, OURS, POD_UID, is_ours
from pinfold.adapters.cri.sandboxes import PodSandbox, Sandboxes
from pinfold.ports.runtime import ContainerSpec

_MAYBE_DONE = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "DATA_LOSS"})
_LAST_UNDO: Final = 5.0
"""Seconds that :meth:`Creator.close` waits for a runtime that may not answer."""


class Creator:
    """Creates containers in the sandboxes of their pods, and removes them."""

    def __init__(self, client: CriClient, sandboxes: Sandboxes) -> None:
        self._client = client
        self._sandboxes = sandboxes
        self._undoing: set[asyncio.Task[None]] = set()

    async def create(self, spec: ContainerSpec, oom_score_floor: int) -> str:
        """Create a container; returns its id; raises RuntimeFailedError."""
        async with self._sandboxes.lock(spec.key.pod_uid):
            # The lock keeps two of the same name from getting the same number.
            sandbox = await self._sandboxes.ensure(spec)
            creation = secrets.token_hex(8)
            try:
                return await self._create(spec, sandbox, creation, oom_score_floor)
            except CriError as error:
                if error.code in _MAYBE_DONE:
                    await self._undo(spec, creation)
                raise
            except asyncio.CancelledError:
                task = asyncio.create_task(self._undo(spec, creation), name="undo a creation")
                self._undoing.add(task)
                task.add_done_callback(self._undoing.discard)
                raise

    async def remove(self, container_id: str) -> None:
        """Remove a container; one that is gone is no error; raises CriError."""
        request = pb.RemoveContainerRequest(container_id=container_id)
        answer = pb.RemoveContainerResponse
        with gone_is_fine():
            await self._client.call("RemoveContainer", request, answer, timeout=self._client.long)

    async def close(self) -> None:
        """Wait a moment for what is being undone; whoever comes next finds the rest."""
        if undoing := set(self._undoing):
            _, late = await asyncio.wait(undoing, timeout=_LAST_UNDO)
            for task in late:
                task.cancel()
            await asyncio.gather(*undoing, return_exceptions=True)

    async def _create(
        self,
        spec: ContainerSpec,
        sandbox: PodSandbox,
        creation: str,
        oom_score_floor: int,
    ) -> str:
        attempts = [
            item.metadata.attempt
            for item in await self._in_pod(spec.key.pod_uid)
            if item.metadata.name == spec.key.name
        ]
        name = spec.process.image or ""
        config = await asyncio.to_thread(
            container_config,
            spec,
            sandbox,
            pb.ImageSpec(image=spec.image or name, user_specified_image=name),
            # Name and attempt are unique in a sandbox; ours may come again after a crash.
            attempt=max([spec.attempt, *(attempt + 1 for attempt in attempts)]),
            creation=creation,
            volumes=self._sandboxes.volumes(spec.key.pod_uid),
            oom_score_floor=oom_score_floor,
            protects_memory=self._sandboxes.protects_memory,
        )
        request = pb.CreateContainerRequest(
            pod_sandbox_id=sandbox.id, config=config, sandbox_config=sandbox.config
        )
        try:
            answer = await self._client.call(
                "CreateContainer",
                request,
                pb.CreateContainerResponse,
                timeout=self._client.long,
                retry=Retry.ONCE,
            )
        except CriError as error:
            raise CriError(
                f"container {spec.key} could not be created: {error}", code=error.code
            ) from None
        if not answer.container_id:
            raise self._client.garbage("CreateContainer", "no id")
        return answer.container_id

    async def _undo(self, spec: ContainerSpec, creation: str) -> None:
        """Whether it was created is not known: it must not be there later on."""
        with suppress(CriError):
            for item in await self._in_pod(spec.key.pod_uid):
                if item.annotations.get(CREATION) == creation:
                    await self.remove(item.id)

    async def _in_pod(self, pod_uid: str) -> list[pb.Container]:
        selector = {POD_UID: pod_uid, **OURS}
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=selector))
        answer = await self._client.call("ListContainers", request, pb.ListContainersResponse)
        return [
            item
            for item in answer.containers
            if is_ours(item.labels) and item.labels[POD_UID] == pod_uid
        ]
