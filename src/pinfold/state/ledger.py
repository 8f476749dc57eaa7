"""The ledger: which container owns which CPUs, and what is left for everybody else.

A :class:`Ledger` is an immutable value; every change gives a new one and checks the invariants.
It is the kubelet's CPU manager state (``defaultCpuSet`` and ``entries`` of a
``cpu_manager_state`` file) as sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import NO_CPUS, CPUSet
from pinfold.state.cpus_by_pod import (
    NO_ASSIGNMENTS,
    NO_CONTAINERS,
    Containers,
    idle_problem,
    mask_of,
    outside,
    shared_between_pods,
    union,
    with_entry,
)


class InvariantError(ValueError):
    """A change that would leave CPUs with two owners, or outside what may be given."""


class Bounds(Struct, frozen=True):
    """What a ledger may give away.

    ``machine`` is every CPU that the kubelet sees; ``reserved`` is never assigned exclusively,
    and with ``strict_cpu_reservation`` not shared either.
    """

    machine: CPUSet
    reserved: CPUSet = CPUSet()
    strict_cpu_reservation: bool = False

    @property
    def pool(self) -> CPUSet:
        """The shared pool of a machine on which nothing is assigned."""
        return self.machine - self.reserved if self.strict_cpu_reservation else self.machine


class Assign(Struct, frozen=True):
    """Give ``cpus`` to one container, in place of what it has; see :attr:`Ledger.idle`."""

    pod_uid: str
    container: str
    cpus: CPUSet
    idle: CPUSet | None = None


class AssignBubble(Struct, frozen=True):
    """Give ``cpus`` to a whole pod, and its ``containers`` their parts, in place of what it has."""

    pod_uid: str
    cpus: CPUSet
    containers: Containers


class Release(Struct, frozen=True):
    """Take back the CPUs of one container, or of the whole pod."""

    pod_uid: str
    container: str | None = None


Change = Assign | AssignBubble | Release


class Ledger(Struct, frozen=True, dict=True):
    """Exclusive CPUs by pod uid and container name, and the shared pool (``default``).

    A ledger that comes from a file may break the invariants; :meth:`violations` names what is
    wrong, :meth:`bound` refuses it.  The methods that change it raise :class:`InvariantError`
    when a container would get no CPU, a CPU of another pod, one outside of ``bounds.machine``,
    or a reserved one.  Containers of one pod may share CPUs: the kubelet gives those of an init
    container to the pod's other containers once more.

    What a container is assigned is its claim, which nobody else can have.  Of those that are
    SMT-isolated ``idle`` says on which CPUs of the claim nothing runs, not even the container: the
    siblings of those that it uses.  It is there, and may be empty, for these containers only.

    A pod that gets CPUs as a whole has them in ``bubbles`` (by pod uid; upstream's pod
    assignments), and its containers' are parts of these.  What is in a bubble is owned, even where
    no container has it, and is not given back before the last of the pod's containers.
    """

    policy_name: str
    default: CPUSet
    assignments: Mapping[str, Containers] = NO_ASSIGNMENTS
    bounds: Bounds | None = None
    idle: Mapping[str, Containers] = NO_ASSIGNMENTS
    bubbles: Mapping[str, CPUSet] = NO_CONTAINERS

    @classmethod
    def fresh(cls, policy_name: str, bounds: Bounds) -> Ledger:
        """The ledger of a machine on which nothing is assigned."""
        return cls(policy_name, bounds.pool, NO_ASSIGNMENTS, bounds)

    @property
    def exclusive(self) -> CPUSet:
        """Every CPU that some container or pod owns, idle siblings too."""
        return CPUSet.from_mask(self._owned)

    @property
    def idle_siblings(self) -> CPUSet:
        """Every CPU that is claimed so that nothing runs on it."""
        return self._idle_siblings if self.idle else NO_CPUS

    @cached_property
    def _idle_siblings(self) -> CPUSet:
        used = 0
        for uid, containers in self.assignments.items():
            idle = self.idle.get(uid, NO_CONTAINERS)
            for name, cpus in containers.items():
                used |= cpus.mask & ~idle[name].mask if name in idle else cpus.mask
        return CPUSet.from_mask(union(self.idle.values()) & ~used)

    @cached_property
    def _owned(self) -> int:
        return union(self.assignments.values()) | mask_of(self.bubbles)

    @property
    def known(self) -> CPUSet:
        """Every CPU that the ledger speaks of: exclusive ones and the shared pool."""
        return self.default | self.exclusive

    @property
    def limits(self) -> Bounds:
        """The bounds; those of a ledger that came without any are the CPUs that it speaks of."""
        return Bounds(self.known) if self.bounds is None else self.bounds

    def cpus_of(self, pod_uid: str, container: str) -> CPUSet | None:
        """The exclusive CPUs that the container runs on; ``None``: on the shared pool."""
        claim = self.assignments.get(pod_uid, NO_CONTAINERS).get(container)
        idle = self.idle_of(pod_uid, container)
        return claim - idle if claim and idle else claim

    def used_by(self, pod_uid: str) -> dict[str, CPUSet]:
        """The exclusive CPUs that a pod's containers run on, by name."""
        containers = self.assignments.get(pod_uid, NO_CONTAINERS)
        idle = self.idle.get(pod_uid, NO_CONTAINERS)
        if not idle:
            return dict(containers)
        return {
            name: cpus - idle[name] if name in idle else cpus for name, cpus in containers.items()
        }

    def idle_of(self, pod_uid: str, container: str) -> CPUSet | None:
        """The container's idle siblings; ``None``: it is not SMT-isolated."""
        return self.idle.get(pod_uid, NO_CONTAINERS).get(container)

    def bubble_of(self, pod_uid: str) -> CPUSet | None:
        """The CPUs that the pod has as a whole; ``None``: its containers have theirs, if any."""
        return self.bubbles.get(pod_uid)

    def cpus_of_pod(self, pod_uid: str) -> CPUSet:
        """The exclusive CPUs that the containers of a pod run on."""
        return CPUSet.from_mask(mask_of(self.used_by(pod_uid)))

    def with_assignment(
        self, pod_uid: str, container: str, cpus: CPUSet, idle: CPUSet | None = None
    ) -> Ledger:
        """Give ``cpus`` to a container, out of the shared pool or out of its own pod's CPUs.

        Where the pod has a bubble they have to be in it.  ``idle`` are those of them that stay
        idle; None: it is not SMT-isolated.

        Raises:
            InvariantError: see the class.
        """
        containers = dict(self.assignments.get(pod_uid, NO_CONTAINERS))
        containers[container] = cpus
        quiet = {n: c for n, c in self.idle.get(pod_uid, NO_CONTAINERS).items() if n != container}
        if idle is not None:
            quiet[container] = idle
        return self._with_pod(pod_uid, containers, quiet, f"container {container!r}", cpus)

    def with_pod(
        self, pod_uid: str, containers: Containers, idle: Containers | None = None
    ) -> Ledger:
        """Give a pod's containers their CPUs all at once, in place of what they have.

        A bubble stays the pod's, and they have to be in it.  ``idle`` are those of them that stay
        idle, of SMT-isolated containers; None: those that the containers have now, as far as they
        keep their CPUs.

        Raises:
            InvariantError: see the class.
        """
        if idle is None:
            idle = {
                name: cpus & containers[name]
                for name, cpus in self.idle.get(pod_uid, NO_CONTAINERS).items()
                if name in containers
            }
        empty = next((name for name, cpus in containers.items() if not cpus), None)
        if empty is not None:
            raise InvariantError(f"pod {pod_uid!r}, container {empty!r}: no CPU to assign")
        if not containers:
            return self.without(pod_uid)
        cpus = CPUSet.from_mask(mask_of(containers))
        return self._with_pod(pod_uid, dict(containers), dict(idle), "its containers", cpus)

    def with_bubble(self, pod_uid: str, cpus: CPUSet, containers: Containers) -> Ledger:
        """Give ``cpus`` to a whole pod, and its containers parts of them, in place of what it has.

        Raises:
            InvariantError: see the class.
        """
        own = self._owned_by(pod_uid)
        self._check(f"pod {pod_uid!r}, its bubble", cpus, self._owned & ~own, own)
        for problem in outside(pod_uid, containers, cpus):
            raise InvariantError(problem)
        return self._with(
            (self.default.mask | own) & ~cpus.mask,
            with_entry(self.assignments, pod_uid, containers),
            with_entry(self.idle, pod_uid, {}),
            MappingProxyType({**self.bubbles, pod_uid: cpus}),
            self._owned & ~own | cpus.mask,
        )

    def without(self, pod_uid: str, container: str | None = None) -> Ledger:
        """Give the CPUs of a container, or of a whole pod, back to the shared pool.

        What another container of the pod uses too stays with that one, and a bubble with the pod as
        long as one of its containers has a part.  Unknown names change nothing.
        """
        old = self.assignments.get(pod_uid, NO_CONTAINERS)
        has_nothing = pod_uid not in self.assignments and pod_uid not in self.bubbles
        if has_nothing if container is None else container not in old:
            return self
        left = {name: cpus for name, cpus in old.items() if container not in (None, name)}
        bubbles, kept = self.bubbles, mask_of(left)
        if pod_uid in bubbles:
            if left:
                kept = self._owned_by(pod_uid)
            else:
                bubbles = MappingProxyType({u: c for u, c in bubbles.items() if u != pod_uid})
        released = self._owned_by(pod_uid) & ~kept
        idle = {n: c for n, c in self.idle.get(pod_uid, NO_CONTAINERS).items() if n in left}
        return self._with(
            self.default.mask | released,
            with_entry(self.assignments, pod_uid, left),
            with_entry(self.idle, pod_uid, idle),
            bubbles,
            self._owned & ~released,
        )

    def apply(self, changes: Iterable[Change]) -> Ledger:
        """Make all ``changes``, or none: releases and assignments in the order given.

        Raises:
            InvariantError: see the class.
        """
        ledger = self
        for change in changes:
            if isinstance(change, Assign):
                ledger = ledger.with_assignment(
                    change.pod_uid, change.container, change.cpus, change.idle
                )
            elif isinstance(change, AssignBubble):
                ledger = ledger.with_bubble(change.pod_uid, change.cpus, change.containers)
            else:
                ledger = ledger.without(change.pod_uid, change.container)
        return ledger

    def bound(self, bounds: Bounds) -> Ledger:
        """This ledger on a machine.

        Raises:
            InvariantError: it does not fit the machine, or breaks an invariant by itself.
        """
        ledger = replace(self, bounds=bounds)
        for violation in ledger.violations():
            raise InvariantError(violation)
        return ledger

    def violations(self) -> list[str]:
        """Every broken invariant, as a sentence; empty when the ledger is sound."""
        found = [
            f"pod {uid!r}, container {name!r}: the assigned set is empty"
            for uid, containers in self.assignments.items()
            for name, cpus in containers.items()
            if not cpus
        ]
        found += [
            f"pod {uid!r}, container {name!r}: {problem}"
            for uid, idle in self.idle.items()
            for name, cpus in idle.items()
            if (problem := idle_problem(cpus, self.assignments.get(uid, NO_CONTAINERS).get(name)))
        ]
        for uid, cpus in self.bubbles.items():
            if not cpus:
                found.append(f"pod {uid!r}: the bubble is empty")
            found += outside(uid, self.assignments.get(uid, NO_CONTAINERS), cpus)
        found += shared_between_pods(
            {uid: self._owned_by(uid) for uid in {**self.assignments, **self.bubbles}}
        )
        shared = self.default & self.exclusive
        if shared:
            found.append(f"CPUs {shared} are assigned and in the shared pool too")
        return found + self._out_of_bounds()

    def _out_of_bounds(self) -> list[str]:
        if self.bounds is None:
            return []
        found = []
        missing = self.known - self.bounds.machine
        if missing:
            found.append(f"CPUs {missing} are not in the machine ({self.bounds.machine})")
        reserved = self.exclusive & self.bounds.reserved
        if reserved:
            found.append(f"reserved CPUs {reserved} are assigned")
        pool = self.bounds.pool - self.exclusive
        if self.default & self.bounds.machine != pool:
            found.append(f"the shared pool is {self.default}, and should be {pool}")
        return found

    def _with_pod(
        self,
        pod_uid: str,
        containers: dict[str, CPUSet],
        idle: dict[str, CPUSet],
        who: str,
        cpus: CPUSet,
    ) -> Ledger:
        old_mask, bubble = self._owned_by(pod_uid), self.bubbles.get(pod_uid)
        others = self._owned & ~old_mask
        self._check(f"pod {pod_uid!r}, {who}", cpus, others, old_mask)
        if bubble is not None:
            for wrong in outside(pod_uid, containers, bubble):
                raise InvariantError(wrong)
        for name, quiet in idle.items():
            if problem := idle_problem(quiet, containers.get(name)):
                raise InvariantError(f"pod {pod_uid!r}, container {name!r}: {problem}")
        new_mask = mask_of(containers) if bubble is None else old_mask
        return self._with(
            (self.default.mask | old_mask) & ~new_mask,
            with_entry(self.assignments, pod_uid, containers),
            with_entry(self.idle, pod_uid, idle),
            self.bubbles,
            others | new_mask,
        )

    def _owned_by(self, pod_uid: str) -> int:
        mask = mask_of(self.assignments.get(pod_uid, NO_CONTAINERS))
        return mask | self.bubbles[pod_uid].mask if pod_uid in self.bubbles else mask

    def _with(
        self,
        default: int,
        assignments: Mapping[str, Containers],
        idle: Mapping[str, Containers],
        bubbles: Mapping[str, CPUSet],
        owned: int,
    ) -> Ledger:
        pool = CPUSet.from_mask(default)
        ledger = replace(self, default=pool, assignments=assignments, idle=idle, bubbles=bubbles)
        ledger.__dict__["_owned"] = owned  # known already, and never carried on by `replace`
        return ledger

    def _check(self, who: str, cpus: CPUSet, others: int, own: int) -> None:
        if not cpus:
            raise InvariantError(f"{who}: no CPU to assign")
        if cpus.mask & others:
            taken = CPUSet.from_mask(cpus.mask & others)
            raise InvariantError(f"{who}: CPUs {taken} belong to another pod")
        if self.bounds is not None:
            if cpus.mask & self.bounds.reserved.mask:
                reserved = cpus & self.bounds.reserved
                raise InvariantError(f"{who}: CPUs {reserved} are reserved")
            if cpus.mask & ~self.bounds.machine.mask:
                missing = cpus - self.bounds.machine
                raise InvariantError(f"{who}: CPUs {missing} are not in the machine")
        if cpus.mask & ~(self.default.mask | own):
            missing = CPUSet.from_mask(cpus.mask & ~(self.default.mask | own))
            raise InvariantError(f"{who}: CPUs {missing} are not in the shared pool")
