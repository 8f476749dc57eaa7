"""Exclusive CPUs without SMT: one thread of each core is used, its siblings stay idle.

The allocation is the kubelet's on the same machine with SMT switched off: it is shown the first
thread of each core of which all threads are free.  What it chooses is claimed with the siblings,
which are nobody's then.  The order of calls, for one pod: :func:`smt_refusal`, then
:func:`alone_on_cores`, a wish of the CPU manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.cpu_manager import Asked, Shown
from pinfold.admission.refusal import INVALID_ANNOTATION, UnmetWishError
from pinfold.core.cpu.static_policy import CPUAllocation, StaticPolicy
from pinfold.core.machine.machine import Machine
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.annotation import CONTAINER, POD, AnnotationError
from pinfold.core.pod.annotations import SMT_ISOLATE
from pinfold.core.pod.pod import Pod, exclusive_requests
from pinfold.core.values.cpuset import CPUSet

SMT_ISOLATION_ERROR: Final = "SMTIsolationError"
"""The admission reason where cores of its own are not to be had."""

NO_SMT: Final = "smt-isolate does nothing here: no core of this machine has a second thread to idle"


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

    @property
    def isolates_all(self) -> bool:
        """Whether containers with CPUs of their own are isolated unless they say otherwise."""
        return self.use and self.has_smt

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
        return min(left, 1000 * len(self.siblings)) if self.isolates_all else left


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
    smt: SMTIsolation | None, pod: Pod, *, complete: bool = True
) -> UnmetWishError | None:
    """Why a pod cannot run here whatever is free.

    Args:
        smt: the node's; None where it knows no such wish, as a kubelet.
        pod: the pod.
        complete: all its containers are known, so that others must not be named.
    """
    if smt is None:
        return None
    names = {one.name for one in pod.all_containers}
    try:
        said = SMT_ISOLATE.said(pod.annotations, names if complete else None)
    except AnnotationError as error:
        return UnmetWishError(str(error), INVALID_ANNOTATION)
    owners = set(() if smt.policy is None else exclusive_requests(pod))
    for holder, wish in said.items():
        mine = owners if holder == POD else owners & {holder[len(CONTAINER) :]}
        if wish and complete and not mine:
            return UnmetWishError(
                f"annotation {SMT_ISOLATE.key(holder)}: there are no exclusive CPUs whose siblings "
                "could stay idle; let the pod be Guaranteed with whole CPUs, on a node with the "
                "static policy",
                SMT_ISOLATION_ERROR,
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


def alone_on_cores(smt: SMTIsolation | None, pod: Pod) -> AloneOnCores | None:
    """What the containers of a pod want, and what those have that are alone; None: nobody can."""
    if smt is None or smt.policy is None:
        return None
    wishes = frozenset(name for name in exclusive_requests(pod) if smt_wish(smt, pod, name))
    return AloneOnCores(smt, smt.policy, wishes)


class AloneOnCores(Struct, frozen=True):
    """The containers of a pod that are to be SMT-isolated: a wish of the CPU manager.

    They are shown the machine without SMT.  What a container has already it keeps, with the
    siblings that stay idle for it, or without any.
    """

    smt: SMTIsolation
    policy: StaticPolicy
    wishes: frozenset[str]

    def narrow(self, shown: Shown, asked: Asked) -> Shown:
        """See :class:`~pinfold.admission.cpu_manager.CPUWish`."""
        alone = {self._is_alone(name, asked) for name in asked.names}
        if len(alone) > 1:
            raise UnmetWishError(
                "topologyManagerScope: pod aligns all containers of a pod at once, and only some "
                f"of them are to be SMT-isolated; say {SMT_ISOLATE.key()} for all of them, or use "
                "scope container",
                SMT_ISOLATION_ERROR,
            )
        if alone != {True}:
            return shown
        cpus = shown.cpus & self.smt.firsts(asked.free)
        if cpus.bit_count() < asked.count:
            raise UnmetWishError(
                f"SMT isolation: {asked.who} is to have {asked.count} cores for itself "
                f"(smt-isolate), and only {cpus.bit_count()} of the {len(self.smt.siblings)} that "
                "may be owned are free with all of their threads; a scheduler counts one CPU for "
                "each of them, and the node loses them all; end what runs there, ask for fewer "
                "CPUs, or do without smt-isolate",
                SMT_ISOLATION_ERROR,
            )
        return replace(shown, policy=self.policy, cpus=cpus, siblings=self.smt.siblings)

    def notes(self, given: Mapping[str, CPUAllocation]) -> tuple[str, ...]:
        """See :class:`~pinfold.admission.cpu_manager.CPUWish`."""
        in_vain = given.keys() & self.wishes and not self.smt.has_smt and not self.smt.use
        return (NO_SMT,) if in_vain else ()

    def _is_alone(self, name: str, asked: Asked) -> bool:
        if name in asked.draft.assigned:
            return name in asked.draft.idle
        return name in self.wishes and self.smt.has_smt
