"""From a restored state to a manager that goes on where the last one left off."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.active_pod import ActivePod
from pinfold.node.pods.manager import Manager
from pinfold.node.recovery.recovery import Restored
from pinfold.node.recovery.survivors import HELD
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.records import Batch, HistoryEntry, PodPhase
from pinfold.ports.runtime import ContainerState, ContainerStatus, MendingRuntime
from pinfold.ports.volumes import remove_leftovers


async def load(manager: Manager, restored: Restored) -> None:
    """Begin with the restored state, written down.

    Raises:
        PortError: the record cannot be written.
    """
    now = manager.observers.clock()
    notes = tuple(
        HistoryEntry(now, "repaired", None, None, json.dumps({"start": text}))
        for text in restored.report
    )
    changed = [pod for pod, _ in restored.active.values()] if restored.report else []
    await manager.store.commit(
        Batch(
            manager.node_record(restored.state),
            (*changed, *restored.failed.values()),
            history=notes,
            above=restored.above,
        )
    )
    for text in restored.report:
        manager.observers.report(None, text)
    manager.state = restored.state
    manager.pods.ended = {**restored.ended, **restored.failed}
    for uid, (record, workload) in restored.active.items():
        manager.pods.active[uid] = ActivePod(workload, record)


async def take_over(manager: Manager, restored: Restored) -> None:
    """Make record and kernel agree, adopt what runs, end what nobody knows, let pods go on.

    Raises:
        PortError: no cgroup can be written, or the record cannot.
    """
    if isinstance(manager.containers.runtime, MendingRuntime):
        restored.report += await manager.containers.runtime.mended()
    await load(manager, restored)
    # Who runs on CPUs that the record has given to others is gone before those have them.
    await manager.containers.cgroups.open(CPUSet())
    newest = await _end_strangers(manager)
    free = await _free(manager)
    await manager.containers.cgroups.open(free)
    await _adopt(manager, newest)
    await _hold(manager, restored.held)
    if free != manager.pool:
        await manager.grow_pool()
    if manager.containers.volumes is not None:
        for problem in await remove_leftovers(manager.containers.volumes, manager.pods.active):
            manager.observers.report(None, problem)
    if manager.containers.logs is not None:
        for problem in await manager.containers.logs.retain(manager.pods.records()):
            manager.observers.report(None, problem)
    await manager.announce()
    for pod in list(manager.pods.active.values()):
        if pod.record.phase is PodPhase.TERMINATING:
            pod.ending = True
            manager.end_in_background(pod)
        else:
            manager.begin(pod)


async def _hold(manager: Manager, held: Iterable[ContainerKey]) -> None:
    """Take containers that the runtime does not know for running ones, as their cgroups show."""
    containers = manager.pods.containers()
    for key in held:
        if key in containers:
            pod, container = containers[key]
            attempt = pod.record.restarts.get(container.name, 0)
            pod.statuses[container.name] = ContainerStatus(
                f"{HELD}{key}", key, attempt, ContainerState.RUNNING
            )
            manager.observers.report(
                pod.name, f"container {container.name} runs, and its runtime knows nothing of it"
            )
            await _place(manager, pod, container)


async def _end_strangers(manager: Manager) -> list[ContainerStatus]:
    """End what belongs to no pod; returns the containers of the pods, the latest attempt of each.

    Raises:
        PortError: something of it is left.
    """
    containers = manager.pods.containers()
    ours = []
    for attempts in _attempts(await manager.containers.runtime.containers()).values():
        stale, newest = attempts, attempts[-1]
        if newest.key in containers:
            stale = attempts[:-1]
            ours.append(newest)
        else:
            await manager.containers.end(newest.key)
        for status in stale:
            await manager.containers.runtime.remove(status.id)
    observed = await manager.containers.cgroups.observe()
    for key in observed.containers.keys() - containers.keys():
        await manager.containers.end(key)
    return ours


async def _free(manager: Manager) -> CPUSet:
    """The CPUs of the pool without those that containers have to leave first."""
    observed = await manager.containers.cgroups.observe()
    owned = (
        one.configured or one.effective for one in observed.containers.values() if one.exclusive
    )
    return manager.pool - CPUSet(cpu for cpus in owned for cpu in cpus) or manager.pool


async def _adopt(manager: Manager, newest: Iterable[ContainerStatus]) -> None:
    """Attach containers to their pods and see them placed."""
    containers = manager.pods.containers()
    for status in newest:
        pod, container = containers[status.key]
        pod.statuses[container.name] = status
        if status.state is ContainerState.RUNNING:
            await _place(manager, pod, container)


async def _place(manager: Manager, pod: ActivePod, container: Container) -> None:
    placement = manager.offline_owners.placement(pod, container)
    try:
        await manager.containers.adopt(pod.statuses[container.name], placement)
    except PortError as error:
        # It may have ended a moment ago; the reconciliation looks again.
        manager.observers.report(pod.name, str(error))


def _attempts(statuses: Sequence[ContainerStatus]) -> dict[ContainerKey, list[ContainerStatus]]:
    """Containers by key, each with its attempts in order."""
    by_key: dict[ContainerKey, list[ContainerStatus]] = {}
    for status in statuses:
        by_key.setdefault(status.key, []).append(status)
    for attempts in by_key.values():
        attempts.sort(key=lambda status: status.attempt)
    return by_key
