"""What a node needs of the logs of containers, which outlive the containers."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol, runtime_checkable

from pinfold.ports.records import PodRecord


class PodLogs(Protocol):
    """Keeps what the containers of a pod have written, until the pod is forgotten."""

    async def remove(self, pod: PodRecord) -> None:
        """Remove all logs of a pod; none is no error.

        Raises:
            PortError: something is left; it can be tried again.
        """

    def folder(self, pod: PodRecord) -> Path:
        """The folder of a pod's logs: a folder for each container, a file for each attempt."""

    async def retain(self, pods: Collection[PodRecord]) -> list[str]:
        """Remove the logs of all pods but these; what could not be removed, as texts."""


@runtime_checkable
class BoundedLogs(Protocol):
    """A runtime whose containers' logs are bounded only when somebody looks after them."""

    async def bound_logs(self) -> list[str]:
        """Bring the logs within their bound; what was lost or could not be done, as texts."""
