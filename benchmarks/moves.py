"""Workloads of the move engine: 200 containers on 512 CPUs, two sockets, eight NUMA nodes.

``fragmented`` is what a stream of containers of 1 to 4 CPUs has left after 600 arrivals, with
some 20 CPUs free; ``scattered`` has the CPUs of every container all over the machine;
``settled`` has nothing that should move.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from pinfold.core.cpu.allocation import take_packed
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.rebalance import make_room, plan_rebalance
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Bounds, Ledger

Workload = Callable[[], Callable[[], object]]

CPUS: Final = 512
CONTAINERS: Final = 200
_RESERVED: Final = CPUSet([0, 256])
_LEFT: Final = 20


def _machine() -> CPUTopology:
    half = CPUS // 2
    return CPUTopology.from_rows(
        (cpu, cpu % half, cpu % half // 128, cpu % half // 32, cpu % half // 8)
        for cpu in range(CPUS)
    )


def _empty(topology: CPUTopology) -> Ledger:
    return Ledger.fresh("static", Bounds(topology.cpus, _RESERVED))


def _stream(topology: CPUTopology, sizes: tuple[int, ...]) -> Ledger:
    """Containers come until there are enough, and then one goes for each that comes."""
    chance = random.Random(11)  # noqa: S311 - the same machine every time, no secret
    ledger, live = _empty(topology), list[str]()
    for number in range(3 * CONTAINERS):
        count = chance.choice(sizes)
        while len(live) == CONTAINERS or len(ledger.default - _RESERVED) < count + _LEFT:
            ledger = ledger.without(live.pop(chance.randrange(len(live))))
        free = (ledger.default - _RESERVED).mask
        cpus = CPUSet.from_mask(take_packed(topology, free, count))
        ledger = ledger.with_assignment(f"p{number}", "c", cpus)
        live.append(f"p{number}")
    return ledger


def _scattered_ledger(topology: CPUTopology) -> Ledger:
    cpus = list(topology.cpus - _RESERVED)
    random.Random(11).shuffle(cpus)  # noqa: S311 - the same machine every time, no secret
    ledger = _empty(topology)
    for number in range(CONTAINERS):
        ledger = ledger.with_assignment(f"p{number}", "c", CPUSet(cpus[2 * number :][:2]))
    return ledger


def _fragmented() -> Callable[[], object]:
    topology = _machine()
    ledger = _stream(topology, (1, 2, 2, 3, 4))
    return lambda: plan_rebalance(ledger, topology)


def _settled() -> Callable[[], object]:
    topology = _machine()
    ledger = _stream(topology, (2,))
    return lambda: plan_rebalance(ledger, topology)


def _scattered() -> Callable[[], object]:
    topology = _machine()
    ledger = _scattered_ledger(topology)
    return lambda: plan_rebalance(ledger, topology)


def _room() -> Callable[[], object]:
    topology = _machine()
    ledger = _scattered_ledger(topology)
    node = CPUSet.from_mask(topology.numa_nodes[3])
    count = len(node & ledger.default) + 4
    return lambda: make_room(ledger, topology, count, [node])


def _steps() -> Callable[[], object]:
    topology = _machine()
    ledger = _scattered_ledger(topology)
    owners = [Owner(uid, "c") for uid in ledger.assignments]
    # Everybody gets the CPUs of the next one: one circle of all.
    wishes = [
        Wish(owner, ledger.assignments[other.pod_uid]["c"])
        for owner, other in zip(owners, [*owners[1:], owners[0]], strict=True)
    ]
    return lambda: plan_moves(ledger, wishes)


WORKLOADS: Final[dict[str, Workload]] = {
    "moves.rebalance.fragmented": _fragmented,
    "moves.rebalance.scattered": _scattered,
    "moves.rebalance.settled": _settled,
    "moves.make-room": _room,
    "moves.steps.circle": _steps,
}
