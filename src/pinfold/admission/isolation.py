"""Exclusive CPUs that the kernel was booted to isolate: preferred, or required.

A kubelet ignores them.  Here the allocation, which is the kubelet's, is shown other candidates:
those that are isolated, and with ``prefer`` those that are not where they are too few.  The order
of calls, for one pod: :func:`isolation_refusal`, then :func:`isolated_uses`, and each of these is a
wish of the CPU manager, until one admits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.cpu_manager import Asked, Shown
from pinfold.admission.refusal import INVALID_ANNOTATION, UnmetWishError
from pinfold.core.cpu.static_policy import CPUAllocation
from pinfold.core.pod.annotation import CONTAINER, POD, AnnotationError
from pinfold.core.pod.annotations import ISOLATED_CPUS, NEVER, PREFER, REQUIRE
from pinfold.core.pod.pod import Pod, exclusive_requests
from pinfold.core.values.cpuset import CPUSet

_NOT_BOOTED: Final = "but the kernel was booted without any (isolcpus=, nohz_full=)"


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
        return any(isolated_wish(self, pod, name) != NEVER for name in exclusive_requests(pod))


class IsolatedUse(Struct, frozen=True):
    """What the containers of a pod want of the isolated CPUs, by name: a wish of the CPU manager.

    With ``prefer`` a container is shown the isolated ones if they are enough, else the others if
    those are: one on some of both would have its threads balanced on some of its CPUs only.  Where
    whole cores are given, they are isolated as a whole or not at all.  ``preferred`` is False where
    these wishes are passed over, so that they cost the pod nothing.
    """

    cpus: CPUSet
    wishes: Mapping[str, str]
    preferred: bool = True

    def narrow(self, shown: Shown, asked: Asked) -> Shown:
        """See :class:`~pinfold.admission.cpu_manager.CPUWish`."""
        wishes = {self._wish(name) for name in asked.names}
        if REQUIRE in wishes:
            wishes.discard(PREFER)
        if len(wishes) > 1:
            raise UnmetWishError(
                "topologyManagerScope: pod aligns all containers of a pod at once, and only some "
                f"of them are to have isolated CPUs; say {ISOLATED_CPUS.key()} for all of them, or "
                "use scope container"
            )
        wish = next(iter(wishes), None)
        if wish is None:
            return shown
        isolated, others = _sides(shown, self.cpus.mask)
        if wish == PREFER:
            enough = (side for side in (isolated, others) if side.bit_count() >= asked.count)
            return replace(shown, cpus=next(enough, shown.cpus))
        free = (shown.cpus & self.cpus.mask).bit_count()
        shortage = self._shortage(asked, free) if free < asked.count else None
        return replace(shown, cpus=isolated, shortage=shortage)

    def notes(self, given: Mapping[str, CPUAllocation]) -> tuple[str, ...]:
        """See :class:`~pinfold.admission.cpu_manager.CPUWish`."""
        why = f"too few of {self.cpus} were free" if self.preferred else f"{self.cpus} did not do"
        return tuple(
            f"not on isolated CPUs: {why} for container {name}"
            for name, wish in self.wishes.items()
            if wish == PREFER and name in given and not given[name].cpus <= self.cpus
        )

    def _wish(self, name: str) -> str | None:
        wish = self.wishes.get(name)
        return wish if wish == REQUIRE or self.preferred else None

    def _shortage(self, asked: Asked, free: int) -> UnmetWishError:
        if not self.cpus:
            return UnmetWishError(f"isolated CPUs are required for {asked.who}, {_NOT_BOOTED}")
        return UnmetWishError(
            f"isolated CPUs are required, but only {free} of the {asked.count} for {asked.who} are "
            f"free (isolated: {self.cpus}); end what runs there, ask for fewer CPUs, or say "
            f"{PREFER} instead of {REQUIRE}"
        )


def _sides(shown: Shown, isolated: int) -> tuple[int, int]:
    """The candidates that are isolated, and those that are not (all of them bitmasks)."""
    sides = shown.cpus & isolated, shown.cpus & ~isolated
    if not shown.policy.options.full_pcpus_only:
        return sides
    torn = shown.policy.reserved_cores.mask
    for core in shown.policy.topology.cores.values():
        if core & isolated and core & ~isolated:
            torn |= core
    return sides[0] & ~torn, sides[1] & ~torn


def isolated_wish(isolation: Isolation | None, pod: Pod, name: str) -> str:
    """What holds for a container that is to own CPUs: ``never``, ``prefer`` or ``require``."""
    if isolation is None:
        return NEVER
    said = ISOLATED_CPUS.of(pod.annotations, name)
    return isolation.use if said is None else said


def isolation_refusal(
    isolation: Isolation | None, pod: Pod, *, exclusive: bool = True, complete: bool = True
) -> UnmetWishError | None:
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
        return UnmetWishError(str(error), INVALID_ANNOTATION)
    owners = set(exclusive_requests(pod) if exclusive else ())
    for holder, wish in said.items():
        if wish != REQUIRE:
            continue
        what = f"annotation {ISOLATED_CPUS.key(holder)}: isolated CPUs are required"
        if not isolation.cpus:
            return UnmetWishError(f"{what}, {_NOT_BOOTED}")
        if complete and not (owners if holder == POD else owners & {holder[len(CONTAINER) :]}):
            return UnmetWishError(
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
    for name in exclusive_requests(pod):
        wish = isolated_wish(isolation, pod, name)
        if wish == REQUIRE or (wish == PREFER and isolation.cpus):
            wishes[name] = wish
    if not wishes:
        return (None,)
    use = IsolatedUse(isolation.cpus, wishes)
    return (use, replace(use, preferred=False)) if PREFER in wishes.values() else (use,)


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
