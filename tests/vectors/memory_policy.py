"""Replays ``memorymanager.jsonl.gz``, kinds ``sequence`` and ``new``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.memory.memory import (
    Block,
    MemoryState,
    NodeMemory,
    NUMANodeState,
    default_machine_state,
)
from pinfold.core.memory.policy import MemoryTransaction, StaticMemoryPolicy
from pinfold.core.memory.reservation import STATIC, MemoryPolicyError, check_policy_name
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.pod import Pod
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint, numa_mask
from pinfold.core.values.cpuset import iter_bits
from pinfold.core.values.quantity import Quantity
from tests.vectors import Case, Outcome


def claims(case: Case) -> bool:
    """Tell the two kinds by their fields."""
    if case.get("kind") == "sequence":
        return "machine" in case and "ops" in case
    return case.get("kind") == "new" and "reserved_memory" in case


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    """Walk the operations, or build a memory manager."""
    del topologies
    return _sequence(case) if case["kind"] == "sequence" else _new(case)


def _new(case: Case) -> Outcome:
    error = ""
    try:
        check_policy_name(case["policy"])
        if case["policy"] == STATIC:
            StaticMemoryPolicy.create(
                # The recording has no sizes; a reservation beyond them is refused here.
                {node: NodeMemory(1 << 62) for node in case["numa_nodes"]},
                [
                    {"numaNode": item["numaNode"], "limits": _quantities(item["limits"])}
                    for item in case["reserved_memory"]
                ],
                _quantities(case["node_allocatable_reservation"]),
            )
    except MemoryPolicyError as failure:
        error = str(failure)
    possible = case["possible_errors"]
    return Outcome(error in possible, "" if error in possible else f"{error!r} not in {possible}")


def _quantities(texts: Mapping[str, str]) -> dict[str, Quantity]:
    return {name: Quantity.parse(text) for name, text in texts.items()}


def _sequence(case: Case) -> Outcome:
    nodes = {
        node["id"]: NodeMemory(
            node["memory"],
            {pool["page_size_kb"]: pool["num_pages"] for pool in node["hugepages"]},
            node["reserved"],
        )
        for node in case["machine"]["nodes"]
    }
    policy = StaticMemoryPolicy(nodes)
    state = MemoryState(default_machine_state(nodes))
    got: list[dict[str, Any]] = [{"state": document(state)}]
    for op in case["ops"]:
        transaction = MemoryTransaction(op["pod"], state)
        if op["op"] == "remove":
            policy.remove(transaction, op["container"])
            result: dict[str, Any] = {}
        else:
            result = _add(policy, transaction, op)
        state = transaction.state
        got.append(result | {"state": document(state)})
    for number, (mine, want) in enumerate(zip(got, case["results"], strict=True)):
        if mine != want:
            return Outcome(passed=False, detail=f"result {number}: want {want}, got {mine}")
    return Outcome(passed=True)


def _add(
    policy: StaticMemoryPolicy, transaction: MemoryTransaction, op: dict[str, Any]
) -> dict[str, Any]:
    pod = _pod(op)
    pod_hints = _listed(policy.pod_hints(transaction, pod))
    steps = []
    for fields, container in zip(op["containers"], pod.all_containers, strict=True):
        hints = _listed(policy.container_hints(transaction, pod, container))
        step = {"container": container.name, "hints": hints, "error": None}
        steps.append(step)
        try:
            policy.allocate(transaction, pod, container, _hint(fields["affinity"]))
        except AllocationError as error:
            step["error"] = str(error)
            break
    return {"pod_hints": pod_hints, "steps": steps}


def _pod(op: dict[str, Any]) -> Pod:
    def container(item: dict[str, Any]) -> dict[str, Any]:
        limits = item["resources"] if op["guaranteed"] else {}
        row = {
            "name": item["name"],
            "resources": {"requests": item["resources"], "limits": limits},
        }
        return row | ({"restartPolicy": "Always"} if item["sidecar"] else {})

    return pod_from_api(
        {
            "metadata": {"uid": op["pod"], "name": op["pod"]},
            "spec": {
                "initContainers": [container(c) for c in op["containers"] if c["init"]],
                "containers": [container(c) for c in op["containers"] if not c["init"]],
            },
        }
    )


def _hint(fields: dict[str, Any] | None) -> TopologyHint | None:
    if fields is None:
        return None
    mask = None if fields["mask"] is None else numa_mask(fields["mask"])
    return TopologyHint(mask, fields["preferred"])


def _listed(hints: Mapping[str, list[TopologyHint]] | None) -> dict[str, Any] | None:
    if hints is None:
        return None
    return {
        name: [{"mask": list(iter_bits(h.mask or 0)), "preferred": h.preferred} for h in of_name]
        for name, of_name in hints.items()
    }


def document(state: MemoryState) -> dict[str, Any]:
    """The state as the recording has it, the blocks of a container sorted by type."""
    return {
        "assignments": assignments_document(state.assignments),
        "machine": machine_document(state.machine),
    }


def assignments_document(
    assignments: Mapping[str, Mapping[str, tuple[Block, ...] | None] | None],
) -> dict[str, Any]:
    """Assignments as the recording has them."""
    return {
        uid: {name: blocks_document(blocks or ()) for name, blocks in (containers or {}).items()}
        for uid, containers in assignments.items()
    }


def machine_document(machine: Mapping[int, NUMANodeState | None]) -> dict[str, Any]:
    """A machine state as the recording has it."""
    return {
        str(node_id): {
            "numberOfAssignments": node.number_of_assignments,
            "memoryMap": {
                name: {
                    "total": table.total,
                    "systemReserved": table.system_reserved,
                    "allocatable": table.allocatable,
                    "reserved": table.reserved,
                    "free": table.free,
                }
                for name, table in (node.memory_map or {}).items()
                if table is not None
            },
            "cells": list(node.cells or ()),
        }
        for node_id, node in machine.items()
        if node is not None
    }


def blocks_document(blocks: tuple[Block, ...]) -> list[dict[str, Any]]:
    """Blocks as the recording has them, sorted by type."""
    return [
        {"numaAffinity": list(b.numa_affinity or ()), "type": b.type, "size": b.size}
        for b in sorted(blocks, key=lambda block: block.type)
    ]
