"""From a restored state to a manager that goes on where the last one left off."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from pinfold.node.active_pod import ActivePod
from pinfold.node.manager import Manager
from pinfold.node.port_errors import ContainerKey, PortError
from pinfold.node.ports import ContainerState, ContainerStatus, MendingRuntime
from pinfold.node.records import Batch, HistoryEntry, PodPhase
from pinfold.node.recovery import Restored
from pinfold.node.survivors import HELD
from pinfold.node.volume_ports import remove_leftovers


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
    await manager.containers.cgroups.open(manager.pool)
    _hold(manager, restored.held)
    await _adopt(manager, _attempts(await manager.containers.runtime.containers()))
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


def _hold(manager: Manager, held: Iterable[ContainerKey]) -> None:
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


async def _adopt(manager: Manager, known: Mapping[ContainerKey, list[ContainerStatus]]) -> None:
    """Attach containers to their pods and see them placed; end those that belong to none."""
    containers = manager.pods.containers()
    for attempts in known.values():
        newest = attempts[-1]
        owner = containers.get(newest.key)
        stale = attempts if owner is None else attempts[:-1]
        if owner is None:
            await manager.containers.end(newest.key)
        for status in stale:
            await manager.containers.runtime.remove(status.id)
        if owner is None:
            continue
        pod, container = owner
        pod.statuses[container.name] = newest
        if newest.state is ContainerState.RUNNING:
            placement = manager.offline_owners.placement(pod, container)
            try:
                await manager.containers.adopt(newest, placement)
            except PortError as error:
                # It may have ended a moment ago; the reconciliation looks again.
                manager.observers.report(pod.name, str(error))
    observed = await manager.containers.cgroups.observe()
    for key in observed.containers.keys() - containers.keys():
        await manager.containers.end(key)


def _attempts(statuses: Sequence[ContainerStatus]) -> dict[ContainerKey, list[ContainerStatus]]:
    """Containers by key, each with its attempts in order."""
    by_key: dict[ContainerKey, list[ContainerStatus]] = {}
    for status in statuses:
        by_key.setdefault(status.key, []).append(status)
    for attempts in by_key.values():
        attempts.sort(key=lambda status: status.attempt)
    return by_key
