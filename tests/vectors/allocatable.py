"""Replays ``allocatable`` cases: capacity, reservations, thresholds and what is left for pods."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pinfold.core.kubelet.eviction import EvictionError, Threshold, parse_thresholds
from pinfold.core.kubelet.node_allocatable import (
    AllocatableError,
    MachineCapacity,
    allocatable_reservation,
    check_allocatable,
    enforced_limits,
    machine_capacity,
    node_allocatable,
    node_capacity,
    parse_reserved,
    pods_cgroup,
)
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.pod import Resources
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from tests.vectors import Case, Outcome

KINDS = {"node", "reserved_parse", "eviction_parse"}
Row = tuple[str, object, object]


def claims(case: Case) -> bool:
    """A node, or the parsing of one of its maps."""
    return case.get("kind") in KINDS and isinstance(case.get("in"), dict)


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:  # noqa: ARG001 - contract
    """Compute every recorded field and compare."""
    kinds = {"node": _node, "reserved_parse": _reserved, "eviction_parse": _eviction}
    problems = [
        f"{name}: want {want!r}, got {got!r}"
        for name, got, want in kinds[case["kind"]](case)
        if got != want
    ]
    return Outcome(passed=not problems, detail="; ".join(problems))


def _reserved(case: Case) -> Iterator[Row]:
    try:
        parsed, error = _texts(parse_reserved(case["in"])), None
    except AllocatableError as refused:
        parsed, error = None, str(refused)
    yield "error", error, case["error"]
    yield "out", parsed, case["out"]


def _eviction(case: Case) -> Iterator[Row]:
    try:
        thresholds, error = parse_thresholds(case["in"]), None
    except EvictionError as refused:
        thresholds, error = (), str(refused)
    yield "error", error, case["error"]
    yield "out", [_fields(t) for t in thresholds], case.get("out") or []
    for threshold in thresholds:
        key = "quantity_of_8345264128"
        yield key, threshold.of(8345264128).canonical(), case[key]


def _fields(threshold: Threshold) -> dict[str, Any]:
    share = threshold.percentage
    return {
        "operator": "LessThan",
        # Recorded from a 32-bit float: it shows seven digits.
        "percentage": "NaN" if math.isnan(share) else float(f"{share:.7g}"),
        "quantity": None if threshold.quantity is None else threshold.quantity.canonical(),
        "signal": threshold.signal,
    }


def _node(case: Case) -> Iterator[Row]:
    given, want = case["in"], case["out"]
    storage, pids = given.get("ephemeral_storage"), given.get("pid")
    devices = given.get("device_plugin") or {}
    machine = MachineCapacity(
        cpus=given["num_cores"],
        memory_bytes=given["memory_bytes"],
        hugepages={p["page_size_kb"] * 1024: p["num_pages"] for p in given["hugepages"]},
        ephemeral_storage=None if storage is None else Quantity.parse(storage),
        pids=None if pids is None else int(pids),
        device_capacity=_quantities(devices.get("capacity")),
        device_allocatable=_quantities(devices.get("allocatable")),
    )
    config = NodeConfig(
        reserved_system_cpus=CPUSet(range(given["reserved_cpus_count"])),
        kube_reserved=parse_reserved(given["kube_reserved"] or {}),
        system_reserved=parse_reserved(given["system_reserved"] or {}),
        eviction_hard=given["eviction_hard"] or {},
        max_pods=given["max_pods"],
        pods_per_core=given["pods_per_core"],
    )
    thresholds = [_fields(t) for t in parse_thresholds(config.eviction_hard)]
    yield "thresholds", thresholds, want["thresholds"]
    yield "capacity", _texts(machine_capacity(machine)), want["capacity"]
    yield "absolute", _texts(enforced_limits(machine, config)), want["absolute"]
    yield "reservation", _texts(allocatable_reservation(machine, config)), want["reservation"]
    yield "node_capacity", _texts(node_capacity(machine, config)), want["node_capacity"]
    yield "node_allocatable", _texts(node_allocatable(machine, config)), want["node_allocatable"]
    yield "invalid", _refused(machine, config), _resources(want["invalid"] or [])
    cgroup, limit = pods_cgroup(machine, config)
    fields = {
        "cpu_period": cgroup.cpu_period,
        "cpu_quota": cgroup.cpu_quota,
        "cpu_shares": cgroup.cpu_shares,
        "cpu_weight": cgroup.cpu_weight,
        "hugepage_limit": {str(size): pages for size, pages in cgroup.hugepage_limits.items()},
        "memory": cgroup.memory,
        "pids": limit,
        "unified": None,
    }
    yield "enforced_cgroup", fields, want["enforced_cgroup"]


def _refused(machine: MachineCapacity, config: NodeConfig) -> list[str]:
    try:
        check_allocatable(machine, config)
    except AllocatableError as error:
        return _resources([str(error)])
    return []


def _resources(texts: list[str]) -> list[str]:
    """The resources that are named; the rest of the recorded texts are dumps of structures."""
    return sorted(name for text in texts for name in re.findall(r'Resource "([^"]+)"', text))


def _quantities(resources: Mapping[str, str] | None) -> Resources:
    return {name: Quantity.parse(text) for name, text in (resources or {}).items()}


def _texts(resources: Resources) -> dict[str, str]:
    return {name: quantity.canonical() for name, quantity in resources.items()}
