"""Metrics for Prometheus: the kubelet's names, with ``pinfold_`` in place of ``kubelet_``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from pinfold.node.counters import START_SECONDS
from pinfold.node.manager import Manager
from pinfold.node.records import PodPhase

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


def metrics_text(manager: Manager) -> bytes:
    """Everything, read now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Reader(manager))
    return generate_latest(registry)


class _Reader:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        yield from self._cpu_manager()
        yield from self._pods()
        yield from self._reconciliation()

    def _cpu_manager(self) -> Iterator[Metric]:
        manager, counters = self._manager, self._manager.counters
        ledger = manager.state.ledger
        yield _counter(
            "cpu_manager_pinning_requests",
            "Containers that asked for CPUs.",
            counters.pinning_requests,
        )
        yield _counter(
            "cpu_manager_pinning_errors", "Of these, those that got none.", counters.pinning_errors
        )
        yield _gauge(
            "cpu_manager_shared_pool_size_millicores", "The shared pool.", 1000 * len(manager.pool)
        )
        yield _gauge(
            "cpu_manager_exclusive_cpu_allocation_count",
            "CPUs that are exclusively owned.",
            len(ledger.exclusive),
        )
        per_node = GaugeMetricFamily(
            "pinfold_cpu_manager_allocation_per_numa",
            "Exclusively owned CPUs by NUMA node.",
            labels=["numa_node"],
        )
        policy = manager.node.cpu_policy
        nodes = {} if policy is None else policy.topology.numa_nodes
        for node, cpus in nodes.items():
            per_node.add_metric([str(node)], (cpus & ledger.exclusive.mask).bit_count())
        yield per_node
        yield _counter(
            "topology_manager_admission_requests",
            "Pods that had to be aligned.",
            counters.alignment_requests,
        )
        yield _counter(
            "topology_manager_admission_errors",
            "Of these, those that could not be.",
            counters.alignment_errors,
        )

    def _pods(self) -> Iterator[Metric]:
        manager, counters = self._manager, self._manager.counters
        yield _counter("started_pods", "Pods that were decided about.", counters.admissions)
        rejections = CounterMetricFamily(
            "pinfold_admission_rejections", "Pods that were rejected.", labels=["reason"]
        )
        for reason, count in counters.rejections.items():
            rejections.add_metric([reason], count)
        yield rejections
        active = list(manager.pods.active.values())
        yield _gauge(
            "running_pods",
            "Pods that run.",
            sum(pod.record.phase is PodPhase.RUNNING for pod in active),
        )
        states = Counter(s.state.value.lower() for pod in active for s in pod.statuses.values())
        containers = GaugeMetricFamily(
            "pinfold_running_containers", "Containers by state.", labels=["container_state"]
        )
        for state, count in states.items():
            containers.add_metric([state], count)
        yield containers
        yield _counter(
            "started_containers", "Containers that were started.", counters.container_starts
        )
        starts = HistogramMetricFamily(
            "pinfold_container_start_duration_seconds",
            "From the decision to the first instruction.",
        )
        buckets = [(f"{b:g}", float(counters.container_start_buckets[b])) for b in START_SECONDS]
        starts.add_metric(
            [],
            [*buckets, ("+Inf", float(counters.container_starts))],
            counters.container_start_seconds,
        )
        yield starts

    def _reconciliation(self) -> Iterator[Metric]:
        counters = self._manager.counters
        yield _counter("reconcile", "Looks at the kernel.", counters.reconciles)
        yield _counter("reconcile_seconds", "Time that they took.", counters.reconcile_seconds)
        yield _counter("reconcile_repairs", "Differences that were repaired.", counters.repairs)
        yield _counter("reconcile_failures", "What the kernel refused.", counters.cgroup_failures)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"pinfold_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pinfold_{name}", text, value=value)
