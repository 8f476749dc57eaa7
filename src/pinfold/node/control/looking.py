"""What controllers are shown: the books, and what was observed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.books import Books
from pinfold.node.observation.observer import Observation
from pinfold.ports.cgroups import Partition
from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerState

_FRESH: Final = 3.0
"""Periods of the observation for which what was read last says what is so now."""


def look(books: Books, observation: Observation | None = None) -> Seen:
    """One look at a node; what was not read for long is not known."""
    now, view = asyncio.get_running_loop().time(), books.view
    containers, busy = {}, set()
    for key, (pod, container) in view.pods.containers().items():
        owner = Owner(key.pod_uid, key.name)
        if key in books.containers.seen.busy or pod.is_ending:
            busy.add(owner)
        status = books.statuses.get(key)
        if status is None or status.state is not ContainerState.RUNNING:
            continue
        where = view.where(pod, container)
        containers[owner] = SeenContainer(
            where.cpus or CPUSet(),
            pod.workload.pod.qos,
            _load(observation, key, now),
            pod.workload.pod.annotations,
            mixed=where.mixed,
            partition=where.is_exclusive
            and view.settings.partition_of(pod.workload.pod.annotations, container.name)
            is not Partition.MEMBER,
            borrows=where.idle,
            in_bubble=bool(pod.record.bubble),
        )
        if pod.is_load_driven(container):
            containers[owner] = _by_load(containers[owner], pod, owner, books)
    policy = view.node.cpu_policy
    return Seen(
        now,
        view.machine - view.state.offline,
        view.pool,
        _idle(observation, now),
        containers,
        frozenset(busy) | view.moving,
        view.lent,
        topology=None if policy is None else policy.topology,
        cap=books.lease.quota,
        wait_source="" if observation is None else observation.wait_source,
        parked=view.parked,
        period=0.0 if observation is None else observation.period,
    )


def _by_load(seen: SeenContainer, pod: AdmittedPod, owner: Owner, books: Books) -> SeenContainer:
    """The same with what is known of a container that has its CPUs by load."""
    observers, view = books.observers, books.view
    known = pod.record.load_driven[owner.container]
    moves = owner in view.moving
    return replace(
        seen,
        load_driven=view.state.load_driven[owner.pod_uid].counts().get(owner.container, 0),
        promoted_with=known.used if seen.cpus else None,
        # Who moves is about to begin anew.
        settled=0.0 if moves else known.seconds(observers.uptime(), observers.boot),
    )


def _load(observation: Observation | None, key: ContainerKey, now: float) -> Load | None:
    history = None if observation is None else observation.containers.get(key)
    newest = None if history is None else history.newest
    if observation is None or newest is None or newest.at < now - _FRESH * observation.period:
        return None
    return observation.load(key)


def _idle(observation: Observation | None, now: float) -> Mapping[int, float]:
    if observation is None:
        return {}
    oldest = now - _FRESH * observation.period
    return {
        cpu: share
        for cpu, share in observation.idle_shares().items()
        if (newest := observation.idle[cpu].newest) is not None and newest.at >= oldest
    }
