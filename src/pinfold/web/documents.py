"""The API's documents, version 1; CPU sets are in the kernel's list format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pinfold.core.pod import Container
from pinfold.node.active_pod import ActivePod
from pinfold.node.manager import Manager
from pinfold.node.reconciler import Drift
from pinfold.node.records import HistoryEntry, PodRecord
from pinfold.web.desk import Desk

VERSION: Final = 1
WAITING: Final = "Waiting"


def status_document(desk: Desk) -> dict[str, Any]:
    """What ``GET /v1/status`` answers."""
    manager = desk.manager
    ledger, policy = manager.state.ledger, manager.node.cpu_policy
    reserved = manager.settings.reserved_system_cpus if policy is None else policy.reserved
    return {
        "version": VERSION,
        **desk.about(),
        "pods": list(pod_documents(manager)),
        "shared": str(ledger.default),
        "pool": str(manager.pool),
        "reserved": str(reserved),
        "allocatable": "" if policy is None else str(policy.assignable),
        "offline": str(manager.state.offline),
        "counters": counters_document(manager),
    }


def pod_documents(manager: Manager) -> Iterator[dict[str, Any]]:
    """Every pod, in the order of admission."""
    records = sorted(manager.pods.records(), key=lambda record: record.admitted_at)
    return (pod_document(manager, record) for record in records)


def pod_document(manager: Manager, record: PodRecord) -> dict[str, Any]:
    """One pod, whether it runs or has ended."""
    pod = manager.pods.active.get(record.uid)
    return {
        "version": VERSION,
        "namespace": record.namespace,
        "name": record.name,
        "uid": record.uid,
        "qos": None if pod is None else pod.workload.pod.qos.value,
        "phase": record.phase.value,
        "reason": record.reason,
        "message": record.message,
        "source": record.source,
        "admitted_at": record.admitted_at,
        "containers": []
        if pod is None
        else [_container(manager, pod, container) for container in pod.workload.pod.all_containers],
        "exit_codes": dict(record.exit_codes),
    }


def _container(manager: Manager, pod: ActivePod, container: Container) -> dict[str, Any]:
    record = pod.record
    status = pod.statuses.get(container.name)
    cpus = pod.exclusive_cpus(manager.state.ledger, container)
    is_init = any(container is init for init in pod.workload.pod.init_containers)
    return {
        "name": container.name,
        "kind": ("sidecar" if container.is_sidecar else "init") if is_init else "container",
        "cpus": str(manager.pool if cpus is None else cpus),
        "exclusive": cpus is not None,
        "state": WAITING if status is None else status.state.value,
        "pid": None if status is None else status.pid,
        "restarts": record.restarts.get(container.name, 0),
        "exit_code": record.exit_codes.get(container.name) if status is None else status.exit_code,
        "started_at": None if status is None else status.started_at,
    }


def counters_document(manager: Manager) -> dict[str, Any]:
    """The totals since the agent started."""
    counters = manager.counters
    return {
        "admissions": counters.admissions,
        "rejections": dict(counters.rejections),
        "container_starts": counters.container_starts,
        "container_exits": counters.container_exits,
        "reconciles": counters.reconciles,
        "repairs": counters.repairs,
        "cgroup_failures": counters.cgroup_failures,
    }


def history_document(entry: HistoryEntry) -> dict[str, Any]:
    """One entry of the history."""
    return {
        "number": entry.number,
        "at": entry.at,
        "kind": entry.kind,
        "pod": entry.pod,
        "pod_uid": entry.pod_uid,
        "document": json.loads(entry.document),
    }


def drift_document(drift: Drift) -> Mapping[str, Any]:
    """One place where the kernel had something else than the record."""
    return {
        "pod_uid": None if drift.key is None else drift.key.pod_uid,
        "container": None if drift.key is None else drift.key.name,
        "expected": drift.expected,
        "found": drift.found,
        "repaired": drift.repaired,
        "problem": drift.problem,
    }
