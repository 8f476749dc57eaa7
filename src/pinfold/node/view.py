"""What the books say, for everybody who reads them: nobody can change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState
from pinfold.admission.decision import Decision
from pinfold.admission.mixed import mixed_owners
from pinfold.core.moves.owners import MoveOptions, Owner
from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import NO_CPUS, CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.counters import Counters
from pinfold.node.observers import Observers
from pinfold.node.pod_table import PodTable
from pinfold.node.settings import NodeSettings, OwnerOffline
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import ObjectKey, ObjectRecord, PendingMove
from pinfold.ports.runtime import ContainerStatus


class Whereabouts(Struct, frozen=True):
    """Where a container runs now.

    ``own`` are those CPUs that it owns and is to run on, None where it owns none; ``offline`` are
    those of them that are offline; ``frozen`` tells that it does not run at all, ``mixed`` that it
    runs in the shared pool besides, ``idle`` that it is on the idle side: in the shared pool, and
    on what is lent, ``pooled`` that others of its pod run on its CPUs, too: they are what is left
    of the pod's bubble.  ``mems`` are the NUMA nodes of its memory, None for any.
    """

    own: CPUSet | None
    offline: CPUSet
    frozen: bool
    mems: CPUSet | None = None
    mixed: bool = False
    idle: bool = False
    pooled: bool = False

    @property
    def cpus(self) -> CPUSet | None:
        """Its own CPUs, None for the shared pool."""
        return None if self.is_displaced else self.own

    @property
    def shares(self) -> bool:
        """Whether it runs in the shared pool, with or without CPUs of its own."""
        return self.place == "shared" or self.mixed

    def within(self, pool: CPUSet, lent: CPUSet = NO_CPUS) -> CPUSet:
        """All CPUs that it is to run on while ``pool`` is the shared pool, and these are lent."""
        return Placement(self.cpus, mixed=self.mixed, idle=self.idle).within(pool, lent)

    @property
    def is_exclusive(self) -> bool:
        """Whether it runs on its own CPUs, and no other container does beside it."""
        return self.cpus is not None and not self.pooled

    @property
    def is_displaced(self) -> bool:
        """Whether it owns CPUs, and none of them is online."""
        return self.own is not None and self.own == self.offline

    @property
    def place(self) -> str:
        """In words: ``shared``, ``frozen``, or ``own``."""
        if self.frozen:
            return "frozen"
        return "shared" if self.cpus is None else "own"


class View(Struct, frozen=True, dict=True):
    """The node at one moment: its policies, who has what, its pods, how it is looked after.

    ``move`` is the plan of moves that is in flight; the state has its claims.  ``lent`` are CPUs of
    owners on which the idle side runs, too: on no record, and their owners' all the same.
    ``parked`` are CPUs that the shared pool has left so that they idle: on no record, and free.
    ``objects`` are those beside the pods, such as quotas.
    """

    node: Node
    state: NodeState
    pods: PodTable
    settings: NodeSettings
    move: PendingMove | None = None
    lent: CPUSet = NO_CPUS
    parked: CPUSet = NO_CPUS
    objects: Mapping[ObjectKey, ObjectRecord] = {}

    @property
    def machine(self) -> CPUSet:
        """Every CPU that is known, offline ones too."""
        return self.state.ledger.limits.machine

    @cached_property
    def pool(self) -> CPUSet:
        """The CPUs on which the shared containers really run.

        The ledger's shared pool, with what moves will take from it, without offline CPUs, and
        without ``reservedSystemCPUs`` while there is any other CPU; without isolated CPUs while
        exclusive CPUs are to be such; without parked ones while there is any other.
        """
        default = self.state.ledger.default
        if self.move is not None:
            default |= self.move.holds.pool - self.move.on_record.pool
        online = default - self.state.offline
        pool = online - self.settings.reserved_system_cpus or online
        if self.node.isolation is not None:
            pods = (p.workload.pod for p in self.pods.active.values())
            pool = self.node.isolation.shared(pool, pods)
        return pool - self.parked or pool

    def where(self, pod: AdmittedPod, container: Container) -> Whereabouts:
        """Where a container of an active pod is to run now.

        It is worked out once: all who look at the node, and those who decide by load every second,
        ask it of everybody.
        """
        known = self._places.get(key := (pod.uid, container.name))
        if known is None or known[0] is not pod or known[1] is not container:
            known = self._places[key] = (pod, container, self._where(pod, container))
        return known[2]

    def volume_nodes(self, pod: AdmittedPod) -> dict[str, CPUSet]:
        """The NUMA nodes that the volumes in memory of an active pod are on, by name.

        They are those of all containers that have the volume; empty where the memory of one of
        them may be anywhere.
        """
        found: dict[str, list[CPUSet]] = {}
        for container in pod.workload.pod.all_containers:
            mems = self.where(pod, container).mems or CPUSet()
            for mount in pod.workload.processes[container.name].volume_mounts:
                if mount.is_in_memory:
                    found.setdefault(mount.volume, []).append(mems)
        return {
            name: CPUSet.union_of(sets) if all(sets) else CPUSet() for name, sets in found.items()
        }

    @cached_property
    def _places(self) -> dict[tuple[str, str], tuple[AdmittedPod, Container, Whereabouts]]:
        return {}

    def _where(self, pod: AdmittedPod, container: Container) -> Whereabouts:
        offline, mems = self.state.offline, pod.record.memory_nodes(container.name)
        own = pod.exclusive_cpus(self.state.ledger, container)
        if self.move is not None:
            holds, owner = self.move.holds, Owner(pod.uid, container.name)
            # Who comes from the pool, or goes there, is in it.
            own, mems = holds.placed.get(owner, own) or None, holds.mems.get(owner, mems)
        gone = CPUSet() if own is None else own & offline
        if own is not None and own != gone:
            mixed, pooled = pod.is_mixed(container), pod.is_pooled(container)
            return Whereabouts(own, gone, frozen=False, mems=mems, mixed=mixed, pooled=pooled)
        # Who is to end has to run to hear of it.
        freezes = self.settings.owner_offline is OwnerOffline.FREEZE and not pod.is_ending
        frozen = not self.pool or (own is not None and freezes)
        idle = own is None and not frozen and self.settings.idle_side and pod.borrows(container)
        return Whereabouts(own, gone, frozen, mems, idle=idle, pooled=pod.is_pooled(container))

    @cached_property
    def moving(self) -> frozenset[Owner]:
        """The owners whose CPUs the plan in flight changes."""
        if self.move is None:
            return frozenset()
        plan = self.move.plan
        return frozenset(plan.start.placed.keys() | plan.end.placed.keys())

    @cached_property
    def lendable(self) -> CPUSet:
        """All that is :meth:`lendable_of` the machine."""
        return self.lendable_of(self.machine)

    def lendable_of(self, cpus: CPUSet) -> CPUSet:
        """Those of these CPUs that are online, and whose owners run there and keep them a while.

        Whether an owner allows it is not asked here.  Idle siblings are to stay idle, and so is the
        sibling thread of what another container owns: it was not asked.  A bubble stays whole.
        """
        ledger, moving = self.state.ledger, self.moving
        owned = ledger.exclusive - self.state.offline
        found = (
            own - self.whole_cores(owned - own)
            for pod, container in self.pods.containers().values()
            if not (pod.is_ending or pod.record.bubble)
            and Owner(pod.uid, container.name) not in moving
            if (own := ledger.cpus_of(pod.uid, container.name)) and own & cpus
        )
        return (CPUSet.union_of(found) & cpus) - self.state.offline

    def whole_cores(self, cpus: CPUSet) -> CPUSet:
        """These CPUs with all threads of their cores, where the policy knows of cores."""
        policy = self.node.cpu_policy
        return cpus if policy is None else policy.topology.whole_cores(cpus)

    def lent_by(self, pod_uid: str, container: str) -> CPUSet:
        """The CPUs of a container that are lent."""
        return self.lent & (self.state.ledger.cpus_of(pod_uid, container) or NO_CPUS)

    def in_the_end(self, pod_uid: str, container: str) -> CPUSet | None:
        """The CPUs that a container owns once the plan in flight is done; None: none."""
        if self.move is not None:
            own = self.move.plan.end.placed.get(Owner(pod_uid, container))
            if own is not None:
                return own or None
        return self.state.ledger.cpus_of(pod_uid, container)

    def affected(self) -> Iterator[tuple[AdmittedPod, Container, Whereabouts]]:
        """The containers that own CPUs of which some are offline, or that are frozen."""
        if not self.state.offline:
            return
        for pod, container in self.pods.containers().values():
            where = self.where(pod, container)
            if where.offline or where.frozen:
                yield pod, container, where

    @property
    def mixed(self) -> frozenset[Owner]:
        """The owners that use the shared pool besides their own CPUs."""
        pods = (pod.workload.pod for pod in self.pods.active.values())
        return mixed_owners(self.state.ledger, pods)

    @property
    def move_options(self) -> MoveOptions:
        """What moves have to heed of the pods: see :class:`MoveOptions`."""
        return MoveOptions(mixed=self.mixed, pool_may_be_empty=not self.anybody_shares())

    def anybody_shares(self) -> bool:
        """Whether a container of an active pod runs, or has to run, on the shared pool."""
        if self.move is not None and not all(self.move.plan.end.placed.values()):
            return True  # somebody is going there
        return any(
            (where := self.where(pod, container)).own is None or where.shares
            for pod, container in self.pods.containers().values()
        )

    def leaves_nobody_without_cpus(
        self, decision: Decision, after: NodeState, only: str | None = None
    ) -> bool:
        """Whether there is a CPU for all who share, once it is as it was decided.

        Args:
            decision: about a pod that is admitted, or about its container ``only``.
            after: what runs then.
            only: the container.
        """
        left = after.ledger.default - after.offline
        return bool(left) or not (decision.shares(only) or self.anybody_shares())

    @property
    def confirmed(self) -> View:
        """The same without CPUs that owners are only being given: what they may be told of."""
        if self.move is None:
            return self
        return replace(self, move=self.move.confirmed)

    def is_news_after(self, before: View) -> bool:
        """Whether others want to hear of what has changed."""
        old, new = before.state, self.state
        return (
            old.ledger is not new.ledger
            or before.move is not self.move
            or old.memory is not new.memory
            or old.offline != new.offline
            or before.pods.active.keys() != self.pods.active.keys()
        )


class Reader(Protocol):
    """The books, for those who only read them."""

    @property
    def view(self) -> View:
        """What holds at this moment; the next change makes another one."""

    @property
    def statuses(self) -> Mapping[ContainerKey, ContainerStatus]:
        """The newest container of each key, as it was seen last."""

    @property
    def counters(self) -> Counters:
        """What was counted since the agent started."""

    @property
    def observers(self) -> Observers:
        """Whom the books ask, such as for the time."""

    @property
    def is_changing(self) -> bool:
        """Whether somebody changes them just now."""
