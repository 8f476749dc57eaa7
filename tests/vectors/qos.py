"""Replays ``qos`` cases: CPU conversions, QoS classes and the values of cgroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.memory.protection import MemoryQoS, Reservation
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.cgroup_values import (
    PodCgroup,
    container_cgroup,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    pod_cgroup,
    shares_to_weight,
    weight_to_shares,
)
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import Pod, Resources, guaranteed_cpus, pod_guaranteed_cpus
from tests.vectors import Case, Outcome

FIELDS = {
    "convert": {"milli_cpu", "period", "quota"},
    "weight": {"shares", "weight", "back_to_shares"},
    "pod": {"pod", "pod_config", "exclusive_cpus"},
}
PAGES = {"2MB": 2 << 20, "1GB": 1 << 30}


def claims(case: Case) -> bool:
    """A conversion, a weight, or a pod with its cgroup."""
    fields = FIELDS.get(str(case.get("kind")))
    return fields is not None and case.keys() >= fields


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:  # noqa: ARG001 - contract
    """Compute every recorded field and compare."""
    kinds = {"convert": _convert, "weight": _weight, "pod": _pod}
    problems = [
        f"{name}: want {want!r}, got {got!r}"
        for name, got, want in kinds[case["kind"]](case)
        if got != want
    ]
    return Outcome(passed=not problems, detail="; ".join(problems))


Row = tuple[str, object, object]


def _convert(case: Case) -> Iterator[Row]:
    milli = case["milli_cpu"]
    shares = milli_cpu_to_shares(milli)
    custom = milli_cpu_to_quota(milli, case["period"])
    yield "quota", milli_cpu_to_quota(milli), case["quota"]
    yield "quota_custom_period_gate", custom, case["quota_custom_period_gate"]
    yield "shares", shares, case["shares"]
    yield "weight", shares_to_weight(shares), case["weight"]


def _weight(case: Case) -> Iterator[Row]:
    weight = shares_to_weight(case["shares"])
    yield "weight", weight, case["weight"]
    yield "weight_v2impl", weight, case["weight_v2impl"]
    yield "back_to_shares", weight_to_shares(weight), case["back_to_shares"]


def _pod(case: Case) -> Iterator[Row]:
    original = pod_from_api(case["pod"])
    gate = case["pod_level_resources_gate"]
    pod = original if gate else replace(original, resources=None)
    if case["defaulted"]:
        pod = apply_defaults(pod)
        yield "effective_resources", _effective(pod), _same(case["effective_resources"], gate=gate)
    yield "qos", pod.qos.value, case["qos"]
    exclusive = {c.name: guaranteed_cpus(pod, c) for c in pod.all_containers}
    yield "exclusive_cpus", exclusive, case["exclusive_cpus"]
    yield "pod_guaranteed_cpus", pod_guaranteed_cpus(pod), case["pod_guaranteed_cpus"]
    yield "pod_config", _pod_fields(pod_cgroup(pod)), case["pod_config"]
    if "pod_config_no_cfs" in case:
        uncapped = pod_cgroup(pod, enforce_cpu_limits=False)
        yield "pod_config_no_cfs", _pod_fields(uncapped), case["pod_config_no_cfs"]
    if "pod_config_memory_qos" in case:
        unified = MemoryQoS(Reservation.UNTIERED).of_pod(pod).unified or None
        protected = _pod_fields(pod_cgroup(pod), unified)
        yield "pod_config_memory_qos", protected, case["pod_config_memory_qos"]
    for container in pod.all_containers:
        want = case["containers"][container.name]
        got = container_cgroup(
            pod,
            container,
            memory_capacity=case["memory_capacity"],
            page_sizes=tuple(PAGES.values()),
        )
        fields = {name: getattr(got, name) for name in want if name != "hugepage_limits"}
        pages = {name: got.hugepage_limits[size] for name, size in PAGES.items()}
        yield container.name, fields | {"hugepage_limits": pages}, want


def _pod_fields(cgroup: PodCgroup, unified: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "cpu_period": cgroup.cpu_period,
        "cpu_quota": cgroup.cpu_quota,
        "cpu_shares": cgroup.cpu_shares,
        "cpu_weight": cgroup.cpu_weight,
        "hugepage_limit": {str(size): limit for size, limit in cgroup.hugepage_limits.items()},
        "memory": cgroup.memory,
        "pids": None,
        "unified": unified,
    }


def _effective(pod: Pod) -> dict[str, Any]:
    sources = {c.name: c for c in pod.all_containers}
    rows = sources if pod.resources is None else sources | {"<pod>": pod.resources}
    return {
        name: {"requests": _texts(row.requests), "limits": _texts(row.limits)}
        for name, row in rows.items()
    }


def _same(recorded: dict[str, Any], *, gate: bool) -> dict[str, Any]:
    """Leave out what a kubelet with the gate off does not look at."""
    return {
        name: {field: row[field] or None for field in ("requests", "limits")}
        for name, row in recorded.items()
        if gate or name != "<pod>"
    }


def _texts(resources: Resources) -> dict[str, str] | None:
    return {name: str(quantity) for name, quantity in resources.items()} or None
