"""Containers that have CPUs of their own while their load asks for it.

They are decided about as the static policy would, and start in the shared pool all the same.  While
they share, their whole CPUs are charged: nobody else is admitted on them, and which ones they are
is open.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from pinfold.admission.refusal import INVALID_ANNOTATION, UnmetWishError
from pinfold.admission.smt_isolation import SMTIsolation, smt_wish
from pinfold.core.cpu.allocation import lowest_bits
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.annotation import CONTAINER, AnnotationError
from pinfold.core.pod.annotations import LOAD_DRIVEN
from pinfold.core.pod.pod import Pod, exclusive_requests
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Ledger


class LoadDrivenPod(Struct, frozen=True):
    """A pod, and those of its containers that have their CPUs by load."""

    pod: Pod
    names: frozenset[str]

    def counts(self) -> dict[str, int]:
        """How many CPUs each of them may have, by name."""
        asked = exclusive_requests(self.pod)
        return {name: count for name, count in asked.items() if name in self.names}

    def by_number(self, ledger: Ledger, name: str, free: CPUSet) -> CPUSet:
        """As many CPUs as it is charged, wherever they are; fewer where fewer are free."""
        held = ledger.assignments.get(self.pod.uid, {})
        ended = {one.name for one in self.pod.init_containers if not one.is_sidecar}
        reused = CPUSet.union_of(cpus for other, cpus in held.items() if other in ended)
        reused -= CPUSet.union_of(cpus for other, cpus in held.items() if other not in ended)
        count = self.counts().get(name, 0)
        mask = lowest_bits(reused.mask, count)
        return CPUSet.from_mask(mask | lowest_bits(free.mask, count - mask.bit_count()))


def load_driven_containers(pod: Pod) -> tuple[str, ...]:
    """Those that would own CPUs, and are to have them by load.

    An init container that ends is none: it runs once, and is not waited for.
    """
    ended = {one.name for one in pod.init_containers if not one.is_sidecar}
    return tuple(
        name
        for name in exclusive_requests(pod)
        if name not in ended and LOAD_DRIVEN.of(pod.annotations, name)
    )


def load_driven_refusal(
    pod: Pod, smt: SMTIsolation | None, *, heeded: bool
) -> UnmetWishError | None:
    """Why a pod cannot run here whatever is free.

    Args:
        pod: the pod.
        smt: the node's cores for those who are alone on theirs.
        heeded: the node gives out CPUs by load.
    """
    if not heeded:
        return None
    try:
        LOAD_DRIVEN.said(pod.annotations, {one.name for one in pod.all_containers})
    except AnnotationError as error:
        return UnmetWishError(str(error), INVALID_ANNOTATION)
    for name in load_driven_containers(pod):
        for other in _others(pod, smt, name):
            return UnmetWishError(
                f"annotation {LOAD_DRIVEN.key(CONTAINER + name)}: a container whose CPUs come and "
                f"go with its load cannot be {other} as well; say one of the two"
            )
    return None


def shares_by_load(owner: Owner, count: int) -> str:
    """Why a container cannot be resized that is in the shared pool by its load."""
    return (
        f"{owner} has its CPUs by load, and shares the pool now, charged with {count}: it can be "
        "resized while it has CPUs of its own, or its pod be started anew with another number"
    )


def _others(pod: Pod, smt: SMTIsolation | None, name: str) -> Iterator[str]:
    if name in pod.mixed:
        yield "mixed"
    if smt_wish(smt, pod, name):
        yield "SMT-isolated"
