"""Machines, pods and admissions for the tests of the memory manager."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pinfold.core.machine.machine import HugepagePool, Machine
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.memory.memory import (
    MemoryState,
    MemoryTable,
    NodeMemory,
)
from pinfold.core.memory.policy import MemoryTransaction, StaticMemoryPolicy
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import TopologyHint, numa_mask
from pinfold.core.values.quantity import Quantity

GIB = 1 << 30
GUESS = TopologyHint(None, preferred=False)
PAGES = "hugepages-2Mi"
GIANT = "hugepages-1Gi"


def container(name: str, restart_policy: str | None = None, **amounts: str) -> Container:
    """A container with one CPU; ``pages`` and ``giant`` are 2 MiB and 1 GiB pages."""
    names = {"pages": PAGES, "giant": GIANT}
    both = {"cpu": Quantity(1)} | {
        names.get(name, name): Quantity.parse(amount) for name, amount in amounts.items()
    }
    return Container(name, both, both, restart_policy)


def pod(uid: str, *containers: Container, init: tuple[Container, ...] = ()) -> Pod:
    return Pod(uid=uid, name=uid, init_containers=init, containers=containers)


def policy(*sizes: int, giants: int = 0) -> StaticMemoryPolicy:
    """Nodes of so many GiB for pods, and 1 GiB of 2 MiB pages; ``giants`` are 1 GiB pages."""
    pages = {2048: 512, **({1 << 20: giants} if giants else {})}
    return StaticMemoryPolicy(
        {n: NodeMemory((size + 1 + giants) * GIB, pages) for n, size in enumerate(sizes)}
    )


def fresh(made: StaticMemoryPolicy, uid: str = "p") -> MemoryTransaction:
    return MemoryTransaction(uid, made.empty_state)


def table(state: MemoryState, node: int, resource: str = "memory") -> MemoryTable:
    return state.machine[node].table(resource)


def admit(
    made: StaticMemoryPolicy, state: MemoryState, what: Pod, *hints: TopologyHint
) -> MemoryState:
    transaction = MemoryTransaction(what.uid, state)
    answers = hints or (GUESS,) * len(what.all_containers)
    for one, hint in zip(what.all_containers, answers, strict=True):
        made.allocate(transaction, what, one, hint)
    return transaction.state


def hint(*nodes: int, preferred: bool = True) -> TopologyHint:
    return TopologyHint(numa_mask(nodes), preferred)


# Field name -> (required, what it holds), as the published schema of v1alpha2 has them.
AMOUNT = (True, str)
NAMED = {"name": (True, str), "value": (True, str)}
RESOURCE = {"name": (True, str), "capacity": AMOUNT, "allocatable": AMOUNT, "available": AMOUNT}
COST = {"name": (True, str), "value": (True, int)}
ZONE = {
    "name": (True, str),
    "type": (True, str),
    "parent": (False, str),
    "costs": (False, [COST]),
    "attributes": (False, [NAMED]),
    "resources": (False, [RESOURCE]),
}


TOPOLOGY = {
    "apiVersion": (True, str),
    "kind": (True, str),
    "metadata": (True, dict),
    "topologyPolicies": (True, [str]),
    "attributes": (False, [NAMED]),
    "zones": (True, [ZONE]),
}


def conform(value: Any, schema: Any, where: str = "$") -> None:
    if isinstance(schema, list):
        assert isinstance(value, list), where
        for index, item in enumerate(value):
            conform(item, schema[0], f"{where}[{index}]")
    elif isinstance(schema, dict):
        assert isinstance(value, dict), where
        assert value.keys() <= schema.keys(), f"{where}: unknown {value.keys() - schema.keys()}"
        for name, (required, inner) in schema.items():
            assert name in value or not required, f"{where}.{name} is missing"
            if name in value:
                conform(value[name], inner, f"{where}.{name}")
    else:
        assert type(value) is schema, f"{where}: {value!r}"


MIB = 1 << 20
GIB = 1 << 30


def machine_with_pages(pages: tuple[int, int] = (256, 128)) -> Machine:
    machine = parse_short_form("2s4c1t")
    nodes = tuple(
        replace(node, memory_bytes=8 * GIB, hugepages={2 * MIB: HugepagePool(pages[node.id], 0)})
        for node in machine.numa_nodes
    )
    return replace(machine, numa_nodes=nodes, hugepages={}, memory_bytes=16 * GIB)
