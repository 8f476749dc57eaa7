"""What the books need of the containers of a node, whoever starts and ends them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from pinfold.core.pod.pod import Container
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.exits import Exits
from pinfold.node.seen_containers import SeenContainers
from pinfold.node.view import Whereabouts
from pinfold.ports.cgroups import Cgroups, Placement
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.logs import PodLogs
from pinfold.ports.runtime import ContainerStatus
from pinfold.ports.volumes import Volumes

HELD: Final = "held "
"""What the id of a container begins with that nobody can follow: its cgroup has processes, and the
runtime knows nothing of them."""


def may_live(cgroups: Cgroups, status: ContainerStatus) -> bool:
    """Whether a container may have a process; of one that is held only its cgroup tells."""
    if status.id.startswith(HELD):
        return True
    try:
        return status.pid is not None and cgroups.lives(status.pid)
    except CgroupError:
        return True  # nobody knows


class NodeContainers(Protocol):
    """The containers of the pods that are here, and the cgroups that they are in.

    Attributes:
        logs: keeps what they write; None where that is not kept here.
        volumes: makes the volumes that end with their pods; None where nobody does here.
        exits: those that have exited, and those who wait for it.
        seen: as they were seen last.
    """

    logs: PodLogs | None
    volumes: Volumes | None
    exits: Exits
    seen: SeenContainers

    @property
    def cgroups(self) -> Cgroups:
        """The port."""

    async def statuses(self) -> Sequence[ContainerStatus]:
        """Every container that is not removed.

        Raises:
            PortError: nobody answers.
        """

    def placement(self, pod: AdmittedPod, container: Container, where: Whereabouts) -> Placement:
        """What the kernel is told about a container that is to run there."""

    async def adopt(self, status: ContainerStatus, placement: Placement) -> None:
        """See a container that runs placed.

        Raises:
            PortError: it is not.
        """

    def still(self, keys: Collection[ContainerKey] | None) -> AbstractAsyncContextManager[None]:
        """Entered when nobody writes an older cpuset of these any more; then CPUs can be taken.

        A runtime writes what it was told some time after it was told.  The change of the books in
        which they are taken has to begin at once.  ``keys`` None: of those who share the pool.
        """

    async def end(self, key: ContainerKey) -> None:
        """End what is left of a container's processes, strays too, and remove its cgroup.

        Raises:
            CgroupError: something is still there.
        """
