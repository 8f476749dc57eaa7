"""Exclusive CPUs without SMT: one thread of each core is used, its siblings stay idle.

The allocation is the kubelet's on the same machine with SMT switched off: it is shown the first
thread of each core of which all threads are free.  What it chooses is claimed with the siblings,
which are nobody's then.  The order of calls, for one pod: :func:`smt_refusal`, then
:func:`without_smt` around the CPU manager of each attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.cpu_manager import CPUManager
from pinfold.admission.nearness import INVALID_ANNOTATION
from pinfold.core.cpu.static_policy import StaticPolicy
from pinfold.core.machine.machine import Machine
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.annotations import CONTAINER, POD, SMT_ISOLATE, AnnotationError
from pinfold.core.pod.pod import Container, Pod, guaranteed_cpus, pod_guaranteed_cpus
from pinfold.core.topology_manager.hints import AllocationError, ResourceHints, TopologyHint
from pinfold.core.topology_manager.manager import TopologyManager
from pinfold.core.topology_manager.policy import Policy, Scope
from pinfold.core.values.cpuset import CPUSet

SMT_ISOLATION_ERROR: Final = "SMTIsolationError"
"""The admission reason where cores of its own are not to be had."""

NO_SMT: Final = "smt-isolate does nothing here: no core of this machine has a second thread to idle"


class SMTIsolationError(AllocationError):
    """A container is to be alone on its cores, and cannot be; ``reason`` is the pod's."""

    def __init__(self, message: str, reason: str = SMT_ISOLATION_ERROR) -> None:
        super().__init__(message)
        self.reason = reason


class SMTIsolation(Struct, frozen=True):
    """The cores of a node, for those who are alone on theirs.

    Attributes:
        use: whether containers that do not say are SMT-isolated.
        siblings: the first (lowest) thread of each core of which all threads may be owned, and the
            bitmask of its other threads.
        policy: the static policy on these first threads alone; None under policy none.
    """

    use: bool = False
    siblings: Mapping[int, int] = {}
    policy: StaticPolicy | None = None

    @classmethod
    def of(cls, machine: Machine, policy: StaticPolicy | None, *, use: bool) -> SMTIsolation:
        """The cores of a machine under the policy in force; of what is offline nobody knows."""
        if policy is None:
            return cls(use)
        topology = policy.topology
        seen, online = topology.all, machine.online.mask
        siblings, firsts = {}, 0
        for core in _cores(machine, topology):
            threads = core & seen
            first = threads & -threads
            firsts |= first
            # An online thread that the kubelet does not see would not stay idle.
            if not core & ~seen & online and not core & policy.reserved.mask:
                siblings[first.bit_length() - 1] = threads & ~first
        reserved = CPUSet.from_mask(firsts) - CPUSet(siblings)
        rows = [row._replace(core=row.cpu) for row in topology.rows if firsts >> row.cpu & 1]
        alone = replace(
            policy, topology=CPUTopology(rows), reserved=reserved, reserved_cores=reserved
        )
        return cls(use, siblings, alone)

    @property
    def has_smt(self) -> bool:
        """Whether there is a sibling that could stay idle."""
        return any(self.siblings.values())

    def firsts(self, free: int) -> int:
        """The first threads of the cores that are free as a whole (both bitmasks)."""
        found = 0
        for first, others in self.siblings.items():
            if free >> first & 1 and not others & ~free:
                found |= 1 << first
        return found

    def siblings_of(self, cpus: int) -> int:
        """The other threads of the cores of some CPUs (both bitmasks)."""
        found = 0
        for first, others in self.siblings.items():
            core = others | 1 << first
            if core & cpus:
                found |= core
        return found & ~cpus

    def remark(self, milli_cpus: int) -> str:
        """What whoever set ``use`` should know of this machine; "" where there is nothing to say.

        ``milli_cpus`` is what pods could request in total without it.
        """
        if not self.use:
            return ""
        if self.policy is None:
            return "smtIsolate does nothing: no container has exclusive CPUs under policy none"
        if not self.has_smt:
            return NO_SMT
        cores, missing = len(self.siblings), milli_cpus / 1000 - len(self.siblings)
        if missing <= 0:
            return ""
        return (
            f"smtIsolate: pods may request {cores} CPUs, one for each core that may be owned; a "
            f"kubelet's scheduler counts so when its kubeReserved or systemReserved is {missing:g} "
            "CPUs more than here"
        )

    def allocatable(self, milli_cpus: int, idle: int) -> int:
        """What pods may request in total, of so much, while so many siblings are idle.

        Where every container is SMT-isolated that does not say otherwise, it is a CPU for each
        core from the start, so that whoever counts CPUs counts what there is.
        """
        left = milli_cpus - 1000 * idle
        return min(left, 1000 * len(self.siblings)) if self.use and self.has_smt else left


def _cores(machine: Machine, topology: CPUTopology) -> list[int]:
    """The cores, of the hardware and of the kubelet's view: what either puts together stays so."""
    cores: list[int] = []
    for mask in (*topology.cores.values(), *(core.mask for core in machine.cores)):
        joined = mask
        for other in [one for one in cores if one & mask]:
            joined |= other
            cores.remove(other)
        cores.append(joined)
    return sorted((core for core in cores if core & topology.all), key=lambda core: core & -core)


def smt_wish(smt: SMTIsolation | None, pod: Pod, name: str) -> bool:
    """Whether a container that is to own CPUs is to be alone on its cores."""
    if smt is None:
        return False
    said = SMT_ISOLATE.of(pod.annotations, name)
    return smt.use if said is None else said


def smt_refusal(
    smt: SMTIsolation | None,
    topology_manager: TopologyManager,
    pod: Pod,
    *,
    complete: bool = True,
) -> SMTIsolationError | None:
    """Why a pod cannot run here whatever is free.

    Args:
        smt: the node's; None where it knows no such wish, as a kubelet.
        topology_manager: what aligns.
        pod: the pod.
        complete: all its containers are known, so that others must not be named.
    """
    if smt is None:
        return None
    names = {one.name for one in pod.all_containers}
    try:
        said = SMT_ISOLATE.said(pod.annotations, names if complete else None)
    except AnnotationError as error:
        return SMTIsolationError(str(error), INVALID_ANNOTATION)
    owners = set() if smt.policy is None else {name for name, _ in _owners(pod)}
    for holder, wish in said.items():
        mine = owners if holder == POD else owners & {holder[len(CONTAINER) :]}
        if wish and complete and not mine:
            return SMTIsolationError(
                f"annotation {SMT_ISOLATE.key(holder)}: there are no exclusive CPUs whose siblings "
                "could stay idle; let the pod be Guaranteed with whole CPUs, on a node with the "
                "static policy"
            )
    wishes = {smt_wish(smt, pod, name) for name in owners}
    whole = topology_manager.policy is not Policy.NONE and topology_manager.scope is Scope.POD
    if whole and len(wishes) > 1 and smt.has_smt:
        return SMTIsolationError(
            "topologyManagerScope: pod aligns all containers of a pod at once, and only some of "
            f"them are to be SMT-isolated; say {SMT_ISOLATE.key()} for all of them, or use scope "
            "container"
        )
    return None


def smt_shortage(message: str, idle: int) -> tuple[str, str]:
    """Reason and message of a pod that would fit if its siblings did not have to stay idle."""
    return SMT_ISOLATION_ERROR, f"SMT isolation would leave {idle} siblings idle: {message}"


def smt_stays(owner: Owner) -> str:
    """Why an SMT-isolated container keeps its CPUs while it runs."""
    return (
        f"container {owner.container} is SMT-isolated (smt-isolate), and keeps its cores as they "
        "are while it runs; create it anew"
    )


def without_smt(
    manager: CPUManager | None, smt: SMTIsolation | None, pod: Pod
) -> CPUManager | None:
    """The CPU manager for a pod of which some containers may be SMT-isolated."""
    if manager is None or smt is None or smt.policy is None:
        return manager
    wishes = frozenset(name for name, _ in _owners(pod) if smt_wish(smt, pod, name))
    if not (wishes or manager.transaction.idle):
        return manager
    return SMTIsolatingCPUManager(manager, smt, smt.policy, wishes)


class SMTIsolatingCPUManager(CPUManager):
    """A CPU manager that shows another one the machine without SMT, for some containers.

    What a container has already it keeps, with the siblings that stay idle for it, or without any.
    """

    def __init__(
        self, manager: CPUManager, smt: SMTIsolation, alone: StaticPolicy, wishes: frozenset[str]
    ) -> None:
        super().__init__(manager.policy, manager.transaction, manager.parked)
        self.allocations = manager.allocations
        self._manager = manager
        self._smt = smt
        self._alone = alone
        self._wishes = wishes if smt.has_smt else frozenset[str]()
        self._asked_in_vain = wishes - self._wishes

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """See the base class.

        Raises:
            SMTIsolationError: too few cores are free.
        """
        if not self._is_alone(container.name):
            return self._manager.get_topology_hints(pod, container)
        self._require(pod, container)
        with self._showing(container.name):
            return self._manager.get_topology_hints(pod, container)

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """See the base class.

        Raises:
            SMTIsolationError: too few cores are free.
        """
        owners = [name for name, _ in _owners(pod)]
        if not all(map(self._is_alone, owners)):
            return self._manager.get_pod_topology_hints(pod)
        if not self.transaction.assigned:
            self._check(f"pod {pod.name}", pod_guaranteed_cpus(pod))
        with self._showing(None):
            return self._manager.get_pod_topology_hints(pod)

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """See the base class.

        Raises:
            SMTIsolationError: too few cores are free.
        """
        name = container.name
        try:
            if not guaranteed_cpus(pod, container) or not self._is_alone(name):
                self._manager.allocate(pod, container, affinity)
                return
            self._require(pod, container)
            with self._showing(name):
                self._manager.allocate(pod, container, affinity)
        finally:
            self.fault = self._manager.fault
        idle = CPUSet.from_mask(self.transaction.idle[name])
        self.allocations[name] = replace(self.allocations[name], idle=idle)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked for and has no meaning here, and what the other manager says."""
        said = (NO_SMT,) if self._asked_in_vain and not self._smt.use else ()
        return (*self._manager.notes, *said)

    def _is_alone(self, name: str) -> bool:
        if name in self.transaction.assigned:
            return name in self.transaction.idle
        return name in self._wishes

    def _require(self, pod: Pod, container: Container) -> None:
        if container.name not in self.transaction.assigned:
            self._check(f"container {container.name}", guaranteed_cpus(pod, container))

    def _check(self, who: str, count: int) -> None:
        free = (self._firsts() & ~self.parked).bit_count()
        if free < count:
            raise SMTIsolationError(
                f"SMT isolation: {who} is to have {count} cores for itself (smt-isolate), and only "
                f"{free} of the {len(self._smt.siblings)} that may be owned are free with all of "
                "their threads; a scheduler counts one CPU for each of them, and the node loses "
                "them all; end what runs there, ask for fewer CPUs, or do without smt-isolate"
            )

    def _firsts(self) -> int:
        draft = self.transaction
        return self._smt.firsts(draft.default | draft.reusable | self.parked)

    @contextmanager
    def _showing(self, name: str | None) -> Iterator[None]:
        draft, manager = self.transaction, self._manager
        default, reusable, firsts = draft.default, draft.reusable, self._firsts()
        draft.default, draft.reusable = default & firsts, reusable & firsts
        manager.policy = self._alone
        try:
            yield
        finally:
            manager.policy = self.policy
            used = 0 if name is None else draft.assigned.get(name, 0)
            if name is not None and used and name not in draft.idle:
                draft.idle[name] = self._smt.siblings_of(used)
            claim = used | (draft.idle[name] if name is not None and used else 0)
            is_passed_on = bool(used & draft.reusable)
            draft.default = default & ~claim
            draft.reusable = reusable | claim if is_passed_on else reusable & ~claim
            self.parked &= ~claim


def _owners(pod: Pod) -> Iterator[tuple[str, int]]:
    """The containers that are to own CPUs, with their number."""
    if not pod.has_pod_level_resources:
        for container in pod.all_containers:
            if count := guaranteed_cpus(pod, container):
                yield container.name, count
