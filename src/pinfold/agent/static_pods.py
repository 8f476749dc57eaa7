"""The pods of the watched manifests folder: those that run are those that are in it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, Protocol

import structlog

from pinfold.adapters.kubernetes.manifest_folder import ManifestFolder, StaticPod
from pinfold.core.pod_api import PodError
from pinfold.node.capacity import lacks_device
from pinfold.node.manager import Manager
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.port_errors import PortError
from pinfold.node.records import PodRecord

log = structlog.get_logger("pinfold")


class Apply(Protocol):
    """Admits the pod of a manifest."""

    def __call__(self, manifest: Mapping[str, Any], *, source: str) -> Awaitable[PodRecord]:
        """See :meth:`pinfold.agent.service.Agent.apply`."""


class StaticPods:
    """Follows one folder.

    Args:
        path: the folder, or one file.
        manager: who has the pods.
        apply: admits the pod of a manifest.
    """

    def __init__(self, path: Path, manager: Manager, apply: Apply) -> None:
        self._folder = ManifestFolder(path)
        self._manager = manager
        self._apply = apply
        self._source = str(path)
        self._without_devices: dict[str, StaticPod] = {}
        self._inventory = manager.state.devices.inventory

    async def look(self) -> None:
        """Make the pods of the folder those that run, and end those that left it.

        Raises:
            PortError: a pod could not be released.
            UnknownPodError: it has gone by itself.
        """
        changed, problems = self._folder.look()
        for file, problem in problems.items():
            log.error("manifest", file=str(file), problem=problem)
        if changed:
            await self._follow()
        if self._manager.state.devices.inventory is not self._inventory:
            self._inventory = self._manager.state.devices.inventory
            await self._retry()

    async def _follow(self) -> None:
        wanted = self._folder.pods
        ours = {r.uid for r in self._manager.pods.records() if r.source == self._source}
        for uid in ours - wanted.keys():
            self._without_devices.pop(uid, None)
            await self._manager.release(uid)
        for uid, pod in wanted.items():
            if uid not in ours:
                await self._admit(pod)

    async def _retry(self) -> None:
        """Try pods again that came before the plugin of a device did."""
        waiting, self._without_devices = self._without_devices, {}
        for uid, pod in waiting.items():
            if uid in self._folder.pods:
                await self._manager.release(uid)
                await self._admit(pod)

    async def _admit(self, pod: StaticPod) -> None:
        try:
            record = await self._apply(pod.manifest, source=self._source)
        except (PodError, NameTakenError, UnknownPodError, PortError) as error:
            log.error("manifest", file=str(pod.file), problem=str(error))
            return
        if record.message:
            log.warning("rejected", pod=record.name, reason=record.reason, message=record.message)
        if lacks_device(record.reason):
            self._without_devices[record.uid] = pod
