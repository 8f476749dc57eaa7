"""The wish to run near a device, in the topology manager.

It binds exclusive CPUs; whatever else is aligned with them follows.  The order of calls, for one
pod: :func:`near_refusal`, then :func:`near_attempts`, and for each of these
:meth:`NearAttempt.providers` behind all other providers, until one admits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.refusal import INVALID_ANNOTATION, UnmetWishError
from pinfold.core.cpu.static_policy import CPUAllocation
from pinfold.core.machine.locality import Localities, LocalityError
from pinfold.core.pod.annotation import AnnotationError
from pinfold.core.pod.annotations import PREFERRED, REQUIRED
from pinfold.core.pod.near_wishes import NearWish, NearWishes, wishes_of
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import (
    MAX_NUMA_ID,
    NUMAInfo,
    ResourceHints,
    TopologyHint,
    format_numa_mask,
    iter_numa_masks,
)
from pinfold.core.topology_manager.manager import TOPOLOGY_AFFINITY_ERROR, TopologyManager
from pinfold.core.topology_manager.policy import Policy, Scope
from pinfold.core.values.cpuset import CPUSet, iter_bits

MAX_NODES: Final = 16
"""Most NUMA nodes with which a topology manager is made for a wish where the node has none; there
are 2^16 combinations of so many, which takes a tenth of a second."""

_NOWHERE: Final = Localities()

Given = Mapping[str, CPUAllocation]
"""What the CPU manager has given so far, by container (``CPUManager.allocations``)."""


def near_refusal(
    localities: Localities | None, pod: Pod, *, placed: Collection[str] = (), complete: bool = True
) -> UnmetWishError | None:
    """Why a pod cannot run here whatever is free: the wish is none, or cannot be met.

    Args:
        localities: the devices of the machine; None on a node that knows no such wishes.
        pod: the pod.
        placed: the containers for which the node chooses CPUs.
        complete: as in :func:`wishes_of`.
    """
    if localities is None:
        return None
    try:
        wishes = wishes_of(pod, complete=complete)
    except AnnotationError as error:
        return UnmetWishError(str(error), INVALID_ANNOTATION)
    for wish in wishes or ():
        if wish.required and (problem := _problem(localities, wish)) is not None:
            return _not_near(wish, f": {problem}")
    if wishes is None or not complete:
        return None
    for name, wish in wishes.containers.items():
        if wish.required and name not in placed:
            return _without_cpus(wish, f"container {name}")
    if wishes.pod is not None and wishes.pod.required and not placed:
        return _without_cpus(wishes.pod, "the pod")
    return None


def _without_cpus(wish: NearWish, who: str) -> UnmetWishError:
    return _not_near(
        wish,
        f", but {who} has no CPUs of its own, which is what is placed; "
        "let it be Guaranteed with whole CPUs, on a node with the static policy",
    )


def _not_near(wish: NearWish, why: str) -> UnmetWishError:
    what = f"to be near {','.join(wish.devices)} is required"
    return UnmetWishError(what + why, TOPOLOGY_AFFINITY_ERROR)


def _problem(localities: Localities, wish: NearWish) -> str | None:
    try:
        return localities.resolve_all(wish.devices).unknown
    except LocalityError as error:
        return str(error)


def near_topology_manager(manager: TopologyManager, localities: Localities) -> TopologyManager:
    """The topology manager for a pod with wishes.

    Where the node has none, it is a best-effort one for each container, so that the CPU manager
    gets an affinity; a wish that is required is judged by :class:`Nearness`, not by the policy,
    which would judge everything else in the pod, too.  On a machine of more than
    :data:`MAX_NODES` NUMA nodes it is the node's own.
    """
    if manager.policy is not Policy.NONE or not _can_be_aligned(localities):
        return manager
    return TopologyManager(Policy.BEST_EFFORT, Scope.CONTAINER, NUMAInfo(tuple(localities.nodes)))


def _can_be_aligned(localities: Localities) -> bool:
    nodes = localities.nodes
    return len(nodes) <= MAX_NODES and max(nodes, default=0) <= MAX_NUMA_ID


def _place(localities: Localities, wish: NearWish) -> int | None:
    """The nodes of a wish; None where there is nothing to choose, or nothing is known."""
    if not wish.devices:
        return None
    try:
        nodes = localities.resolve_all(wish.devices).nodes
    except LocalityError:
        return None
    return None if nodes == localities.mask else nodes


def near_places(localities: Localities | None, pod: Pod) -> Mapping[str, tuple[int, CPUSet | None]]:
    """Where the containers of a pod want to be, by name; those that do not care are left out.

    Of each the NUMA nodes (a bitmask), and where that is required all CPUs that will do.
    """
    try:
        wishes = None if localities is None else wishes_of(pod, complete=False)
    except AnnotationError:
        wishes = None
    found: dict[str, tuple[int, CPUSet | None]] = {}
    if localities is None or wishes is None:
        return found
    for container in pod.all_containers:
        wish = wishes.of(container.name)
        nodes = None if wish is None else _place(localities, wish)
        if wish is not None and nodes is not None:
            found[container.name] = nodes, localities.cpus_at(nodes) if wish.required else None
    return found


class NearAttempt(Struct, frozen=True):
    """One way to admit a pod: a topology manager, and the wishes that are looked at.

    ``notes`` say which of the wishes cannot be met on this machine, and why.
    """

    manager: TopologyManager
    localities: Localities
    wishes: NearWishes | None = None
    notes: tuple[str, ...] = ()

    def providers(self, given: Given) -> tuple[Nearness, ...]:
        """The hint providers to put behind all others: one if there are wishes."""
        if self.wishes is None:
            return ()
        strict = self.manager.policy in {Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE}
        return (Nearness(self.localities, self.wishes, given, strict=strict),)


def near_attempts(
    manager: TopologyManager, localities: Localities | None, pod: Pod, *, complete: bool = True
) -> tuple[NearAttempt, ...]:
    """The ways to admit a pod, to be tried in order until one admits; the last one's answer holds.

    Without wishes that is the node's own manager alone.  Where its policy is strict, a wish that
    is only preferred must not cost the pod its admission: then it is tried without, too.  The
    pod is one that :func:`near_refusal` lets pass; for the arguments see there.
    """
    if localities is None:
        return (NearAttempt(manager, _NOWHERE),)
    plain = NearAttempt(manager, localities)
    try:
        wishes = wishes_of(pod, complete=complete)
    except AnnotationError as error:
        return (replace(plain, notes=(str(error),)),)
    if wishes is None:
        return (plain,)
    notes = list(near_notes(localities, wishes))
    near = near_topology_manager(manager, localities)
    if near.policy is Policy.NONE:
        notes.append(
            f"not kept near: the topology manager is off, and the {len(localities.nodes)} NUMA "
            f"nodes of this machine are more than the {MAX_NODES} for which one is made"
        )
    attempt = NearAttempt(near, localities, wishes, tuple(notes))
    if near.policy in {Policy.NONE, Policy.BEST_EFFORT} or all(wish.required for wish in wishes):
        return (attempt,)
    return (attempt, replace(attempt, wishes=wishes.only_required()))


def near_notes(localities: Localities, wishes: Iterable[NearWish]) -> Iterator[str]:
    """Yield which wishes cannot be met on this machine, and why."""
    for wish in wishes:
        if (problem := _problem(localities, wish)) is not None:
            yield f"not kept near: {problem}"


class Nearness:
    """The hint provider of one pod's wishes; resource ``near/NAME``.

    It is to allocate last, and takes nothing itself: a required wish refuses CPUs that the CPU
    manager had to take elsewhere.

    Args:
        localities: the devices of the machine.
        wishes: the pod's.
        given: the CPUs that the CPU manager has given.
        strict: the policy admits preferred hints only.
    """

    def __init__(
        self, localities: Localities, wishes: NearWishes, given: Given, *, strict: bool = False
    ) -> None:
        self.localities = localities
        self.wishes = wishes
        self.given = given
        self.strict = strict

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The nodes of a container's devices, if it wishes for any."""
        del pod
        wish = self.wishes.of(container.name)
        place = None if wish is None else _place(self.localities, wish)
        return None if wish is None or place is None else {wish.resource: self._hints(place)}

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The nodes that hold the devices of all containers."""
        wished: dict[str, None] = {}
        nodes = 0
        for container in pod.all_containers:
            wish = self.wishes.of(container.name)
            place = None if wish is None else _place(self.localities, wish)
            if wish is not None and place is not None:
                wished |= dict.fromkeys(wish.devices)
                nodes |= place
        return {NearWish(tuple(wished)).resource: self._hints(nodes)} if nodes else None

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Refuse what a required wish forbids; raises UnmetWishError."""
        del pod, affinity
        wish = self.wishes.of(container.name)
        allocation = self.given.get(container.name)
        if wish is None or not wish.required or allocation is None:
            return
        place = self.localities.resolve_all(wish.devices)
        near = self.localities.cpus_at(place.nodes or 0)
        found, all_of_them = len(allocation.cpus & near), len(allocation.cpus)
        if found < all_of_them:
            raise _not_near(
                wish,
                f", but only {found} of the {all_of_them} CPUs for "
                f"container {container.name} can be had at NUMA node "
                f"{format_numa_mask(place.nodes)}; end what runs there, ask for fewer CPUs, or say "
                f"{PREFERRED} instead of {REQUIRED}",
            )

    def allocate_pod(self, pod: Pod, affinity: TopologyHint) -> None:
        """Refuse what a required wish forbids of any part of the pod; raises UnmetWishError."""
        for container in pod.all_containers:
            self.allocate(pod, container, affinity)

    def _hints(self, nodes: int) -> list[TopologyHint]:
        """The hints for a set of nodes.

        Only this set: the merge then is always within it, and the CPU manager takes there what
        is free before it looks elsewhere.  A strict policy wants one and the same mask of all
        providers, so there every part of the set is as good.
        """
        if not self.strict:
            return [TopologyHint(nodes, preferred=True)]
        ids = list(iter_bits(nodes))
        masks = iter_numa_masks(ids) if len(ids) <= 8 else (1 << node for node in ids)
        return [TopologyHint(mask, preferred=True) for mask in masks]
