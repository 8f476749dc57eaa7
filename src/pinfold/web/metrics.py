"""Metrics for Prometheus: the kubelet's names with the prefix ``pinfold_``.

Source of names, types and labels: the kubelet's own list of metrics (1.34 to 1.36).  What is read
is the node's state at the moment of the scrape, so nothing has to be kept in step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from pinfold.admission.settling import cpus_by_load
from pinfold.core.kubelet.own_policies import in_words
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.status import AgentConfig
from pinfold.node.counters import MOVE_SECONDS, START_SECONDS
from pinfold.node.view import Reader
from pinfold.ports.figures import Figure
from pinfold.ports.runtime import ContainerState
from pinfold.web.kubelet_metrics import kubelet_metrics
from pinfold.web.quota_metrics import quota_metrics
from pinfold.web.resource_metrics import (
    alignment_metrics,
    device_metrics,
    memory_metrics,
    other_metrics,
)


class Metrics(Collector):
    """The metrics of one node, its ``plugins`` and ``settings``, and ``figures`` of others."""

    media_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self,
        books: Reader,
        figures: Callable[[], Iterable[Figure]] = tuple,
        plugins: object = None,
        settings: Callable[[], AgentConfig] | None = None,
    ) -> None:
        self._settings = settings
        self._books = books
        self._figures = figures
        self._plugins = plugins
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """The metrics now, in the text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now."""
        yield from self._policy()
        yield from self._cpu_manager()
        yield from memory_metrics(self._books)
        yield from kubelet_metrics(self._books)
        yield from device_metrics(self._books, self._plugins)
        yield from self._admission()
        yield from quota_metrics(self._books)
        yield from self._pods()
        yield from self._moves()
        yield from self._reconcile()
        yield from other_metrics(self._figures())

    def _policy(self) -> Iterator[Metric]:
        if self._settings is None:
            return
        config = self._settings()
        groups = config.pinfold or {}
        options = {
            # A kubelet takes True for true.
            **{name: v.lower() for name, v in config.cpu_manager_policy_options.items()},
            **{
                f"{group}.{name}": in_words(v, between=" ")
                for group, own in groups.items()
                for name, v in own.items()
            },
        }
        listed = ",".join(f"{name}={v}" for name, v in sorted(options.items()))
        found = GaugeMetricFamily(
            "pinfold_cpu_manager_policy_info",
            "The CPU manager's policy, and all its options.",
            labels=["policy", "options"],
        )
        found.add_metric([config.cpu_manager_policy, listed], 1)
        yield found

    def _cpu_manager(self) -> Iterator[Metric]:
        counters, ledger = self._books.counters, self._books.view.state.ledger
        policy = self._books.view.node.cpu_policy
        reserved = CPUSet() if policy is None else policy.reserved
        yield CounterMetricFamily(
            "pinfold_cpu_manager_pinning_requests",
            "Containers that required exclusive CPUs.",
            counters.pinning_requests,
        )
        yield CounterMetricFamily(
            "pinfold_cpu_manager_pinning_errors",
            "Containers that required exclusive CPUs and could not have them.",
            counters.pinning_errors,
        )
        yield GaugeMetricFamily(
            "pinfold_cpu_manager_shared_pool_size_millicores",
            "Size of the shared pool without reserved CPUs, in thousandths of a CPU.",
            len(ledger.default - reserved) * 1000,
        )
        yield GaugeMetricFamily(
            "pinfold_cpu_manager_exclusive_cpu_allocation_count",
            "CPUs that containers own, without siblings that stay idle.",
            len(ledger.exclusive - ledger.idle_siblings),
        )
        yield GaugeMetricFamily(
            "pinfold_cpu_manager_idle_siblings",
            "CPUs that stay idle and belong to nobody, beside those of SMT-isolated containers.",
            len(ledger.idle_siblings),
        )
        yield GaugeMetricFamily(
            "pinfold_mixed_containers",
            "Containers that use the shared pool besides CPUs of their own.",
            len(self._books.view.mixed),
        )
        if policy is None:
            return
        per_numa = GaugeMetricFamily(
            "pinfold_cpu_manager_allocation_per_numa",
            "CPUs that containers own, by NUMA node.",
            labels=["numa_node"],
        )
        for node, cpus in policy.topology.numa_nodes.items():
            owned = (ledger.exclusive - ledger.idle_siblings).mask
            per_numa.add_metric([str(node)], (cpus & owned).bit_count())
        yield per_numa

    def _admission(self) -> Iterator[Metric]:
        counters = self._books.counters
        yield CounterMetricFamily(
            "pinfold_topology_manager_admission_requests",
            "Pods that the topology manager was asked about.",
            counters.alignment_requests,
        )
        yield CounterMetricFamily(
            "pinfold_topology_manager_admission_errors",
            "Pods whose resources could not be aligned.",
            counters.alignment_errors,
        )
        yield from alignment_metrics(self._books)
        yield CounterMetricFamily(
            "pinfold_admission_requests", "Pods that were decided about.", counters.admissions
        )
        rejections = CounterMetricFamily(
            "pinfold_admission_rejections", "Pods that were rejected.", labels=["reason"]
        )
        for reason, count in counters.rejections.items():
            rejections.add_metric([reason], count)
        yield rejections

    def _pods(self) -> Iterator[Metric]:
        counters, active = self._books.counters, self._books.view.pods.active
        statuses = [one for one in self._books.statuses.values() if one.key.pod_uid in active]
        states = Counter(status.state for status in statuses)
        running = {
            status.key.pod_uid for status in statuses if status.state is ContainerState.RUNNING
        }
        yield CounterMetricFamily(
            "pinfold_started_pods",
            "Pods that were admitted, and so started.",
            counters.admissions - counters.rejections.total(),
        )
        yield CounterMetricFamily(
            "pinfold_started_containers",
            "Containers that were started, restarts too.",
            counters.container_starts,
        )
        yield CounterMetricFamily(
            "pinfold_container_exits", "Containers that have exited.", counters.container_exits
        )
        yield GaugeMetricFamily(
            "pinfold_running_pods", "Pods that have a running container.", len(running)
        )
        containers = GaugeMetricFamily(
            "pinfold_running_containers",
            "Containers of pods that own their CPUs, by the state of the container.",
            labels=["container_state"],
        )
        for state in ContainerState:
            containers.add_metric([state.value.lower()], states[state])
        yield containers
        bounds = [(str(bound), counters.container_start_buckets[bound]) for bound in START_SECONDS]
        yield HistogramMetricFamily(
            "pinfold_container_start_duration_seconds",
            "From the start of a container, its image being there, to its first instruction.",
            buckets=[*bounds, ("+Inf", counters.container_starts)],
            sum_value=counters.container_start_seconds,
        )

    def _moves(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "pinfold_moves_in_flight",
            "Plans of moves of exclusive CPUs that are under way.",
            int(self._books.view.move is not None),
        )
        moves = HistogramMetricFamily(
            "pinfold_move_duration_seconds",
            "Plans of moves of exclusive CPUs that are over, with the time for which applications "
            "were told before anything was taken.",
            labels=["why", "outcome"],
        )
        for key, times in self._books.counters.moves.items():
            bounds = [(str(bound), times.buckets[bound]) for bound in MOVE_SECONDS]
            moves.add_metric(
                key.split("/"), buckets=[*bounds, ("+Inf", times.count)], sum_value=times.seconds
            )
        yield moves

    def _reconcile(self) -> Iterator[Metric]:
        counters = self._books.counters
        yield SummaryMetricFamily(
            "pinfold_reconcile_duration_seconds",
            "Comparisons of the kernel with the record.",
            count_value=counters.reconciles,
            sum_value=counters.reconcile_seconds,
        )
        yield CounterMetricFamily(
            "pinfold_reconcile_repairs",
            "Cpusets that had drifted and were repaired.",
            counters.repairs,
        )
        yield CounterMetricFamily(
            "pinfold_escaped_processes",
            "Processes that had left their container's cgroup and were brought back.",
            counters.escapes,
        )
        yield CounterMetricFamily(
            "pinfold_cgroup_failures",
            "Refusals of the kernel: CPUs not taken, drift not repaired.",
            counters.cgroup_failures,
        )
        view = self._books.view
        yield GaugeMetricFamily(
            "pinfold_parked_cpus",
            "CPUs that the shared pool has left so that they idle.",
            len(view.parked & view.state.ledger.default),
        )
        yield GaugeMetricFamily(
            "pinfold_lent_cpus",
            "CPUs of owners on which best-effort containers run, too.",
            len(view.lent),
        )
        owned, charged = cpus_by_load(self._books.view.state)
        by_load = GaugeMetricFamily(
            "pinfold_load_driven_cpus",
            "CPUs of load-driven containers: those that they own, and those that they are charged.",
            labels=["place"],
        )
        by_load.add_metric(["own"], owned)
        by_load.add_metric(["shared"], charged)
        yield by_load
        yield CounterMetricFamily(
            "pinfold_load_driven_stays_shared",
            "Load-driven containers that should have had CPUs of their own, and none fitted.",
            counters.stays_shared,
        )
        yield GaugeMetricFamily(
            "pinfold_offline_cpus",
            "CPUs of the machine that are offline.",
            len(self._books.view.state.offline),
        )
        places = Counter(where.place for _, _, where in self._books.view.affected())
        affected = GaugeMetricFamily(
            "pinfold_containers_with_offline_cpus",
            "Containers whose own CPUs, or all of the shared pool's, are offline, by where they "
            "run: on those of their own that are left, in the shared pool, or not at all.",
            labels=["place"],
        )
        for place in ("own", "shared", "frozen"):
            affected.add_metric([place], places[place])
        yield affected
