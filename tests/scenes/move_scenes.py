"""Nodes and wishes by chance."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st
from msgspec import Struct

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import MoveOptions, Owner, Wish
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Bounds, Ledger
from tests.scenes.move_simulator import Node

OWNERS = (
    *(Owner("p0", f"c{n}") for n in range(2)),
    *(Owner(f"p{n}", f"c{n}") for n in range(2, 5)),
)
_DELAYS = st.sampled_from([0.0, 0.0, 2.0, 10.0])


class Scene(Struct, frozen=True):
    """A ledger, and what some of its owners wish for."""

    ledger: Ledger
    wishes: tuple[Wish, ...]
    options: MoveOptions = MoveOptions()

    def node(self) -> Node:
        """The node before anything has moved."""
        owners = owners_of(self.ledger)
        least = {}
        for wish in self.wishes:
            old, new = owners[wish.owner], frozenset(wish.cpus)
            least[wish.owner] = (frozenset(wish.keep) | (old & new), min(len(old), len(new)))
        cores = []
        if self.options.whole_cores and self.options.topology is not None:
            cores = [frozenset(CPUSet.from_mask(m)) for m in self.options.topology.cores.values()]
        friends = [
            frozenset((one, other))
            for one, mine in owners.items()
            for other, theirs in owners.items()
            if one != other and one.pod_uid == other.pod_uid and mine & theirs
        ]
        node = Node(
            owners, frozenset(self.ledger.default), friends, self.options.mixed, least, cores
        )
        node.delays = {wish.owner: wish.delay for wish in self.wishes}
        return node

    def goal(self) -> dict[Owner, frozenset[int]]:
        """Who is to have what."""
        return owners_of(self.ledger) | {w.owner: frozenset(w.cpus) for w in self.wishes}


def owners_of(ledger: Ledger) -> dict[Owner, frozenset[int]]:
    return {
        Owner(uid, name): frozenset(cpus)
        for uid, containers in ledger.assignments.items()
        for name, cpus in containers.items()
    }


def ledger_of(machine: int, owners: Mapping[Owner, frozenset[int]], reserved: int = 1) -> Ledger:
    everything = CPUSet(range(machine))
    ledger = Ledger.fresh("static", Bounds(everything, CPUSet(range(reserved))))
    for owner, cpus in owners.items():
        ledger = ledger.with_assignment(owner.pod_uid, owner.container, CPUSet(cpus))
    return ledger


@st.composite
def scenes(draw: st.DrawFn, *, whole_cores: bool = False, most: int = 12) -> Scene:
    """Any placements before and afterwards; with ``whole_cores`` in pairs of CPUs."""
    width = 2 if whole_cores else 1
    atoms = draw(st.integers(3, most // width))
    who = st.integers(-1, draw(st.integers(1, min(5, atoms - 1))) - 1)
    moves = draw(st.sets(st.integers(0, 4), min_size=1))
    before = [-1, *draw(st.lists(who, min_size=atoms - 1, max_size=atoms - 1))]
    wanted = [-1, *draw(st.lists(who, min_size=atoms - 1, max_size=atoms - 1))]
    stay = {n for n in before if n not in moves}
    after = [
        b if b in stay and b != -1 else w if w in moves and w in before else -1
        for b, w in zip(before, wanted, strict=True)
    ]

    def cpus(row: list[int], n: int) -> frozenset[int]:
        return frozenset(
            width * at + i for at, who in enumerate(row) if who == n for i in range(width)
        )

    owners = {OWNERS[n]: cpus(before, n) for n in sorted({*before} - {-1})}
    wishes = tuple(
        Wish(OWNERS[n], CPUSet(cpus(after, n)), delay=draw(_DELAYS))
        for n in sorted({*after} & {*before} & moves)
    )
    # Who is to have nothing stays, and so its CPUs are nobody else's, and so on.
    for _ in OWNERS:
        moving = {wish.owner for wish in wishes}
        stays = frozenset().union(*(held for owner, held in owners.items() if owner not in moving))
        wishes = tuple(wish for wish in wishes if stays.isdisjoint(wish.cpus))
    mixed = draw(st.sets(st.sampled_from(sorted(owners)))) if owners else set()
    topology = CPUTopology.from_rows(
        (c, c - c % width, 0, 0 if c < atoms * width // 2 else 1, 0) for c in range(atoms * width)
    )
    options = MoveOptions(topology, whole_cores, mixed=frozenset(mixed))
    return Scene(ledger_of(atoms * width, owners, width), wishes, options)
