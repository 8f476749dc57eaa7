"""What a node needs of the files from which applications learn their CPUs."""

from __future__ import annotations

from typing import Protocol


class PodFiles(Protocol):
    """The small files from which applications learn their CPUs."""

    async def publish(self, pod_uid: str, document: str) -> None:
        """Replace a pod's file atomically, if its content changes.

        Raises:
            PortError: it cannot be written.
        """

    async def retract(self, pod_uid: str) -> None:
        """Remove a pod's file; one that is not there is no error.

        Raises:
            PortError: it cannot be removed.
        """
