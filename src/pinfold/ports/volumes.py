"""What a node needs of the volumes that live and die with a pod: ``emptyDir``, ``downwardAPI``.

An adapter makes them real: a folder, a tmpfs, or a hugetlbfs mount.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from msgspec.structs import replace

from pinfold.core.pod.manifest.assigned_fields import Values, nothing_assigned
from pinfold.core.pod.workload import DownwardAPI, EmptyDir, HostPath
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import PortError
from pinfold.ports.runtime import ContainerSpec

ANY_NODE: Final = CPUSet()
"""The NUMA nodes of a volume that is bound to none."""

NOWHERE_BOUND: Final[Mapping[str, CPUSet]] = MappingProxyType({})
"""Volumes by name, of which none is bound to NUMA nodes."""


class VolumeError(PortError):
    """A volume could not be made or removed; removing it can be tried again."""


class Volumes(Protocol):
    """Makes and removes the volumes of pods that live and die with them."""

    async def prepare(
        self, pod_uid: str, name: str, source: EmptyDir, nodes: CPUSet = ANY_NODE
    ) -> str:
        """Make a volume, empty, unless the pod has it already; the path of it on the host.

        What is in memory is on the NUMA nodes ``nodes``, as :meth:`bind` says.

        Raises:
            VolumeError: it cannot be made here; nothing of it is left.
        """

    def project(self, pod_uid: str, name: str, source: DownwardAPI, values: Values) -> str:
        """Make a volume of the downward API, or bring its files to ``values``, all at once.

        Returns:
            The path of it on the host.

        Raises:
            VolumeError: it cannot be; it has the files that it had.
        """

    def bind(self, pod_uid: str, name: str, nodes: CPUSet) -> None:
        """Have files that are made in a volume in memory from now on be on these NUMA nodes.

        With none, and where the kernel cannot do it, each page is where it is first touched.  A
        volume that is not in memory, or not there, is left alone.

        Raises:
            VolumeError: the kernel refuses.
        """

    async def remove(self, pod_uid: str) -> None:
        """Remove all volumes of a pod, with what is in them; none is no error.

        Raises:
            VolumeError: something is left; it can be tried again.
        """

    async def pods(self) -> Collection[str]:
        """The uids of the pods of which there is anything, also what a crash has left.

        Raises:
            VolumeError: it cannot be found out.
        """


async def with_volumes(
    spec: ContainerSpec,
    volumes: Volumes,
    values: Values = nothing_assigned,
    *,
    mounted: bool = True,
    nodes: Mapping[str, CPUSet] = NOWHERE_BOUND,
) -> ContainerSpec:
    """A container's specification with its volumes of ``emptyDir`` and ``downwardAPI`` made.

    Each is a path of the host from then on, for a runtime that mounts it, and the process is told
    where it sees it, as ``PINFOLD_VOLUME_<NAME>`` (in upper case, ``-`` as ``_``).

    Args:
        spec: the container's.
        volumes: what makes them.
        values: what is assigned to containers of the pod.
        mounted: whether the process sees them at their mount paths (the first of several), or at
            their paths on the host, since nothing is mounted for it.
        nodes: the NUMA nodes of volumes in memory, by name; others are on any.

    Raises:
        VolumeError: one cannot be made.
    """
    mounts = []
    env = dict(spec.env)
    for mount in spec.process.volume_mounts:
        if mount.host_path is not None:
            mounts.append(mount)
            continue
        try:
            if mount.downward is not None:
                path = volumes.project(spec.key.pod_uid, mount.volume, mount.downward, values)
            else:
                source = replace(mount.empty_dir, for_users=False) if mounted else mount.empty_dir
                bound = nodes.get(mount.volume, ANY_NODE)
                path = await volumes.prepare(spec.key.pod_uid, mount.volume, source, bound)
        except VolumeError as error:
            raise VolumeError(f"volume {mount.volume}: {error.problem}", error.remedy) from None
        mounts.append(replace(mount, host_path=HostPath(path)))
        variable = f"PINFOLD_VOLUME_{mount.volume.upper().replace('-', '_')}"
        if variable not in spec.process.env:
            env.setdefault(variable, mount.mount_path if mounted else path)
    process = replace(spec.process, volume_mounts=tuple(mounts))
    return replace(spec, process=process, env=env)


async def remove_leftovers(volumes: Volumes, living: Collection[str]) -> list[str]:
    """Remove the volumes of pods that are no more; what could not be removed, as texts."""
    problems = []
    try:
        found = await volumes.pods()
    except VolumeError as error:
        return [str(error)]
    for uid in found:
        if uid not in living:
            try:
                await volumes.remove(uid)
            except VolumeError as error:
                problems.append(str(error))
    return problems
