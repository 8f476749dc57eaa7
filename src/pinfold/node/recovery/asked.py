"""What a pod's record asks for, where its containers have another number of CPUs than before."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from pinfold.core.moves.resize import resized
from pinfold.core.pod.pod import CPU, guaranteed_cpus
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.ports.records import PodRecord


def asking(
    pod: PodRecord, workload: Workload, container: str, cpus: int
) -> tuple[PodRecord, Workload]:
    """A pod that asks for so many CPUs for one of its containers, on record too."""
    after = resized(workload.pod, container, cpus)
    if after == workload.pod:
        return pod, workload
    asks = next(one for one in after.all_containers if one.name == container).limits[CPU]
    manifest = json.dumps(_with_cpus(json.loads(pod.manifest), container, asks))
    return replace(pod, manifest=manifest), replace(workload, pod=after)


def asking_for_its_claims(pod: PodRecord, workload: Workload) -> tuple[PodRecord, Workload]:
    """A pod that asks for what it has: a resize may have changed the one and not the other."""
    for container in workload.pod.all_containers if not pod.bubble else ():
        name, asks = container.name, guaranteed_cpus(workload.pod, container)
        claim = pod.assignments.get(name, CPUSet()) - pod.idle.get(name, CPUSet())
        if claim and asks and len(claim) != asks:
            pod, workload = asking(pod, workload, name, len(claim))
    return pod, workload


def _with_cpus(manifest: dict[str, Any], container: str, cpus: Quantity) -> dict[str, Any]:
    def asks(one: dict[str, Any]) -> dict[str, Any]:
        if one.get("name") != container:
            return one
        resources = {**one.get("resources", {})}
        for what in ("requests", "limits"):
            if what == "limits" or what in resources:
                resources[what] = {**(resources.get(what) or {}), "cpu": str(cpus)}
        return {**one, "resources": resources}

    spec = {**manifest["spec"]}
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [asks(one) for one in spec[kind]]
    return {**manifest, "spec": spec}
