"""A node as it was: what its agent tells now, gone back from by the entries of its history.

What a container had is what the newest entry until then says of it, else what the first entry after
says that it had before, else what it has now.  What is on no record is left out, and said so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from msgspec import UNSET, Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.api import HistoryEntry
from pinfold.documents.live.event import Whole
from pinfold.documents.machine import Machine
from pinfold.documents.records import Bubble
from pinfold.documents.status import Agent, CgroupTree, Container, Pod, Status
from pinfold.views.node import ENDED, POD
from pinfold.views.recorded import Had, Life, lives_of


class Past(Struct, frozen=True):
    """A node at a moment that is over, and what of it is on no record, in words."""

    whole: Whole
    notes: tuple[str, ...]


def past(now: Whole, entries: Iterable[HistoryEntry], at: float) -> Past:
    """The node as it was.

    Args:
        now: what the agent says now.
        entries: those of the history (``GET /v1/history``), in any order; how far back they go is
            how far back this does.
        at: the moment, in seconds since the epoch; an entry of that moment has happened.
    """
    return _Moment(now, sorted(entries, key=lambda entry: entry.number), at).past()


class _Moment:
    """A moment that is over; ``unknown`` are pods of which it is not known what they had."""

    def __init__(self, now: Whole, entries: Sequence[HistoryEntry], at: float) -> None:
        self.now, self.entries, self.at = now, entries, at
        self.lives, self.unread = lives_of(entries)
        self.siblings = _siblings(now.machine)
        self.unknown: dict[str, None] = {}
        self.of_init: dict[str, None] = {}

    def past(self) -> Past:
        there = [pod for pod in map(self._as_then, self.now.status.pods) if pod is not None]
        pods = sorted((*there, *self._gone()), key=lambda pod: pod.admitted_at)
        status = _with_pools(self.now.status, tuple(self._apart(pods)))
        zones = [replace(zone, resources={}) for zone in self.now.node.zones]
        node = replace(self.now.node, zones=zones)
        return Past(replace(self.now, status=status, node=node), tuple(self._notes()))

    def _notes(self) -> Iterator[str]:
        agent, later = self.now.status.agent, [one for one in self.entries if one.at > self.at]
        if self.entries and self.at < self.entries[0].at and self.entries[0].number > 1:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.entries[0].at))
            yield f"the entries begin at {since}: what was before is told as far as they say it"
        if self.unknown:
            yield f"on no record is what these had: {', '.join(self.unknown)}"
        if self.of_init:
            yield (
                "when init containers gave their CPUs back is on no record: "
                f"they are drawn as done: {', '.join(self.of_init)}"
            )
        if self.unread:
            yield f"entries that cannot be read: {self.unread}"
        if agent.nri and later:
            yield "containers that ended before their pod are drawn until its end"
        if agent.started_at > self.at:
            yield "the agent has started again since: its settings and the machine are those of now"
        if self.now.status.offline or any(e.kind in {"displaced", "returned"} for e in later):
            yield "which CPUs were offline is on no record: those of now are drawn"
        if not _gives_all(self.now.status):
            yield "which CPUs were allocatable is on no record: those of now are told"
        if agent.control and agent.control.lending:
            yield "what was lent is on no record"

    def _as_then(self, pod: Pod) -> Pod | None:
        """A pod that there is, as it was; None where it was not there yet."""
        if pod.admitted_at > self.at:
            return None
        life = self.lives.get(pod.uid, [Life()])[-1]
        if pod.phase not in ENDED:
            if life.changes_after(self.at):
                return self._before(pod, life)
            self._tell_of_init(pod, life)
            return replace(pod, containers=tuple(map(_running, pod.containers)))
        if life.end is None or life.end.at <= self.at:
            return pod
        if life.decided(self.at) is None:
            self.unknown[f"{pod.namespace}/{pod.name}"] = None
        return self._before(replace(pod, phase="Running", reason=None, message=None), life)

    def _tell_of_init(self, pod: Pod, life: Life) -> None:
        """A pod is told as it is now, and its init containers may be done since."""
        for one in pod.containers:
            if one.kind == "init" and not one.exclusive:
                had = life.had(pod.uid, one.name, self.at)
                if had is not None and had.cpus:
                    self.of_init[f"{pod.namespace}/{pod.name} {one.name}"] = None

    def _gone(self) -> Iterator[Pod]:
        """The pods of which the agent tells nothing any more."""
        there = {pod.uid for pod in self.now.status.pods}
        lives = ((uid, life) for uid, known in self.lives.items() for life in known)
        for uid, life in lives:
            if life.end is None or life.end.at <= self.at:
                continue
            if uid in there and life is self.lives[uid][-1]:
                continue
            told = life.decided(self.at)
            if told is not None and told.admitted:
                shape = Pod(
                    namespace=told.namespace,
                    name=told.name,
                    uid=uid,
                    qos=told.qos,
                    phase="Running",
                    reason=None,
                    message=None,
                    source="",
                    admitted_at=life.entries[0].at,
                    containers=tuple(
                        Container(
                            name=one.name,
                            kind=one.kind or "container",
                            cpus="",
                            exclusive=False,
                            numa_nodes=(),
                            memory=one.memory,
                            devices=one.devices,
                            state="RUNNING",
                            pid=None,
                            restarts=0,
                            exit_code=None,
                        )
                        for one in told.containers
                    ),
                )
                yield self._before(shape, life)
            elif not life.is_complete:
                self.unknown[life.end.pod or uid] = None

    def _before(self, pod: Pod, life: Life) -> Pod:
        """A pod that ran then, with what it had."""
        then = (self._container(pod, one, life) for one in pod.containers)
        containers = tuple(one for one in then if one is not None)
        had, told = life.had(pod.uid, None, self.at), life.decided(self.at)
        bubble = pod.bubble or (told.bubble if told else UNSET)
        if had is None or not bubble:
            return replace(pod, containers=containers)
        own = CPUSet.union_of(CPUSet.parse(one.cpus) for one in containers if one.exclusive)
        pool = str(had.cpus - own)
        return replace(
            pod,
            bubble=Bubble(cpus=str(had.cpus), pool=pool, memory=bubble.memory),
            containers=tuple(
                replace(one, isolation="container")
                if one.exclusive
                else replace(one, isolation=POD, cpus=pool)
                for one in containers
            ),
        )

    def _container(self, pod: Pod, now: Container, life: Life) -> Container | None:
        had = life.had(pod.uid, now.name, self.at)
        if now.kind == "init" and had is not None and had.cpus:
            # When it was done, and gave them back, is not told.
            self.of_init[f"{pod.namespace}/{pod.name} {now.name}"] = None
            had = Had(CPUSet())
        if had is None and now.cpus and not life.names(now.name):
            return _running(now)
        if had is None and life.decided(self.at) is not None:
            return None  # one of a kubelet's pod, which came later
        had = had or Had(CPUSet())
        isolated = bool(now.idle) if had.idle is None else had.idle
        return replace(
            _running(now),
            cpus=str(had.cpus),
            exclusive=bool(had.cpus),
            idle=str(self._beside(had.cpus)) if isolated and had.cpus else UNSET,
        )

    def _beside(self, cpus: CPUSet) -> CPUSet:
        """The other threads of their cores."""
        return CPUSet.from_mask(reduce(or_, (self.siblings.get(cpu, 0) for cpu in cpus), 0)) - cpus

    def _apart(self, pods: Iterable[Pod]) -> Iterator[Pod]:
        """The pods with no CPU in the hands of two: what two are said to have is the first's."""
        taken = CPUSet()
        for pod in pods:
            if _owned(pod) & taken:
                self.unknown[f"{pod.namespace}/{pod.name}"] = None
                without = (
                    replace(one, cpus="", exclusive=False, idle=UNSET) for one in pod.containers
                )
                yield replace(pod, containers=tuple(without), bubble=UNSET)
            else:
                taken |= _owned(pod)
                yield pod


def _running(container: Container) -> Container:
    """A container without what no record tells of it at another moment."""
    return replace(
        container,
        place="own",
        state="RUNNING",
        restarts=0,
        exit_code=None,
        pid=None,
        ran_shared_seconds=None,
        lent=UNSET,
        offline="",
        load=UNSET,
    )


def _owned(pod: Pod) -> CPUSet:
    """What a pod keeps from all others, the siblings that stay idle among it."""
    own = [c.cpus for c in pod.containers if c.exclusive]
    own += [c.idle for c in pod.containers if c.idle]
    own += [pod.bubble.cpus] if pod.bubble else []
    return CPUSet.union_of(map(CPUSet.parse, own))


def _with_pools(now: Status, pods: Sequence[Pod]) -> Status:
    """The status with these pods: what nobody has is shared."""
    were = CPUSet.union_of(_owned(pod) for pod in now.pods)
    owned = CPUSet.union_of(map(_owned, pods))
    idle_now, idle = (_idle(one) for one in (now.pods, pods))
    shared_now, pool_now = CPUSet.parse(now.shared), CPUSet.parse(now.pool)
    shared = (shared_now | were) - owned
    kept_out = shared_now - pool_now or CPUSet.parse(now.reserved)
    pool = str(shared - kept_out or shared)
    return Status(
        agent=_then(now.agent),
        config=now.config,
        pods=tuple(
            pod
            if pod.phase in ENDED
            else replace(pod, containers=tuple(_on_pool(one, pool) for one in pod.containers))
            for pod in pods
        ),
        shared=str(shared),
        pool=pool,
        reserved=now.reserved,
        allocatable=str((CPUSet.parse(now.allocatable) | idle_now) - idle)
        if _gives_all(now)
        else now.allocatable,
        offline=now.offline,
        counters=now.counters,
    )


def _gives_all(now: Status) -> bool:
    """Whether all may be owned that is shared and not reserved; it is not where siblings idle."""
    allocatable = CPUSet.parse(now.allocatable)
    shared = CPUSet.parse(now.shared) - CPUSet.parse(now.reserved)
    return not allocatable or shared <= allocatable


def _on_pool(container: Container, pool: str) -> Container:
    if container.exclusive:
        return replace(container, shared=pool) if container.shared else container
    return container if container.isolation == POD else replace(container, cpus=pool)


def _then(agent: Agent) -> Agent:
    """An agent without what it says of this moment."""
    return replace(
        agent,
        problems=(),
        cgroups=CgroupTree(),
        hugepages=UNSET,
        cpus=UNSET,
        container_runtime=UNSET,
        device_plugins=UNSET,
        interrupts=UNSET,
        control=UNSET,
        cache=UNSET,
        scheduling_domains=UNSET,
    )


def _idle(pods: Iterable[Pod]) -> CPUSet:
    return CPUSet.union_of(CPUSet.parse(c.idle) for pod in pods for c in pod.containers if c.idle)


def _siblings(machine: Machine) -> Mapping[int, int]:
    """Each CPU -> the threads of its core, as a mask."""
    cores: dict[int, int] = {}
    for row in machine.cpus:
        if row.core is not None and row.core is not UNSET:
            cores[row.core] = cores.get(row.core, 0) | 1 << row.cpu
    return {cpu: mask for mask in cores.values() for cpu in CPUSet.from_mask(mask)}
