"""Work on few packages, so that the others idle: who moves where, and which packages are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import Holdings, MoveError, Owner
from pinfold.core.moves.rebalance import Rebalance, RebalanceOptions, plan_rebalance
from pinfold.core.values.cpuset import CPUSet

_TRIES: Final = 16
"""Sets of packages that are tried, those with most owners' CPUs first."""


class Gathered(Struct, frozen=True):
    """The CPUs of the packages that are kept, and the moves that lead there; maybe none."""

    kept: CPUSet
    moves: Rebalance


class Idle(Struct, frozen=True):
    """What has no work: CPUs, whole cores, and whole packages."""

    cpus: CPUSet
    cores: int
    packages: int


def gather(
    ledger: Holdings, topology: CPUTopology, options: RebalanceOptions, need: int
) -> Gathered | None:
    """The fewest packages on which all owners and the pool have room, with the moves to them.

    Nobody is worse off there by the other levels of the objective, and who may not move keeps his
    package.  None where no fewer will do than there are.

    Args:
        ledger: who has what.
        topology: the kubelet's view of the machine.
        options: what may move; with ``most_moved`` it may take several times.
        need: how many CPUs the shared pool is to have there.
    """
    packages = topology.sockets
    owned = CPUSet.union_of(
        cpus for containers in ledger.assignments.values() for cpus in containers.values()
    ).mask
    # On reserved CPUs the pool is only where it has no others.
    usable = (ledger.default - ledger.limits.reserved).mask | owned
    for kept in _candidates(packages, owned, ledger.limits.reserved.mask):
        if (kept & usable & ~options.moves.avoid.mask).bit_count() < owned.bit_count() + need:
            continue
        there = replace(options, gather=CPUSet.from_mask(kept))
        try:
            # Where not all may move at once, it has to lead there in several times.
            every = plan_rebalance(ledger, topology, replace(there, most_moved=None))
            if not _outside(ledger, every, kept):
                found = (
                    every if there.most_moved is None else plan_rebalance(ledger, topology, there)
                )
                return Gathered(there.gather, found)
        except MoveError:
            continue
    return None


def idle_parts(topology: CPUTopology, idle: CPUSet) -> Idle:
    """The whole cores and packages of CPUs on which nothing runs."""

    def whole(groups: Mapping[int, int]) -> int:
        return sum(group & ~idle.mask == 0 for group in groups.values())

    return Idle(idle, whole(topology.cores), whole(topology.sockets))


def _candidates(packages: Mapping[int, int], owned: int, reserved: int) -> Iterator[int]:
    """Sets of packages, the smallest first; those of reserved CPUs are always kept."""
    must = [one for one in packages.values() if one & reserved]
    others = [one for one in packages.values() if not one & reserved]
    others.sort(key=lambda one: -(one & owned).bit_count())
    for count in range(len(packages)):
        if not 0 <= count - len(must) <= len(others) or not count:
            continue
        for tries, chosen in enumerate(combinations(others, count - len(must))):
            if tries == _TRIES:
                break
            yield sum(must) + sum(chosen)


def _outside(ledger: Holdings, found: Rebalance, kept: int) -> int:
    """The owners' CPUs outside of some packages after these moves."""
    after = {wish.owner: wish.cpus.mask for wish in found.wishes}
    outside = 0
    for uid, containers in ledger.assignments.items():
        for name, cpus in containers.items():
            outside |= after.get(Owner(uid, name), cpus.mask) & ~kept
    return outside
