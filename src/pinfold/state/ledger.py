"""The ledger: which container owns which CPUs, and what is left for everybody else.

A :class:`Ledger` is an immutable value; every change gives a new one and checks the invariants.
It is the kubelet's CPU manager state (``defaultCpuSet`` and ``entries`` of a
``cpu_manager_state`` file) as sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet, iter_bits

Containers = Mapping[str, CPUSet]
"""Container name -> its exclusive CPUs."""

NO_ASSIGNMENTS: Final[Mapping[str, Containers]] = MappingProxyType({})
_EMPTY: Final[Containers] = MappingProxyType({})


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


class Release(Struct, frozen=True):
    """Take back the CPUs of one container, or of the whole pod."""

    pod_uid: str
    container: str | None = None


Change = Assign | Release


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
    """

    policy_name: str
    default: CPUSet
    assignments: Mapping[str, Containers] = NO_ASSIGNMENTS
    bounds: Bounds | None = None
    idle: Mapping[str, Containers] = NO_ASSIGNMENTS

    @classmethod
    def fresh(cls, policy_name: str, bounds: Bounds) -> Ledger:
        """The ledger of a machine on which nothing is assigned."""
        return cls(policy_name, bounds.pool, NO_ASSIGNMENTS, bounds)

    @property
    def exclusive(self) -> CPUSet:
        """Every CPU that some container owns, idle siblings too."""
        return CPUSet.from_mask(self._owned)

    @cached_property
    def idle_siblings(self) -> CPUSet:
        """Every CPU that is claimed so that nothing runs on it."""
        if not self.idle:
            return CPUSet()
        used = 0
        for uid, containers in self.assignments.items():
            idle = self.idle.get(uid, _EMPTY)
            for name, cpus in containers.items():
                used |= cpus.mask & ~idle[name].mask if name in idle else cpus.mask
        return CPUSet.from_mask(_union(self.idle.values()) & ~used)

    @cached_property
    def _owned(self) -> int:
        return _union(self.assignments.values())

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
        claim = self.assignments.get(pod_uid, _EMPTY).get(container)
        idle = self.idle_of(pod_uid, container)
        return claim - idle if claim and idle else claim

    def used_by(self, pod_uid: str) -> dict[str, CPUSet]:
        """The exclusive CPUs that a pod's containers run on, by name."""
        containers, idle = self.assignments.get(pod_uid, _EMPTY), self.idle.get(pod_uid, _EMPTY)
        return {
            name: cpus - idle[name] if name in idle else cpus for name, cpus in containers.items()
        }

    def idle_of(self, pod_uid: str, container: str) -> CPUSet | None:
        """The container's idle siblings; ``None``: it is not SMT-isolated."""
        return self.idle.get(pod_uid, _EMPTY).get(container)

    def cpus_of_pod(self, pod_uid: str) -> CPUSet:
        """The exclusive CPUs that the containers of a pod run on."""
        return CPUSet.from_mask(_pod_mask(self.used_by(pod_uid)))

    def with_assignment(
        self, pod_uid: str, container: str, cpus: CPUSet, idle: CPUSet | None = None
    ) -> Ledger:
        """Give ``cpus`` to a container, out of the shared pool or out of its own pod's CPUs.

        ``idle`` are those of them that stay idle; None: it is not SMT-isolated.

        Raises:
            InvariantError: see the class.
        """
        containers = dict(self.assignments.get(pod_uid, _EMPTY))
        containers[container] = cpus
        quiet = {n: c for n, c in self.idle.get(pod_uid, _EMPTY).items() if n != container}
        if idle is not None:
            quiet[container] = idle
        return self._with_pod(pod_uid, containers, quiet, f"container {container!r}", cpus)

    def with_pod(
        self, pod_uid: str, containers: Containers, idle: Containers | None = None
    ) -> Ledger:
        """Give a pod's containers their CPUs all at once, in place of what the pod has.

        ``idle`` are those of them that stay idle, of SMT-isolated containers; None: those that the
        containers have now, as far as they keep their CPUs.

        Raises:
            InvariantError: see the class.
        """
        if idle is None:
            idle = {
                name: cpus & containers[name]
                for name, cpus in self.idle.get(pod_uid, _EMPTY).items()
                if name in containers
            }
        empty = next((name for name, cpus in containers.items() if not cpus), None)
        if empty is not None:
            raise InvariantError(f"pod {pod_uid!r}, container {empty!r}: no CPU to assign")
        if not containers:
            return self.without(pod_uid)
        cpus = CPUSet.from_mask(_pod_mask(containers))
        return self._with_pod(pod_uid, dict(containers), dict(idle), "its containers", cpus)

    def without(self, pod_uid: str, container: str | None = None) -> Ledger:
        """Give the CPUs of a container, or of a whole pod, back to the shared pool.

        What another container of the pod uses too stays with that one.  Unknown names change
        nothing.
        """
        old = self.assignments.get(pod_uid)
        if old is None or (container is not None and container not in old):
            return self
        left = {name: cpus for name, cpus in old.items() if container not in (None, name)}
        outer = dict(self.assignments)
        if left:
            outer[pod_uid] = MappingProxyType(left)
        else:
            del outer[pod_uid]
        released = _pod_mask(old) & ~_pod_mask(left)
        idle = {n: c for n, c in self.idle.get(pod_uid, _EMPTY).items() if n in left}
        return self._with(
            self.default.mask | released,
            outer,
            _with_entry(self.idle, pod_uid, idle),
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
            if (problem := _idle_problem(cpus, self.assignments.get(uid, _EMPTY).get(name)))
        ]
        found += self._shared_between_pods()
        shared = self.default & self.exclusive
        if shared:
            found.append(f"CPUs {shared} are assigned and in the shared pool too")
        return found + self._out_of_bounds()

    def _shared_between_pods(self) -> list[str]:
        found = []
        taken = 0
        owner: dict[int, str] = {}
        for uid, containers in self.assignments.items():
            mask = _pod_mask(containers)
            common: dict[str, int] = {}
            for cpu in iter_bits(mask & taken):
                common[owner[cpu]] = common.get(owner[cpu], 0) | 1 << cpu
            found += [
                f"CPUs {CPUSet.from_mask(cpus)} belong to pods {other!r} and {uid!r}"
                for other, cpus in common.items()
            ]
            owner.update(dict.fromkeys(iter_bits(mask & ~taken), uid))
            taken |= mask
        return found

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
        old_mask = _pod_mask(self.assignments.get(pod_uid, _EMPTY))
        others = self._owned & ~old_mask
        self._check(f"pod {pod_uid!r}, {who}", cpus, others, old_mask)
        for name, quiet in idle.items():
            if problem := _idle_problem(quiet, containers.get(name)):
                raise InvariantError(f"pod {pod_uid!r}, container {name!r}: {problem}")
        new_mask = _pod_mask(containers)
        outer = dict(self.assignments)
        outer[pod_uid] = MappingProxyType(containers)
        return self._with(
            (self.default.mask | old_mask) & ~new_mask,
            outer,
            _with_entry(self.idle, pod_uid, idle),
            others | new_mask,
        )

    def _with(
        self,
        default: int,
        assignments: dict[str, Containers],
        idle: Mapping[str, Containers],
        owned: int,
    ) -> Ledger:
        pods = MappingProxyType(assignments)
        ledger = replace(self, default=CPUSet.from_mask(default), assignments=pods, idle=idle)
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


def _idle_problem(idle: CPUSet, claim: CPUSet | None) -> str | None:
    """What is wrong with the idle siblings of a container that has claimed these CPUs."""
    if not idle <= (claim or CPUSet()):
        return f"idle siblings {idle - (claim or CPUSet())} are not among its CPUs"
    return f"all of its CPUs {claim} are idle" if claim == idle else None


def _with_entry(
    idle: Mapping[str, Containers], pod_uid: str, containers: dict[str, CPUSet]
) -> Mapping[str, Containers]:
    if not containers and pod_uid not in idle:
        return idle
    others = {uid: one for uid, one in idle.items() if uid != pod_uid}
    if containers:
        others[pod_uid] = MappingProxyType(containers)
    return MappingProxyType(others) if others else NO_ASSIGNMENTS


def _pod_mask(containers: Containers) -> int:
    mask = 0
    for cpus in containers.values():
        mask |= cpus.mask
    return mask


def _union(pods: Iterable[Containers]) -> int:
    mask = 0
    for containers in pods:
        mask |= _pod_mask(containers)
    return mask
