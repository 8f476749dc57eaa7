"""What is told to others about CPUs: the mirrored state file, and the applications' files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from pinfold.core.cpuset import CPUSet
from pinfold.node.active_pod import ActivePod
from pinfold.node.ports import PodFiles, PortError
from pinfold.state.ledger import Ledger

VERSION = 1


class Announcements:
    """Tells others; a failure is reported, tried again the next time, and stops nothing.

    Args:
        files: what applications read about their CPUs.
        mirror: writes the ledger in the kubelet's layout; raises PortError.
        report: takes a problem for the operator (pod as ``namespace/name`` or None).
    """

    def __init__(
        self,
        files: PodFiles,
        mirror: Callable[[Ledger], None],
        report: Callable[[str | None, str], None],
    ) -> None:
        self._files = files
        self._write_mirror = mirror
        self._report = report
        self._mirrored: Ledger | None = None

    def mirror(self, ledger: Ledger) -> None:
        """Write the kubelet's state file, if the ledger has changed."""
        if ledger == self._mirrored:
            return
        try:
            self._write_mirror(ledger)
        except PortError as error:
            self._report(None, f"the mirrored state file was not written: {error}")
        else:
            self._mirrored = ledger

    async def publish(self, pods: Iterable[ActivePod], ledger: Ledger, pool: CPUSet) -> None:
        """Tell applications their CPUs; files whose content stays are not touched."""
        for pod in pods:
            try:
                await self._files.publish(pod.uid, _document(pod, ledger, pool))
            except PortError as error:
                self._report(pod.name, str(error))

    async def retract(self, pod: ActivePod) -> None:
        """Remove a pod's file."""
        try:
            await self._files.retract(pod.uid)
        except PortError as error:
            self._report(pod.name, str(error))


def _document(pod: ActivePod, ledger: Ledger, pool: CPUSet) -> str:
    containers = {}
    for container in pod.workload.pod.all_containers:
        cpus = pod.exclusive_cpus(ledger, container)
        containers[container.name] = {
            "cpus": str(pool if cpus is None else cpus),
            "exclusive": cpus is not None,
        }
    document = {"version": VERSION, "pod": pod.name, "uid": pod.uid, "containers": containers}
    return json.dumps(document)
