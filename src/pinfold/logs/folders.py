"""The logs of pods as folders below one root, each as long as its pod is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from pinfold.logs.layout import pod_folder, remove_folder
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.records import PodRecord


class LogFolders:
    """Fulfils :class:`pinfold.ports.logs.PodLogs`; nothing else may be in ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def remove(self, pod: PodRecord) -> None:
        """See :meth:`pinfold.ports.logs.PodLogs.remove`."""
        await asyncio.to_thread(remove_folder, self.folder(pod))

    async def retain(self, pods: Collection[PodRecord]) -> list[str]:
        """See :meth:`pinfold.ports.logs.PodLogs.retain`."""
        return await asyncio.to_thread(self._retain, {self.folder(pod).name for pod in pods})

    def folder(self, pod: PodRecord) -> Path:
        """The folder of a pod's logs."""
        return pod_folder(self.root, pod.namespace, pod.name, pod.uid)

    def _retain(self, known: set[str]) -> list[str]:
        problems = []
        try:
            found = sorted(entry for entry in self.root.iterdir() if entry.name not in known)
        except FileNotFoundError:
            return []
        except OSError as error:
            return [f"{self.root}: {error.strerror}"]
        for folder in found:
            # A folder of another program is not ours: a pod's has three names, or a checksum.
            if (
                (folder.name.count("_") >= 2 or "~" in folder.name)
                and folder.is_dir()
                and not folder.is_symlink()
            ):
                try:
                    remove_folder(folder)
                except RuntimeFailedError as error:
                    problems.append(str(error))
        return problems
