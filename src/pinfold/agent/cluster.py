"""What an agent tells its cluster and asks it; nobody waits for the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.adapters.kubernetes.events import (
    EventRecorder,
    Involved,
    rejection,
)
from pinfold.adapters.kubernetes.node_publisher import NodePublisher
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.adapters.kubernetes.pod_checks import PodChecks
from pinfold.adapters.kubernetes.published_node import Published
from pinfold.adapters.kubernetes.spec_check import Decided
from pinfold.adapters.kubernetes.start_up_taint import StartUpTaint
from pinfold.admission.admission import Node
from pinfold.admission.node_status import NodeStatus, node_status
from pinfold.admission.pod_level import owned_counts, placed_names
from pinfold.agent.api_access import access_of
from pinfold.agent.compute_resources import ComputeResources, MachineNow, kubelet_devices
from pinfold.agent.loops.runnables import Run, Runnable
from pinfold.agent.node_name import node_name
from pinfold.agent.published_node import published_node
from pinfold.agent.reports import report, report_of_node
from pinfold.config.agent import AgentConfig
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.pod.annotations import EXCLUSIVE_CPUS
from pinfold.core.pod.pod import Container as PodContainer
from pinfold.core.pod.pod import Pod
from pinfold.documents import status as documents
from pinfold.node.books import Books
from pinfold.node.nri.runtime_pod import RuntimePod, qos_of
from pinfold.ports.nri import (
    Container,
    PodSandbox,
)
from pinfold.ports.podresources import PodDevicesSource

NOT_PINNING: Final = "NotPinningCPUs"
"""The reason of the event on a node whose kubelet pins."""


log = structlog.get_logger("pinfold")


class DueOnNode:
    """What a configured node makes of a pod as it was written."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def owns(self) -> bool:
        """See :class:`~pinfold.adapters.kubernetes.spec_check.Due`."""
        return self._node.cpu_policy is not None

    def seen(self, pod: Pod) -> Pod:
        """See :class:`~pinfold.adapters.kubernetes.spec_check.Due`."""
        return self._node.seen(pod)

    def cpus(self, pod: Pod, container: PodContainer) -> int:
        """See :class:`~pinfold.adapters.kubernetes.spec_check.Due`."""
        node = self._node
        placed = placed_names(node.cpu_policy, pod, is_whole=node.serves_whole(pod))
        if container.name not in placed:
            return 0
        return owned_counts(node.cpu_policy, pod).get(container.name, 0)


class Cluster:
    """The API server's side of an agent."""

    def __init__(
        self,
        access: Access,
        config: AgentConfig,
        books: Books,
        kubelet: PodDevicesSource | None = None,
    ) -> None:
        self.client = client = KubeClient(access)
        self.node = node_name(config.own)
        self._config = config
        self._books = books
        self.events = EventRecorder(client, self.node, report_of_node)
        self.checks = PodChecks(
            client,
            self.events,
            report,
            due=DueOnNode(books.view.node),
        )
        self._objects: KubeObjects | None = None
        self._compute_resources: ComputeResources | None = None
        if config.own.cluster.compute_resources:
            self._objects = KubeObjects(access, connections=2)
            self._compute_resources = ComputeResources(
                self._objects,
                self.node,
                config.classes.described,
                kubelet_devices(kubelet),
                owner=lambda: client.node_reference(self.node),
            )

    def refused(self, pod: PodSandbox, container: Container, text: str) -> None:
        """A container was refused: an event on its pod."""
        reason, message = rejection(text)
        involved = Involved(pod.name, pod.uid, pod.namespace, container.name)
        self.events.record(involved, reason, message)

    def decided(self, pod: RuntimePod, container: str) -> None:
        """A container was decided about: compare with the API server's pod later."""
        sandbox = pod.sandbox
        decided = Decided(
            pod_uid=sandbox.uid,
            container=container,
            qos=qos_of(sandbox),
            seen=pod.containers[container].resources,
            cpus=self._books.view.in_the_end(sandbox.uid, container),
            declined=not EXCLUSIVE_CPUS.of(sandbox.annotations, container),
            bubble=sandbox.uid in self._books.view.state.ledger.bubbles,
        )
        self.checks.check(sandbox.namespace, sandbox.name, decided)

    def forgotten(self, pod_uid: str) -> None:
        """A pod is over: there is nothing to compare any more."""
        self.checks.forget(pod_uid)

    def node_problem(self, message: str) -> None:
        """Nothing is pinned here: an event on the node (whose uid is its name in events)."""
        self.events.record(Involved(self.node, self.node), NOT_PINNING, message)

    def runnable(self, at_work: Callable[[], bool]) -> Runnable:
        """What goes on beside the agent; ``at_work`` says whether containers are placed here."""

        def about() -> documents.Kubernetes:
            events = self.events
            problems = {"events": events.problem, "checks": self.checks.problem}
            if (published := self._compute_resources) is not None:
                problems["computeResources"] = published.problem
            return documents.Kubernetes(
                server=self.client.server,
                node=self.node,
                events=documents.Events(
                    sent=events.sent, pending=events.pending, dropped=events.dropped
                ),
                pods_compared=self.checks.checked,
                pods_differing=self.checks.differing,
                problems={name: problem for name, problem in problems.items() if problem},
            )

        also: dict[str, Run] = {"comparisons with the API server": self.checks.run}
        own = self._config.own.cluster
        if own.node_labels or own.node_resource_topology or own.publish_node:
            also["what the node publishes"] = self._publish
        if self._compute_resources is not None:
            also["the node's compute resources"] = self._compute_resources.run
        if own.start_up_taint is not None:
            also["the node's start-up taint"] = self._untaint(own.start_up_taint, at_work).run
        # A cluster that cannot be told is no reason to call the agent unready: it pins.
        return Runnable("kubernetes", self.events.run, also, about=about, close=self._close)

    async def _close(self) -> None:
        await self.client.close()
        if self._objects is not None:
            await self._objects.close()

    def _untaint(self, key: str, at_work: Callable[[], bool]) -> StartUpTaint:
        return StartUpTaint(
            self.client,
            self.node,
            key,
            ready=at_work,
            removed=lambda: log.info("node", name=self.node, taint=key, removed=True),
            report=report_of_node,
        )

    async def _publish(self) -> None:
        reader = MachineNow()
        machine = await reader.read()
        view = kubelet_view(machine)
        books, config = self._books, self._config.node

        async def status() -> NodeStatus:
            nonlocal machine, view
            now = await reader.read()
            if now is not machine:
                machine, view = now, kubelet_view(now)
            return node_status(machine, view, config, books.view.node, books.view.state)

        own = self._config.own

        def facts() -> Published:
            return published_node(self.node, machine, view, self._config, books.view.state)

        await NodePublisher(
            self.client,
            self.node,
            status,
            report_of_node,
            labels=own.cluster.node_labels,
            topology=own.cluster.node_resource_topology,
            facts=facts if own.cluster.publish_node else None,
        ).run()


def open_cluster(
    config: AgentConfig, books: Books, kubelet: PodDevicesSource | None = None
) -> Cluster | None:
    """The cluster of the configuration; None where there is none, or no access to it.

    Raises:
        KubernetesError: a kubeconfig is configured and cannot be used.
    """
    access = access_of(config.own)
    return None if access is None else Cluster(access, config, books, kubelet)
