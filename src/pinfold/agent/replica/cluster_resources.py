"""What belongs to no node, published from a file that an administrator keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from pinfold.cluster.classes.publishing import Publisher
from pinfold.config.classes_file import load_classes
from pinfold.config.values import ConfigError
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.published import CLUSTER_LABELS
from pinfold.linux.watched_files import looks_at
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import Kubernetes
from pinfold.retry.backoff import Backoff


def read_cluster_resources(file: Path) -> tuple[ComputeResource, ...]:
    """The compute resources of the cluster level that a file describes.

    Raises:
        ConfigError: it cannot be read, or has something else in it.
    """
    found = load_classes(str(file))
    for one in found.classes:
        raise ConfigError(
            f"{file}: ResourceClass {one.name}: only ComputeResources are published from here; "
            "create it in the cluster"
        )
    for resource in found.described:
        if resource.node_name:
            raise ConfigError(
                f"{file}: ComputeResource {resource.name}: spec.nodeName: has to be left out; what "
                "a node has its agent publishes"
            )
    return found.described


class ClusterResources:
    """Publishes what a file says, whenever it changes; for the replica that leads.

    A file that cannot be read changes nothing.

    Args:
        client: the API server.
        file: the file; its folder is watched.
        report: told each problem; "" when all is well again.
    """

    def __init__(self, client: Kubernetes, file: Path, report: Callable[[str], None]) -> None:
        self._client = client
        self._file = file
        self._report = report
        self._problem = ""

    async def run(self) -> None:
        """Publish, for ever; what an earlier lead has read is no longer known."""
        publisher = Publisher(self._client, "", CLUSTER_LABELS, report=self._report)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publisher.run())
            tasks.create_task(self._follow(publisher))

    async def _follow(self, publisher: Publisher) -> None:
        # A folder that cannot be watched is no reason for the leader to end.
        tries = Backoff(1.0, 60.0, PortError, report=self._report)
        while True:
            async with tries:
                await self._read(publisher)

    async def _read(self, publisher: Publisher) -> None:
        async with aclosing(looks_at([self._file])) as looks:
            async for _ in looks:
                problem = ""
                try:
                    publisher.want(await asyncio.to_thread(read_cluster_resources, self._file))
                except ConfigError as error:
                    problem = str(error)
                if problem != self._problem:
                    self._problem = problem
                    self._report(problem)
