"""Resources of containers in the runtime's record, and how they are changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import CriClient, CriError
from pinfold.core.pod.hugepages import HugePagesError, unit_name
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.nri import ContainerUpdate, Resources
from pinfold.ports.runtime import ContainerSpec

AT_ONCE: Final = 8
"""Calls at a time: the runtime starts a process for each."""

_UNREACHABLE: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "DATA_LOSS"})


class CriRecord:
    """Changes resources through ``UpdateContainerResources``.

    Fulfils :class:`pinfold.ports.nri.RuntimeRecord`; at most ``at_once`` calls at a time.
    """

    def __init__(self, client: CriClient, *, at_once: int = AT_ONCE) -> None:
        self._client = client
        self._at_once = at_once

    async def update(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        """See :meth:`pinfold.ports.nri.RuntimeRecord.update`."""
        gate = asyncio.Semaphore(self._at_once)

        async def one(update: ContainerUpdate) -> CriError | None:
            async with gate:
                try:
                    await self.update_resources(update.container_id, update.resources)
                except CriError as error:
                    return error
                return None

        problems = await asyncio.gather(*map(one, updates))
        failed = {
            update.container_id: problem
            for update, problem in zip(updates, problems, strict=True)
            if problem is not None
            and not (update.ignore_failure and problem.code not in _UNREACHABLE)
        }
        for problem in failed.values():
            if problem.code in _UNREACHABLE or len(failed) == len(updates):
                raise problem
        return list(failed)

    async def update_resources(self, container_id: str, resources: Resources) -> None:
        """Change one container; what is None or "" stays as it is; raises CriError."""
        request = pb.UpdateContainerResourcesRequest(
            container_id=container_id, linux=to_wire(resources)
        )
        answer = pb.UpdateContainerResourcesResponse
        try:
            await self._client.call("UpdateContainerResources", request, answer)
        except CriError as error:
            raise CriError(f"container {container_id}: {error}", code=error.code) from None


def to_wire(resources: Resources) -> pb.LinuxContainerResources:
    """Resources as the CRI has them, where 0 and "" mean that nothing is said."""
    return pb.LinuxContainerResources(
        cpu_period=resources.cpu_period or 0,
        cpu_quota=resources.cpu_quota or 0,
        cpu_shares=resources.cpu_shares or 0,
        memory_limit_in_bytes=resources.memory or 0,
        cpuset_cpus=resources.cpus,
        cpuset_mems=resources.mems,
        hugepage_limits=[
            pb.HugepageLimit(page_size=size, limit=limit)
            for size, limit in sorted(resources.hugepages.items())
        ],
        unified=dict(resources.unified),
    )


def from_wire(wire: pb.LinuxContainerResources) -> Resources:
    """What a runtime has recorded."""
    return Resources(
        cpu_shares=wire.cpu_shares or None,
        cpu_quota=wire.cpu_quota or None,
        cpu_period=wire.cpu_period or None,
        cpus=wire.cpuset_cpus,
        mems=wire.cpuset_mems,
        memory=wire.memory_limit_in_bytes or None,
        hugepages={limit.page_size: limit.limit for limit in wire.hugepage_limits},
        unified=dict(wire.unified),
    )


def resources_of(spec: ContainerSpec, *, protects_memory: bool = False) -> Resources:
    """What a container is created with, so that it never runs anywhere else.

    Its memory is protected, as a kubelet does, where there are files for that (cgroup v2).
    """
    placement = spec.placement
    if placement is None:
        return Resources()
    limits = placement.limits
    return Resources(
        cpu_shares=limits.cpu_shares,
        cpu_quota=limits.cpu_quota,
        cpu_period=limits.cpu_period,
        cpus="" if placement.cpus is None else str(placement.cpus),
        mems="" if placement.mems is None else str(placement.mems),
        memory=limits.memory,
        hugepages={page_size_name(size): limit for size, limit in limits.hugepages.items()},
        unified=limits.protection.unified if protects_memory else {},
    )


def page_size_name(size: int) -> str:
    """A page size as the kernel's cgroup files and the CRI name it, such as ``2MB``.

    Raises:
        RuntimeFailedError: no kernel has pages of this size.
    """
    if size >= 1024:
        with suppress(HugePagesError):
            return unit_name(size)
    raise RuntimeFailedError(f"there are no hugepages of {size} bytes")
