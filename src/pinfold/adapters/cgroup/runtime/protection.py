"""Memory that is left to pods whose containers a runtime makes: MemoryQoS.

A container has its protection from the runtime, which is told it when it is created (``unified``).
The kernel protects no more of it than of the cgroups above, which nobody else writes: the pod's,
and that of all pods, which has the sum (:mod:`pinfold.adapters.cgroup.sums`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pinfold.adapters.cgroup.files import CgroupGoneError
from pinfold.adapters.cgroup.limits import apply, v1_protection, v2_protection
from pinfold.adapters.cgroup.runtime.found_cpusets import cgroup_of
from pinfold.adapters.cgroup.sums import protect
from pinfold.core.memory.protection import MEMORY_HIGH
from pinfold.linux.cgroup_mounts import CgroupMount
from pinfold.ports.cgroups import Limits, Placement


class PodProtection:
    """Writes what pods have, and those above them.

    Args:
        version: of cgroups; 1 has no such files, which is told.
        mount: where the hierarchy is mounted.
        parent: OCI's ``cgroupsPath`` of the cgroup of a pod, by its uid.
    """

    def __init__(self, version: int, mount: CgroupMount, parent: Callable[[str], str]) -> None:
        self._version = version
        self._mount = mount
        self._parent = parent

    def put(self, pod_uid: str, placement: Placement) -> list[str]:
        """Give a pod its protection; tells what is not in force, its container's as well.

        Raises:
            CgroupError: the kernel refuses it.
        """
        whole = placement.pod_limits
        if self._version == 1:
            wished = [*v1_protection(whole), *v1_protection(placement.limits)]
            return list(dict.fromkeys(apply(wished, lambda _: None)))
        return self._write(pod_uid, whole)

    def forget(self, pod_uid: str) -> None:
        """Take away what a pod has had whose containers are gone; raises CgroupError."""
        if self._version == 2:
            with suppress(CgroupGoneError):
                self._write(pod_uid, Limits())

    def _write(self, pod_uid: str, limits: Limits) -> list[str]:
        pod = self._folder(pod_uid)
        # Nobody throttles a pod as a whole.
        wished = [one for one in v2_protection(limits) if one.file != MEMORY_HIGH]
        missing = apply(wished, lambda _: pod)
        return missing + protect(pod.parent, [pod.parent], self._mount.point, limits)

    def _folder(self, pod_uid: str) -> Path:
        return self._mount.folder(cgroup_of(self._parent(pod_uid)))
