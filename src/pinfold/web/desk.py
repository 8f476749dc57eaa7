"""What the API serves: the side of the agent that answers requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pinfold.node.manager import Manager
from pinfold.node.reconciler import Drift
from pinfold.node.records import PodRecord


class Desk(Protocol):
    """An agent, as the API needs it."""

    @property
    def manager(self) -> Manager:
        """Who decides."""

    async def apply(
        self, manifest: Mapping[str, Any], *, source: str, pid: int | None = None
    ) -> PodRecord:
        """Admit the pod of a manifest.

        Raises:
            PodError: it is no pod, or not a valid one.
            NameTakenError: there is a pod of that name.
            PortError: it could not be written down, or no room could be made.
        """

    async def delete(self, name: str, *, grace: float | None) -> None:
        """End a pod and forget it.

        Raises:
            UnknownPodError: no such pod.
            PortError: that it is to go could not be written down.
        """

    async def reconcile(self) -> list[Drift]:
        """Look at the kernel now.

        Raises:
            PortError: it cannot be read.
        """

    def problems(self) -> Sequence[str]:
        """Why the agent is not ready; empty when it is."""

    def machine(self) -> Mapping[str, Any]:
        """What ``pinfold topology -o json`` prints."""

    def about(self) -> Mapping[str, Any]:
        """What this agent is and is configured to do; part of the status."""
