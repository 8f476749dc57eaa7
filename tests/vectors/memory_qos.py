"""Replays ``memory_qos`` cases: protected and throttled memory, and CPU shares, by QoS class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pinfold.core.kubelet.feature_gates import MEMORY_QOS
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import named_version
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.memory.protection import MemoryQoS, Protection, memory_qos
from pinfold.core.pod.cgroup_values import (
    MIN_SHARES,
    container_cgroup,
    milli_cpu_to_shares,
    pod_cgroup,
)
from pinfold.core.pod.pod import CPU, QOSClass, pod_requests
from pinfold.core.values.quantity import ZERO, Quantity
from tests.vectors import Case, Outcome
from tests.vectors.kubelet.pods import recorded_pod

Row = tuple[str, object, object]


def claims(case: Case) -> bool:
    """A list of pods, and what their cgroups are to have."""
    return case.get("kind") == "memory_qos"


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:  # noqa: ARG001 - contract
    """Compute every recorded field, as a kubelet of each recorded version, and compare."""
    problems = [
        f"{version} {name}: want {want!r}, got {got!r}"
        for version, field in ((case["version"], "want"), ("1.35", "want_1_35"))
        if field in case
        for name, got, want in _rows(case, _rules(case, version), case[field])
        if got != want
    ]
    return Outcome(passed=not problems, detail="; ".join(problems))


def _rules(case: Case, version: str) -> MemoryQoS | None:
    known = case["allocatable_memory"]
    config = NodeConfig(
        feature_gates={MEMORY_QOS: case["enforce"]},
        memory_reservation_policy=case["policy"],
        memory_throttling_factor=case["factor"],
        kubelet_version=named_version(version).version,
    )
    return memory_qos(config, Quantity.parse(known).value() if known else None)


def _rows(case: Case, rules: MemoryQoS | None, want: Mapping[str, Any]) -> Iterator[Row]:
    pods = [recorded_pod(one) for one in case["pod_list"]]
    everybody, burstable = (None, None) if rules is None else rules.of_classes(pods)
    milli = sum(
        pod_requests(pod).get(CPU, ZERO).milli_value()
        for pod in pods
        if pod.qos is QOSClass.BURSTABLE
    )
    yield "guaranteed", _fields(None, everybody), want["guaranteed"]
    yield "burstable", _fields(milli_cpu_to_shares(milli), burstable), want["burstable"]
    yield "besteffort", _fields(MIN_SHARES, None), want["besteffort"]
    for pod in pods:
        recorded = want["pods"][pod.uid]
        cgroup = pod_cgroup(pod)
        protected = None if rules is None else rules.of_pod(pod)
        got = _fields(
            cgroup.cpu_shares,
            protected,
            cpu_period=cgroup.cpu_period,
            cpu_quota=cgroup.cpu_quota,
            memory=cgroup.memory,
        )
        yield f"{pod.uid}.qos", pod.qos.value, recorded["qos"]
        yield f"{pod.uid}.pod", got, recorded["pod"]
        for container in pod.all_containers:
            limit = container_cgroup(pod, container, memory_capacity=1).memory_limit
            own = None if rules is None else rules.of_container(pod, container)
            yield (
                f"{pod.uid}.{container.name}",
                {"memory_limit": limit, "unified": _unified(own)},
                recorded["containers"][container.name],
            )


def _fields(shares: int | None, protection: Protection | None, **others: object) -> dict[str, Any]:
    unset = {"cpu_period": None, "cpu_quota": None, "memory": None}
    return {**unset, "cpu_shares": shares, "unified": _unified(protection), **others}


def _unified(protection: Protection | None) -> dict[str, str] | None:
    return (protection.unified or None) if protection is not None else None
