"""Huge pages that come and go while a node is at work.

A kubelet reads the machine's pages when it starts: pages that are added later are not seen, and
pages that are taken away are still handed out.  Here the node follows: its capacity, what pods may
request, and the memory manager's tables become those of the machine as it is now, and every
container keeps what it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState
from pinfold.admission.model import allocatable_amounts, capacity_of
from pinfold.core.kubelet.node_allocatable import PODS, allocatable_reservation
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.machine.machine import HugepagePool, Machine, NUMANode
from pinfold.core.memory.hugepage_pools import size_text
from pinfold.core.memory.memory import (
    MemoryState,
    MemoryStateError,
    MemoryTable,
    NUMANodeState,
    default_machine_state,
)
from pinfold.core.memory.policy import StaticMemoryPolicy, create_memory_policy
from pinfold.core.memory.reservation import MemoryPolicyError
from pinfold.core.pod.hugepages import page_size
from pinfold.core.pod.pod import is_hugepages

PageCounts = Mapping[int | None, Mapping[int, int]]
"""NUMA node (None: the kernel tells no nodes) -> page size in bytes -> pages."""

_NO_PAGES: Final[Mapping[int, int]] = {}


class Followed(Struct, frozen=True):
    """The node and its state with the pages of now; ``problem`` is what does not fit, "" if all."""

    node: Node
    state: NodeState
    problem: str = ""


def pages_of(machine: Machine) -> PageCounts:
    """The pages that a machine was read with."""
    return {
        node.id: {size: pool.total for size, pool in node.hugepages.items()}
        for node in machine.numa_nodes
    } | {None: {size: pool.total for size, pool in machine.hugepages.items()}}


def with_pages(machine: Machine, counts: PageCounts) -> Machine:
    """The machine with other numbers of pages; the very same one where they are the same.

    Nodes and page sizes that the machine was not read with are passed over: the kernel has those
    that it was booted with.
    """
    nodes = tuple(_with_pages(node, counts.get(node.id, _NO_PAGES)) for node in machine.numa_nodes)
    totals: dict[int, int] = dict(counts.get(None, _NO_PAGES))
    if not totals:
        for node in nodes:
            for size, pool in node.hugepages.items():
                totals[size] = totals.get(size, 0) + pool.total
    whole = {
        size: _changed(pool, totals.get(size, pool.total))
        for size, pool in machine.hugepages.items()
    }
    if nodes == machine.numa_nodes and whole == machine.hugepages:
        return machine
    return replace(machine, numa_nodes=nodes, hugepages=whole)


def follow_pages(
    node: Node, state: NodeState, machine: Machine, view: KubeletView, config: NodeConfig
) -> Followed:
    """Let a node follow its machine.

    Where containers were given pages that the kernel has no more, they keep them in the books,
    nothing of the kind is free, and the problem says so.  Where ``reservedMemory`` does not fit the
    machine any more, the memory manager goes on with the numbers that it had.

    ``machine`` and ``view`` are those of now.
    """
    capacity = capacity_of(machine, view)
    amounts = allocatable_amounts(capacity, config)
    del amounts[PODS]
    node = replace(node, allocatable=amounts)
    if node.memory_policy is None or state.memory is None:
        return Followed(node, state)
    try:
        policy = create_memory_policy(
            config, view, allocatable_reservation(capacity, config), node.memory_policy.rules
        )
    except MemoryPolicyError as error:
        return Followed(node, state, f"{error}; until then memory is given as before")
    if policy is None:
        return Followed(node, state)
    node = replace(node, memory_policy=policy)
    try:
        memory = MemoryState.of(policy.nodes, state.memory.assignments, state.memory.bubbles)
    except MemoryStateError as error:
        memory = _overdrawn(state.memory, policy)
        problem = f"{error.problem}; {_remedy(memory)}"
        return Followed(node, replace(state, memory=memory), problem)
    return Followed(node, replace(state, memory=memory))


def _with_pages(node: NUMANode, pages: Mapping[int, int]) -> NUMANode:
    pools = {
        size: _changed(pool, pages.get(size, pool.total)) for size, pool in node.hugepages.items()
    }
    return node if pools == node.hugepages else replace(node, hugepages=pools)


def _changed(pool: HugepagePool, total: int) -> HugepagePool:
    if total == pool.total:
        return pool
    return HugepagePool(total, max(0, min(pool.free + total - pool.total, total)))


def _remedy(memory: MemoryState) -> str:
    """What brings back as much as was given; a container may have ended with it."""
    commands = []
    for node_id, node in memory.machine.items():
        for name in node.memory_map or {}:
            table = node.table(name)
            missing = table.reserved - table.allocatable
            if missing > 0 and is_hugepages(name) and (size := page_size(name)):
                where = f" --node {node_id}" if len(memory.machine) > 1 else ""
                pages = f"{size_text(size)} {-(-missing // size)}{where}"
                commands.append(f"`pinfold hugepages allocate {pages}`")
    return "end the pod, or " + (" and ".join(commands) or "release huge pages")


def _overdrawn(before: MemoryState, policy: StaticMemoryPolicy) -> MemoryState:
    """The tables of now, with what was given before still taken, though there is less."""
    now = default_machine_state(policy.nodes)
    machine: dict[int, NUMANodeState] = {}
    for node_id, old in before.machine.items():
        new = now.get(node_id)
        tables: dict[str, MemoryTable | None] = dict(old.memory_map or {})
        for name, table in (new.memory_map or {} if new is not None else {}).items():
            if table is not None:
                taken = old.table(name).reserved
                left = max(table.allocatable - taken, 0)
                tables[name] = replace(table, reserved=taken, free=left)
        machine[node_id] = replace(old, memory_map=tables)
    return MemoryState(machine, before.assignments, before.bubbles)
