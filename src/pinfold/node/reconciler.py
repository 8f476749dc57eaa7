"""Does the kernel agree?  What it has is compared with the record, and repaired.

The kubelet compares its record with its own memory of what it wrote; a cpuset that was changed
behind its back stays so.  Here nothing is taken on trust: every cpuset is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pinfold.core.cpuset import CPUSet
from pinfold.core.pod import Container
from pinfold.node.active_pod import ActivePod
from pinfold.node.cgroup_ports import ObservedCgroups, ObservedContainer
from pinfold.node.manager import Manager
from pinfold.node.port_errors import ContainerKey, PortError
from pinfold.node.ports import ContainerState
from pinfold.node.records import Batch, HistoryEntry


@dataclass(frozen=True, slots=True)
class Drift:
    """One place where the kernel has something else than the record.

    ``key`` is None for the shared pool; ``found`` is the kernel's side, in words.
    """

    key: ContainerKey | None
    expected: str
    found: str
    repaired: bool = False
    problem: str = ""


def find_drift(
    observed: ObservedCgroups,
    pool: CPUSet,
    expected: Mapping[ContainerKey, CPUSet | None],
    offline: CPUSet,
) -> Iterator[Drift]:
    """Compare; pure.

    Args:
        observed: the kernel's side.
        pool: the CPUs of the shared pool.
        expected: the running containers, each with its own CPUs or None for the shared pool.
        offline: CPUs that are missing in every cpuset by nature.
    """
    if pool and observed.shared != pool:
        yield Drift(None, str(pool), str(observed.shared))
    elif pool and observed.shared_configured - offline != pool - offline:
        yield Drift(None, str(pool), f"configured {observed.shared_configured}")
    for key, cpus in expected.items():
        container = observed.containers.get(key)
        wanted = "the shared pool" if cpus is None else str(cpus)
        if container is None:
            yield Drift(key, wanted, "no cgroup")
        elif found := _deviation(container, pool if cpus is None else cpus, cpus, offline):
            yield Drift(key, wanted, found)
    for key in observed.containers.keys() - expected.keys():
        if not observed.containers[key].populated:
            continue
        yield Drift(key, "nothing", f"processes on {observed.containers[key].effective}")


def _deviation(
    container: ObservedContainer, cpus: CPUSet, own: CPUSet | None, offline: CPUSet
) -> str:
    if container.exclusive != (own is not None):
        return "in the exclusive part" if container.exclusive else "in the shared pool"
    if not container.populated:
        return "no process in its cgroup"
    if container.effective != cpus - offline:
        return f"effective {container.effective}"
    if own is not None and (container.configured or own) - offline != own - offline:
        return f"configured {container.configured}"
    return ""


async def reconcile(manager: Manager) -> list[Drift]:
    """Look once, repair what drifted, write it into the history.

    Returns:
        What was found; each says whether it was repaired.

    Raises:
        CgroupError: the kernel's side cannot be read.
    """
    began = manager.observers.clock()
    async with manager.lock:
        observed = await manager.containers.cgroups.observe()
        # Asked after the cgroups were read: what has ended meanwhile is no drift.
        alive = {
            status.id
            for status in await manager.containers.runtime.containers()
            if status.state is ContainerState.RUNNING
        }
        every = manager.pods.containers()
        running = {
            key: (pod, container)
            for key, (pod, container) in every.items()
            if (status := pod.statuses.get(container.name)) is not None
            and status.id in alive
            and not pod.lock.locked()
        }
        ledger = manager.state.ledger
        expected = {
            key: pod.exclusive_cpus(ledger, container) for key, (pod, container) in running.items()
        }
        busy = every.keys() - running.keys()
        found = [
            drift
            for drift in find_drift(observed, manager.pool, expected, manager.state.offline)
            if drift.key not in busy
        ]
        repaired = [await _repair(manager, drift, running) for drift in found]
        await _write_down(manager, repaired)
    manager.counters.count_reconcile(manager.observers.clock() - began, repaired)
    manager.mirror()
    return repaired


async def _repair(
    manager: Manager, drift: Drift, running: Mapping[ContainerKey, tuple[ActivePod, Container]]
) -> Drift:
    cgroups = manager.containers.cgroups
    try:
        if drift.key is None:
            await manager.apply_pool()
        elif drift.key in running:
            pod, container = running[drift.key]
            cpus = pod.exclusive_cpus(manager.state.ledger, container)
            await cgroups.place(drift.key, manager.containers.placement(pod, container, cpus))
            pid = pod.statuses[container.name].pid
            if pid is not None:
                await cgroups.enter(drift.key, pid)
        else:
            await manager.containers.end(drift.key)
    except PortError as error:
        return Drift(drift.key, drift.expected, drift.found, repaired=False, problem=str(error))
    return Drift(drift.key, drift.expected, drift.found, repaired=True)


async def _write_down(manager: Manager, drifts: list[Drift]) -> None:
    if not drifts:
        return
    now = manager.observers.clock()
    entries = []
    for drift in drifts:
        pod = None if drift.key is None else manager.pods.active.get(drift.key.pod_uid)
        document = {
            "container": None if drift.key is None else drift.key.name,
            "expected": drift.expected,
            "found": drift.found,
            "repaired": drift.repaired,
            "problem": drift.problem,
        }
        uid = None if drift.key is None else drift.key.pod_uid
        name = None if pod is None else pod.name
        kind = "repaired" if drift.repaired else "drifted"
        entries.append(HistoryEntry(now, kind, uid, name, json.dumps(document)))
        what = "the shared pool" if drift.key is None else f"container {drift.key.name}"
        outcome = "repaired" if drift.repaired else f"not repaired: {drift.problem}"
        manager.observers.report(
            name, f"{what} should have {drift.expected}, has {drift.found}; {outcome}"
        )
    try:
        await manager.store.commit(Batch(history=tuple(entries)))
    except PortError as error:
        manager.observers.report(None, str(error))
