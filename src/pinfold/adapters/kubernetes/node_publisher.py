"""Tells the cluster about this node: labels, a NodeResourceTopology, and what a plan needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.adapters.kubernetes.published_node import Published, config_map
from pinfold.admission.node_status import (
    OPTION_LABELS,
    NodeStatus,
    node_labels,
    node_resource_topology,
)
from pinfold.ports.kubernetes import KubernetesError
from pinfold.retry.backoff import Backoff

PERIOD: Final = 10.0
"""Seconds between two looks at what is to be told."""

_AGAIN: Final = 600.0
_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 60.0


class NodePublisher:
    """Publishes a node's status when it has changed, and every ten minutes.

    Args:
        client: the API server.
        node: the node's name.
        status: what is so now.
        report: told each problem once.
        labels: whether the Node object is labelled.
        topology: whether a ``NodeResourceTopology`` is kept; it belongs to the Node, and goes with
            it.
        facts: the node as plans need it, for a ConfigMap that goes with the Node, too; None: none
            is kept.
        period: seconds.
    """

    def __init__(  # noqa: PLR0913 - collaborators and switches
        self,
        client: KubeClient,
        node: str,
        status: Callable[[], Awaitable[NodeStatus]],
        report: Callable[[str], None],
        *,
        labels: bool,
        topology: bool,
        facts: Callable[[], Published] | None = None,
        period: float = PERIOD,
    ) -> None:
        self._client = client
        self._node = node
        self._status = status
        self._labels = labels
        self._topology = topology
        self._facts = facts
        self._period = period
        self._published: dict[str, tuple[Mapping[str, Any], float]] = {}
        self._backoff = Backoff(
            _FIRST_RETRY,
            _LONGEST_RETRY,
            KubernetesError,
            report=lambda problem: report(f"the node's status was not published: {problem}"),
        )

    @property
    def problem(self) -> str:
        """Why it could not be published; "" while it is."""
        return self._backoff.problem

    async def run(self) -> None:
        """Publish, for ever."""
        while True:
            async with self._backoff:
                await self._publish(await self._status())
            if not self._backoff.problem:
                await asyncio.sleep(self._period)

    async def _publish(self, status: NodeStatus) -> None:
        if self._labels:
            labels = node_labels(status)
            if self._is_due("labels", labels):
                await self._client.label_node(
                    self._node, {**dict.fromkeys(OPTION_LABELS), **labels}
                )
                self._published["labels"] = (labels, time.monotonic())
        if self._topology:
            topology = node_resource_topology(status, self._node)
            if self._is_due("topology", topology):
                owned = {
                    "name": self._node,
                    "ownerReferences": [await self._client.node_reference(self._node)],
                }
                await self._client.apply_topology({**topology, "metadata": owned})
                self._published["topology"] = (topology, time.monotonic())

        if self._facts is not None:
            facts = self._facts()
            content = {"machine": facts.machine, "node": facts.node}
            if self._is_due("facts", content):
                published = config_map(self._node, facts)
                owner = await self._client.node_reference(self._node)
                published["metadata"]["ownerReferences"] = [owner]
                await self._client.apply_published(published)
                self._published["facts"] = (content, time.monotonic())

    def _is_due(self, what: str, content: Mapping[str, Any]) -> bool:
        before, when = self._published.get(what, ({}, 0.0))
        return content != before or time.monotonic() - when > _AGAIN
