"""Replays ``static_lifecycle`` and ``hints`` cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinfold.core.cpu.choice import ReservationError
from pinfold.core.cpu.static_policy import (
    PodTransaction,
    SMTAlignmentError,
    StaticPolicy,
)
from pinfold.core.kubelet.faults import CPUS_NOT_FREE, UpstreamFaultError
from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS
from pinfold.core.kubelet.policy_options import PolicyOptionError, StaticPolicyOptions
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint, numa_mask
from pinfold.core.values.cpuset import CPUSet, iter_bits
from tests.vectors import Case, Outcome, version_of

GATES = {"CPUManagerPolicyAlphaOptions": True, "CPUManagerPolicyBetaOptions": True}


def claims(case: Case) -> bool:
    """A static policy with steps to walk, or a state to give hints for."""
    if "tm_policy" not in case:
        return False
    asks_for_hints = case.get("kind") == "cpu_hints" or "pod_hints" in case.get("want", {})
    return "steps" in case or asks_for_hints


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    """Build the policy and walk the steps, or ask for the hints."""
    topology = topologies[case["topo"]]
    try:
        policy = _policy(case, topology)
    except (PolicyOptionError, ReservationError) as error:
        return _compare({"new_err": str(error)}, case["want"])
    if "steps" in case:
        return _lifecycle(case, policy)
    return _compare(_hints(case, policy), case["want"])


def _policy(case: Case, topology: CPUTopology) -> StaticPolicy:
    return StaticPolicy.create(
        topology,
        StaticPolicyOptions.parse(case["options"], GATES, version_of(case)),
        reserved_count=case["reserved_count"],
        reserved_cpus=CPUSet.parse(case["reserved_cpus"]),
        topology_manager_policy=case["tm_policy"],
        pod_level=case.get("gates", {}).get(POD_LEVEL_RESOURCE_MANAGERS, False),
    )


def _compare(got: object, want: object) -> Outcome:
    return Outcome(passed=got == want, detail="" if got == want else f"want {want}, got {got}")


def _pod(fields: dict[str, Any]) -> Pod:
    def container(item: dict[str, Any]) -> dict[str, Any]:
        row = {
            "name": item["name"],
            "resources": {k: item[k] for k in ("requests", "limits") if k in item},
        }
        return row | ({"restartPolicy": "Always"} if item.get("sidecar") else {})

    return pod_from_api(
        {
            "metadata": {"uid": fields["uid"], "name": fields["uid"]},
            "spec": {
                "initContainers": [container(c) for c in fields.get("init", [])],
                "containers": [container(c) for c in fields["containers"]],
                **{key: fields[key] for key in ("resources",) if key in fields},
            },
        }
    )


def _find(pod: Pod, name: str) -> Container:
    return next(c for c in (*pod.init_containers, *pod.containers) if c.name == name)


class _Walk:
    """The kubelet's state between steps: the shared pool, all pods, and the reusable CPUs."""

    def __init__(self, policy: StaticPolicy) -> None:
        self.policy = policy
        self.default = 0
        self.pods: dict[str, dict[str, int]] = {}
        self.reusable: tuple[str, int] = ("", 0)

    def open(self, uid: str) -> PodTransaction:
        reusable = self.reusable[1] if self.reusable[0] == uid else 0
        return PodTransaction(uid, self.default, dict(self.pods.get(uid, {})), reusable)

    def close(self, transaction: PodTransaction, *, used: bool) -> None:
        self.default = transaction.default
        self.pods[transaction.pod_uid] = transaction.assigned
        if not transaction.assigned:
            del self.pods[transaction.pod_uid]
        if used:
            self.reusable = (transaction.pod_uid, transaction.reusable)

    def state(self) -> dict[str, Any]:
        return {
            "default": str(CPUSet.from_mask(self.default)),
            "assignments": {
                uid: {name: str(CPUSet.from_mask(cpus)) for name, cpus in containers.items()}
                for uid, containers in self.pods.items()
            },
        }


def _lifecycle(case: Case, policy: StaticPolicy) -> Outcome:
    want = case["want"]
    got = {
        "reserved": str(policy.reserved),
        "reserved_physical": str(policy.reserved_cores),
        "allocatable": str(policy.assignable),
    }
    if got != {key: want[key] for key in got}:
        return Outcome(passed=False, detail=f"want {want}, got {got}")
    walk = _Walk(policy)
    pods = {uid: _pod(fields) for uid, fields in case["pods"].items()}
    fault: str | None = None
    for number, (step, expected) in enumerate(zip(case["steps"], want["results"], strict=True)):
        result, step_fault = _step(walk, pods, step)
        fault = fault or step_fault
        if result != expected:
            return Outcome(passed=False, detail=f"step {number}: want {expected}, got {result}")
    return Outcome(passed=True, fault=fault)


def _step(
    walk: _Walk, pods: Mapping[str, Pod], step: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    if step["op"] == "start":
        walk.default = walk.policy.initial_default.mask
        return {"err": None} | walk.state(), None
    transaction = walk.open(step["pod"])
    if step["op"] == "remove":
        walk.policy.remove(transaction, step["container"])
        walk.close(transaction, used=False)
        return {"err": None} | walk.state(), None
    pod = pods[step["pod"]]
    container = _find(pod, step["container"])
    outcome: dict[str, Any] = {"err": None, "cpuset": None}
    fault: str | None = None
    try:
        allocation = walk.policy.allocate(transaction, pod, container, _hint(step["hint"]))
    except AllocationError as error:
        outcome["err"] = str(error)
        if isinstance(error, SMTAlignmentError):
            outcome["err_type"] = error.reason
    else:
        if allocation is not None:
            walk.close(transaction, used=True)
            fault = CPUS_NOT_FREE.slug if allocation.not_free else None
    allocated = transaction.assigned.get(container.name)
    outcome["cpuset"] = None if allocated is None else str(CPUSet.from_mask(allocated))
    return outcome | walk.state(), fault


def _hint(fields: dict[str, Any] | None) -> TopologyHint | None:
    return None if fields is None else TopologyHint(numa_mask(fields["mask"]), fields["preferred"])


def _hints(case: Case, policy: StaticPolicy) -> dict[str, Any]:
    pod = _pod(case["pod"])
    assigned = {
        name: CPUSet.parse(cpus).mask for name, cpus in case["assignments"].get(pod.uid, {}).items()
    }
    bubble = CPUSet.parse(case.get("pod_assignments", {}).get(pod.uid, ""))
    default = CPUSet.parse(case["default"])
    transaction = PodTransaction(pod.uid, default.mask, assigned, bubble=bubble.mask)
    for name in case["pre_allocate"] or []:
        try:
            policy.allocate(transaction, pod, _find(pod, name))
        except (AllocationError, UpstreamFaultError):
            continue
    if case.get("pod_at_query"):
        pod = _pod(case["pod_at_query"])
    return {
        "pod_hints": _listed(policy.pod_hints(transaction, pod)),
        "container_hints": {
            container.name: _listed(policy.container_hints(transaction, pod, container))
            for container in (*pod.init_containers, *pod.containers)
        },
    }


def _listed(hints: list[TopologyHint] | None) -> list[dict[str, Any]] | None:
    if hints is None:
        return None
    return [{"mask": list(iter_bits(h.mask or 0)), "preferred": h.preferred} for h in hints]
