"""Exclusive CPUs that the kernel was booted to isolate: preferred, or required.

A kubelet ignores them.  Here the allocation, which is the kubelet's, is shown other candidates:
those that are isolated, and with ``prefer`` those that are not where they are too few.  The order
of calls, for one pod: :func:`isolation_refusal`, then :func:`isolated_uses`, and for each of these
:func:`using`, until one admits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from pinfold.admission.cpu_manager import CPUManager
from pinfold.admission.nearness import INVALID_ANNOTATION
from pinfold.core.pod.annotations import (
    CONTAINER,
    ISOLATED_CPUS,
    NEVER,
    POD,
    PREFER,
    REQUIRE,
    AnnotationError,
)
from pinfold.core.pod.pod import Container, Pod, guaranteed_cpus, pod_guaranteed_cpus
from pinfold.core.topology_manager.hints import AllocationError, ResourceHints, TopologyHint
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.core.values.cpuset import CPUSet

_ALL: Final = -1
_NOT_BOOTED: Final = "but the kernel was booted without any (isolcpus=, nohz_full=)"


class IsolationError(AllocationError):
    """Isolated CPUs are required and cannot be had, or the wish is none."""

    def __init__(self, message: str, reason: str = UNEXPECTED_ADMISSION_ERROR) -> None:
        super().__init__(message)
        self.reason = reason


class Isolation(Struct, frozen=True):
    """The isolated CPUs of a node.

    Attributes:
        cpus: those that containers may own: of ``isolcpus`` and of ``nohz_full``.
        unbalanced: those of ``isolcpus``, where nothing balances load.
        use: what holds for a pod that does not say: ``never``, ``prefer`` or ``require``.
    """

    cpus: CPUSet = CPUSet()
    unbalanced: CPUSet = CPUSet()
    use: str = NEVER

    def shared(self, pool: CPUSet, pods: Iterable[Pod]) -> CPUSet:
        """What of a shared pool is left to share while these pods are here.

        Where the node or one of them wants isolated CPUs for owners, these are others than isolated
        ones, if there are any.
        """
        if not self.unbalanced or not (self.use != NEVER or any(map(self._is_wanted_by, pods))):
            return pool
        return pool - self.unbalanced or pool

    def _is_wanted_by(self, pod: Pod) -> bool:
        return any(isolated_wish(self, pod, name) != NEVER for name, _ in _owners(pod))


class IsolatedUse(Struct, frozen=True):
    """What the containers of a pod want of the isolated CPUs, by name."""

    cpus: CPUSet
    wishes: Mapping[str, str]


def isolated_wish(isolation: Isolation | None, pod: Pod, name: str) -> str:
    """What holds for a container that is to own CPUs: ``never``, ``prefer`` or ``require``."""
    if isolation is None:
        return NEVER
    said = ISOLATED_CPUS.of(pod.annotations, name)
    return isolation.use if said is None else said


def isolation_refusal(
    isolation: Isolation | None, pod: Pod, *, exclusive: bool = True, complete: bool = True
) -> IsolationError | None:
    """Why a pod cannot run here whatever is free.

    Args:
        isolation: the node's; None where it ignores isolation as a kubelet does.
        pod: the pod.
        exclusive: the node gives out exclusive CPUs.
        complete: all its containers are known, so that others must not be named.
    """
    if isolation is None:
        return None
    names = {one.name for one in pod.all_containers}
    try:
        said = ISOLATED_CPUS.said(pod.annotations, names if complete else None)
    except AnnotationError as error:
        return IsolationError(str(error), INVALID_ANNOTATION)
    owners = {name for name, _ in _owners(pod)} if exclusive else set()
    for holder, wish in said.items():
        if wish != REQUIRE:
            continue
        what = f"annotation {ISOLATED_CPUS.key(holder)}: isolated CPUs are required"
        if not isolation.cpus:
            return IsolationError(f"{what}, {_NOT_BOOTED}")
        if complete and not (owners if holder == POD else owners & {holder[len(CONTAINER) :]}):
            return IsolationError(
                f"{what}, but there are no exclusive CPUs to place; let the pod be Guaranteed with "
                "whole CPUs, on a node with the static policy"
            )
    return None


def isolated_uses(isolation: Isolation | None, pod: Pod) -> tuple[IsolatedUse | None, ...]:
    """The ways to admit a pod, to be tried in order until one admits; the last one's answer holds.

    What is only preferred must not cost a pod its admission: then it is tried without, too.
    """
    if isolation is None:
        return (None,)
    wishes = {}
    for name, _ in _owners(pod):
        wish = isolated_wish(isolation, pod, name)
        if wish == REQUIRE or (wish == PREFER and isolation.cpus):
            wishes[name] = wish
    if not wishes:
        return (None,)
    required = {name: wish for name, wish in wishes.items() if wish == REQUIRE}
    use = IsolatedUse(isolation.cpus, wishes)
    return (use,) if required == wishes else (use, IsolatedUse(isolation.cpus, required))


def grow_attempts(  # noqa: PLR0913, PLR0917 - who grows, by how much, and what there is
    isolation: Isolation | None, pod: Pod, name: str, held: CPUSet, more: int, free: CPUSet
) -> tuple[CPUSet, ...]:
    """What a running container may grow into, to be tried in order until it can.

    With ``prefer`` it stays on its side, isolated or not, if it can.

    Args:
        isolation: the node's; None where isolation is ignored.
        pod: the pod.
        name: the container.
        held: what it has.
        more: how many it is to get besides.
        free: what is free.
    """
    wish = isolated_wish(isolation, pod, name)
    if isolation is None or wish == NEVER:
        return (free,)
    isolated = free & isolation.cpus
    if wish == REQUIRE:
        return (isolated,)
    side = isolated if held <= isolation.cpus else free - isolated
    return (side, free) if len(side) >= more else (free,)


def using(manager: CPUManager | None, use: IsolatedUse | None) -> CPUManager | None:
    """The CPU manager for one of :func:`isolated_uses`."""
    if manager is None or use is None or not use.wishes:
        return manager
    return IsolatingCPUManager(manager, use)


class IsolatingCPUManager(CPUManager):
    """A CPU manager that shows the policy only the CPUs that a container is to have.

    With ``prefer`` these are the isolated ones if they are enough, else the others if those are:
    a container on some of both would have its threads balanced on some of its CPUs only.
    """

    def __init__(self, manager: CPUManager, use: IsolatedUse) -> None:
        super().__init__(manager.policy, manager.transaction, manager.parked)
        self._use = use

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """See the base class."""
        wish = self._use.wishes.get(container.name)
        with self._showing(wish, guaranteed_cpus(pod, container)):
            return super().get_topology_hints(pod, container)

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """See the base class; containers that wish for different things are shown everything."""
        wishes = {self._use.wishes.get(name) for name, _ in _owners(pod)}
        wish = wishes.pop() if len(wishes) == 1 else None
        with self._showing(wish, pod_guaranteed_cpus(pod)):
            return super().get_pod_topology_hints(pod)

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """See the base class.

        Raises:
            IsolationError: isolated CPUs are required, and too few of them are free.
        """
        wish, count = self._use.wishes.get(container.name), guaranteed_cpus(pod, container)
        if wish == REQUIRE and container.name not in self.transaction.assigned:
            free = self._free & self._use.cpus.mask
            if free.bit_count() < count:
                raise IsolationError(self._shortage(container, count, free.bit_count()))
        with self._showing(wish, count):
            super().allocate(pod, container, affinity)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was preferred and could not be had."""
        return tuple(
            f"not on isolated CPUs: too few of {self._use.cpus} were free for container {name}"
            for name, wish in self._use.wishes.items()
            if wish == PREFER
            and name in self.allocations
            and not self.allocations[name].cpus <= self._use.cpus
        )

    def _shortage(self, container: Container, count: int, free: int) -> str:
        if not self._use.cpus:
            return f"isolated CPUs are required for container {container.name}, {_NOT_BOOTED}"
        return (
            f"isolated CPUs are required, but only {free} of the {count} for container "
            f"{container.name} are free (isolated: {self._use.cpus}); end what runs there, ask for "
            f"fewer CPUs, or say {PREFER} instead of {REQUIRE}"
        )

    @property
    def _free(self) -> int:
        free = self.transaction.default & ~self.policy.reserved.mask
        return free | self.transaction.reusable

    @contextmanager
    def _showing(self, wish: str | None, count: int) -> Iterator[None]:
        draft, shown = self.transaction, self._candidates(wish, count)
        hidden, reusable = draft.default & ~shown, draft.reusable & ~shown
        draft.default &= shown
        draft.reusable &= shown
        try:
            yield
        finally:
            draft.default |= hidden
            draft.reusable |= reusable

    def _candidates(self, wish: str | None, count: int) -> int:
        isolated, free = self._use.cpus.mask, self._free
        if wish == REQUIRE or (wish == PREFER and (free & isolated).bit_count() >= count):
            return isolated
        return ~isolated if wish == PREFER and (free & ~isolated).bit_count() >= count else _ALL


def _owners(pod: Pod) -> Iterator[tuple[str, int]]:
    """The containers that are to own CPUs, with their number."""
    if not pod.has_pod_level_resources:
        for container in pod.all_containers:
            if count := guaranteed_cpus(pod, container):
                yield container.name, count
