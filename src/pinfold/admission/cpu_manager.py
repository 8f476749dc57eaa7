"""The CPU manager as a hint provider of the topology manager, for one admission.

What a kubelet does not know of CPUs is a *wish*: the allocation is the kubelet's, and each wish
narrows what it is shown.  Hints and the allocation that follows them are shown the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.refusal import UnmetWishError
from pinfold.core.cpu.static_policy import (
    CPUAllocation,
    PodAllocation,
    PodTransaction,
    StaticPolicy,
)
from pinfold.core.kubelet.faults import (
    BUBBLE_LEAKS,
    CPUS_NOT_FREE,
    KubeletFault,
    UpstreamFaultError,
)
from pinfold.core.pod.pod import (
    CPU,
    Container,
    Pod,
    exclusive_requests,
    pod_guaranteed_cpus,
)
from pinfold.core.topology_manager.hints import AllocationError, ResourceHints, TopologyHint
from pinfold.core.values.cpuset import NO_CPUS, CPUSet
from pinfold.state.ledger import Ledger


class Shown(Struct, frozen=True):
    """What the static policy is shown of a machine.

    Attributes:
        policy: the one that chooses: the node's, or the same on other cores.
        cpus: bitmask of the candidates, which are free.
        siblings: for each candidate the bitmask of the CPUs that are claimed with it and stay idle;
            None: whoever gets them is not SMT-isolated.
        shortage: why an allocation would be in vain; hints are made all the same.
    """

    policy: StaticPolicy
    cpus: int
    siblings: Mapping[int, int] | None = None
    shortage: UnmetWishError | None = None


class Asked(Struct, frozen=True):
    """For whom CPUs are looked for: one container, or all that a pod has still to place.

    Attributes:
        who: as a message names it.
        names: the containers.
        count: how many CPUs they are to get.
        draft: what the pod has.
        free: bitmask of all CPUs that nobody has, with those that are offline.
    """

    who: str
    names: tuple[str, ...]
    count: int
    draft: PodTransaction
    free: int


class CPUWish(Protocol):
    """What the containers of a pod want of their exclusive CPUs."""

    def narrow(self, shown: Shown, asked: Asked) -> Shown:
        """What is left of what would be shown; as it is where nobody wishes.

        Raises:
            UnmetWishError: nothing can be shown to these containers.
        """

    def notes(self, given: Mapping[str, CPUAllocation]) -> tuple[str, ...]:
        """What was not binding and is not met, where this is what the containers were given."""


class CPUManager:
    """Works on one pod's draft.

    ``allocations`` is what it has given so far, by container; ``whole`` is what it has given to the
    pod as a whole, of which the others are parts then.  ``fault`` is set once the kubelet itself
    would have had no valid answer, ``leaked`` are CPUs that it would never give back then.
    ``parked`` is the bitmask of CPUs that are nobody's and offline, so that they can only stay
    idle.  Each of the ``wishes`` sees what those before left.
    """

    def __init__(
        self,
        policy: StaticPolicy,
        transaction: PodTransaction,
        parked: int = 0,
        wishes: tuple[CPUWish, ...] = (),
    ) -> None:
        self.policy = policy
        self.transaction = transaction
        self.parked = parked
        self.wishes = wishes
        self.allocations: dict[str, CPUAllocation] = {}
        self.whole: PodAllocation | None = None
        self.fault: KubeletFault | None = None
        self.leaked = NO_CPUS
        self._hinted: Shown | None = None

    def own_of(self, pod: Pod) -> dict[str, CPUAllocation]:
        """What it has given to containers for themselves."""
        if self.whole is None:
            return self.allocations
        counts = {one.name: self.policy.exclusive_cpus(pod, one) for one in pod.all_containers}
        return {name: one for name, one in self.allocations.items() if counts.get(name)}

    @property
    def notes(self) -> tuple[str, ...]:
        """Wishes that were not binding and are not met."""
        if not self.wishes:
            return ()
        return tuple(note for wish in self.wishes for note in wish.notes(self.allocations))

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The NUMA affinities that could serve a container (resource ``cpu``).

        Raises:
            UnmetWishError: what it wishes for cannot be had.
        """
        shown = self._hinted = self._show(pod, container)
        return _named(shown.policy.container_hints(self._view(shown), pod, container))

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The NUMA affinities that could serve the whole pod.

        Raises:
            UnmetWishError: what it wishes for cannot be had.
        """
        shown = self._hinted = self._show(pod)
        return _named(shown.policy.pod_hints(self._view(shown), pod))

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Give the container its exclusive CPUs, if it is to have any; raises AllocationError."""
        draft, name = self.transaction, container.name
        is_new = name not in draft.assigned
        shown = self._hinted
        if shown is None or not is_new:
            shown = self._show(pod, container)
        if shown.shortage is not None:
            raise shown.shortage
        view = self._view(shown)
        try:
            allocation = shown.policy.allocate(view, pod, container, affinity)
        except UpstreamFaultError as error:
            raise self._refusal(error.fault, str(error)) from None
        if allocation is None:
            return
        if allocation.not_free:
            raise self._refusal(
                CPUS_NOT_FREE,
                f"the kubelet would hand out CPUs {allocation.not_free}, which are not free",
            )
        if is_new and shown.siblings is not None:
            idle = CPUSet.union_of(CPUSet.from_mask(shown.siblings[cpu]) for cpu in allocation.cpus)
            draft.idle[name] = idle.mask
            allocation = replace(allocation, idle=idle)
        claim, is_passed_on = allocation.claim.mask, bool(allocation.cpus.mask & view.reusable)
        draft.default &= ~claim
        draft.reusable = draft.reusable | claim if is_passed_on else draft.reusable & ~claim
        self.parked &= ~claim
        self.allocations[name] = allocation

    def allocate_pod(self, pod: Pod, affinity: TopologyHint) -> None:
        """Give the pod its CPUs as a whole, if it is to have any; raises AllocationError."""
        draft, before = self.transaction, self.transaction.bubble
        view = self._view(self._hinted or self._show(pod))
        try:
            given = self.policy.allocate_pod(view, pod, affinity)
        except UpstreamFaultError as error:
            raise self._refusal(error.fault, str(error)) from None
        except AllocationError:
            if view.bubble & ~before:
                self.fault, self.leaked = BUBBLE_LEAKS, CPUSet.from_mask(view.bubble)
            raise
        if given is None:
            return
        if given.not_free:
            raise self._refusal(
                CPUS_NOT_FREE,
                f"the kubelet would hand out CPUs {given.not_free}, which are not free",
            )
        draft.default &= ~view.bubble
        draft.bubble, draft.assigned = view.bubble, view.assigned
        self.parked &= ~view.bubble
        self.whole = given
        self.allocations.update(given.containers)

    def _show(self, pod: Pod, container: Container | None = None) -> Shown:
        """What is shown for a container, or for the pod as a whole."""
        draft = self.transaction
        free = draft.default & ~self.policy.reserved.mask | draft.reusable
        shown = Shown(self.policy, free & ~self.parked)
        if self.wishes:
            free |= self.parked
            asked = self._asked_by_all(pod, free)
            if container is not None:
                asked = self._asked_by(pod, container.name, free)
            for wish in self.wishes:
                shown = wish.narrow(shown, asked)
        return shown

    def _asked_by(self, pod: Pod, name: str, free: int) -> Asked:
        draft = self.transaction
        count = 0 if name in draft.assigned else exclusive_requests(pod).get(name, 0)
        return Asked(f"container {name}", (name,), count, draft, free)

    def _asked_by_all(self, pod: Pod, free: int) -> Asked:
        assigned, owners = self.transaction.assigned, tuple(exclusive_requests(pod))
        held = 0
        for cpus in assigned.values():
            held |= cpus & ~self.transaction.reusable
        names = tuple(name for name in owners if name not in assigned) or owners
        count = pod_guaranteed_cpus(pod) - held.bit_count()
        return Asked(f"pod {pod.name}", names, count, self.transaction, free)

    def _view(self, shown: Shown) -> PodTransaction:
        draft = self.transaction
        return replace(
            draft, default=draft.default & shown.cpus, reusable=draft.reusable & shown.cpus
        )

    def _refusal(self, fault: KubeletFault, problem: str) -> AllocationError:
        self.fault = fault
        return AllocationError(f"{problem} (kubelet fault {fault.slug})")


def _named(hints: list[TopologyHint] | None) -> ResourceHints | None:
    return None if hints is None else {CPU: hints}


def draft_for_pod(
    policy: StaticPolicy | None,
    ledger: Ledger,
    offline: CPUSet,
    pod: Pod,
    wishes: tuple[CPUWish, ...],
) -> CPUManager | None:
    """The manager to admit a whole pod, which keeps what it has; None under policy none.

    CPUs that are ``offline`` are given to nobody.
    """
    if policy is None:
        return None
    held = {name: cpus.mask for name, cpus in ledger.used_by(pod.uid).items()}
    free = _free(policy, ledger, offline)
    bubble = (ledger.bubble_of(pod.uid) or NO_CPUS).mask
    draft = PodTransaction(pod.uid, free, held, idle=_idle(ledger, pod, held), bubble=bubble)
    return CPUManager(policy, draft, ledger.default.mask & offline.mask, wishes)


def draft_for_container(  # noqa: PLR0913, PLR0917 - the node, the container, what its pod leaves
    policy: StaticPolicy | None,
    ledger: Ledger,
    offline: CPUSet,
    asking: tuple[Pod, Container],
    idle: Mapping[str, CPUSet],
    wishes: tuple[CPUWish, ...],
) -> CPUManager | None:
    """The manager for one container of a pod; None where it is to have no CPUs of its own.

    ``offline`` CPUs are given to nobody; ``idle`` ones, of the pod's containers that have ended,
    may be taken over by the container that is ``asking``.
    """
    pod, container = asking
    requested = 0 if policy is None else policy.exclusive_cpus(pod, container)
    if policy is None or requested == 0:
        return None
    held = {
        other: cpus.mask
        for other, cpus in ledger.used_by(pod.uid).items()
        if other not in idle and (other != container.name or len(cpus) == requested)
    }
    claims = ledger.assignments.get(pod.uid, {})
    # What it had in another number it gives back first (a resize).
    own = claims.get(container.name, CPUSet())
    reusable = 0 if container.name in held else own.mask
    for cpus in idle.values():
        reusable |= cpus.mask
    for other in held:
        reusable &= ~claims[other].mask
    free = _free(policy, ledger, offline)
    draft = PodTransaction(pod.uid, free, held, reusable & ~offline.mask, _idle(ledger, pod, held))
    parked = (ledger.default.mask | reusable) & offline.mask
    return CPUManager(policy, draft, parked, wishes)


def _idle(ledger: Ledger, pod: Pod, held: Mapping[str, int]) -> dict[str, int]:
    """The siblings that stay idle for those of a pod's containers that keep what they have."""
    return {name: cpus.mask for name, cpus in ledger.idle.get(pod.uid, {}).items() if name in held}


def _free(policy: StaticPolicy, ledger: Ledger, offline: CPUSet) -> int:
    """The CPUs that nobody has; of one that was offline at the start it may not be known where."""
    return ledger.default.mask & ~offline.mask & policy.topology.all
