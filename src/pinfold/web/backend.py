"""What the API asks of the agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from pinfold.documents.machine import Machine
from pinfold.documents.node import Node
from pinfold.documents.status import Agent, AgentConfig
from pinfold.node.books import Books
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.moves.resizing import Answered
from pinfold.node.observation.observer import Observation
from pinfold.node.pods.caller import NOBODY, Caller
from pinfold.node.pods.pod_life import PodLife
from pinfold.node.reconciler import Drift
from pinfold.ports.devices import DevicePlugins
from pinfold.ports.figures import Figure
from pinfold.ports.held_process import HeldProcess, Peer
from pinfold.ports.logs import PodLogs
from pinfold.ports.records import AppliedObject, ObjectKey, PodRecord


class PodBackend(Protocol):
    """Who runs the pods that the API is given."""

    @property
    def logs(self) -> PodLogs | None:
        """What the containers have written; None where nothing is kept."""

    @property
    def plugins(self) -> DevicePlugins | None:
        """The device plugins; None where there are none."""

    async def apply(
        self,
        manifest: Mapping[str, Any],
        *,
        source: str,
        held: HeldProcess | None = None,
        caller: Caller = NOBODY,
    ) -> PodRecord:
        """Admit the pod of a manifest, and start it when it is admitted.

        Args:
            manifest: a Pod as the Kubernetes API has it.
            source: who asks, for the record.
            held: a process that waits to become the pod's only container.
            caller: who waits, and may go away before anything is changed.

        Raises:
            PodError: it is no pod, or not a valid one.
            NameTakenError: there is a pod of that name.
            PortError: it could not be written down, or no room could be made for it.
        """

    def unchanged(self, manifest: Mapping[str, Any]) -> PodRecord | None:
        """The pod that runs and is what this manifest says; None where there is none of its name.

        Raises:
            PodError: it is no pod, or not a valid one.
            NameTakenError: one of its name is another pod; the message says what differs.
        """

    def process_of(self, peer: Peer, pid: int) -> HeldProcess:
        """A process that whoever asks may have taken over: his own, or a descendant of it.

        Raises:
            ForeignProcessError: it is somebody else's.
            PortError: nobody knows whose it is.
        """

    def notes(self, manifest: Mapping[str, Any]) -> Sequence[str]:
        """What of a manifest is not in force here, each field with its path.

        Raises:
            PodError: without it the pod would not be what its manifest says.
        """

    async def delete(self, name: str, *, grace: float | None, caller: Caller = NOBODY) -> None:
        """End a pod (``namespace/name``) and forget it; returns when it is gone.

        Args:
            name: which.
            grace: seconds from SIGTERM to SIGKILL; None is the pod's own.
            caller: who waits, and may go away before anything is changed.

        Raises:
            UnknownPodError: no such pod.
            PortError: that it is to go could not be written down.
        """

    async def apply_object(self, manifest: Mapping[str, Any], caller: Caller) -> AppliedObject:
        """Keep an object beside the pods, such as a ResourceQuota, in the place of its namesake.

        Raises:
            PodError: it is of no kind that is kept here, or not a valid one.
            NameTakenError: there is one of its name that somebody else keeps.
            PortError: it could not be written down.
        """

    async def delete_object(self, key: ObjectKey, caller: Caller) -> None:
        """Forget such an object.

        Raises:
            UnknownPodError: there is none.
            NameTakenError: somebody else keeps it.
            PortError: it could not be written down.
        """

    async def resize(
        self, name: str, container: str | None, cpus: float, *, caller: Caller = NOBODY
    ) -> Answered:
        """Decide about another number of CPUs for a running container, and begin its moves.

        Args:
            name: the pod, as ``namespace/name``.
            container: which; None: the pod's only one.
            cpus: how many, in steps of 0.001.
            caller: who waits, and may go away before anything is changed.

        Raises:
            UnknownPodError, UnknownContainerError: there is none.
            PortError: it could not be written down.
        """

    def life(self, uid: str) -> PodLife | None:
        """How far a pod is that is not gone; None where there is none."""


class Backend(Protocol):
    """The agent, as far as the API needs it; all methods run in the server's event loop."""

    books: Books

    @property
    def rebalancing(self) -> Rebalancing:
        """Finds better places for those who run."""

    @property
    def observation(self) -> Observation | None:
        """What containers and CPUs do; None where that is not watched."""

    @property
    def pods(self) -> PodBackend | None:
        """Who runs pods for the API; None: those that are here are a kubelet's."""

    async def reconcile(self) -> list[Drift]:
        """Compare the kernel with the record now, and repair; raises PortError."""

    def problems(self) -> Sequence[str]:
        """Why the agent is not ready; empty when it is."""

    def machine(self) -> Machine:
        """The machine, as ``pinfold topology -o json`` prints it."""

    def node(self) -> Node:
        """The node status; see :func:`pinfold.admission.node_status.node_status_document`."""

    def figures(self) -> Iterable[Figure]:
        """What is counted elsewhere than in the books, for the metrics."""

    def about(self) -> Agent:
        """What this agent is."""

    def settings(self) -> AgentConfig:
        """The settings in force."""
