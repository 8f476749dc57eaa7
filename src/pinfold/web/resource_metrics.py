"""Metrics of memory, devices and what is aligned, made of a manager's state at the moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pinfold.core.topology_manager.policy import Policy, Scope
from pinfold.node.counters import (
    ALLOCATE_SECONDS,
    NUMA_NODE,
    PHYSICAL_CPU,
    UNCORE_CACHE,
    Durations,
)
from pinfold.node.view import Reader
from pinfold.ports.devices import CountsRegistrations
from pinfold.ports.figures import Figure

_RESOURCE = "resource_name"


def memory_metrics(books: Reader) -> Iterator[Metric]:
    """What the memory manager was asked for and has given."""
    counters, memory = books.counters, books.view.state.memory
    yield CounterMetricFamily(
        "pinfold_memory_manager_pinning_requests",
        "Containers that required memory of NUMA nodes.",
        counters.memory_pinning_requests,
    )
    yield CounterMetricFamily(
        "pinfold_memory_manager_pinning_errors",
        "Containers that required memory of NUMA nodes and could not have it.",
        counters.memory_pinning_errors,
    )
    allocatable = GaugeMetricFamily(
        "pinfold_memory_manager_allocatable_bytes",
        "Memory that containers may be given, by NUMA node and kind.",
        labels=["numa_node", "memory_type"],
    )
    allocated = GaugeMetricFamily(
        "pinfold_memory_manager_allocated_bytes",
        "Memory that containers were given, by NUMA node and kind.",
        labels=["numa_node", "memory_type"],
    )
    for number, node in sorted({} if memory is None else memory.machine.items()):
        for name, table in sorted((node.memory_map or {}).items()):
            if table is not None:
                allocatable.add_metric([str(number), name], table.allocatable)
                allocated.add_metric([str(number), name], table.reserved)
    yield allocatable
    yield allocated


def device_metrics(books: Reader, plugins: object) -> Iterator[Metric]:
    """What device plugins offer, and how they answer."""
    registrations = CounterMetricFamily(
        "pinfold_device_plugin_registration",
        "Registrations of device plugins that were accepted.",
        labels=[_RESOURCE],
    )
    if isinstance(plugins, CountsRegistrations):
        for resource, count in sorted(plugins.registrations().items()):
            registrations.add_metric([resource], count)
    yield registrations
    durations = HistogramMetricFamily(
        "pinfold_device_plugin_alloc_duration_seconds",
        "Calls of Allocate of device plugins, those that failed too.",
        labels=[_RESOURCE],
    )
    for resource, one in sorted(books.counters.device_allocations.items()):
        durations.add_metric([resource], _buckets(one), one.seconds)
    yield durations
    devices = books.view.state.devices
    in_use = {name: len(devices.in_use(name)) for name in devices.inventory}
    for name, meaning, amounts in (
        ("capacity", "Devices that a device plugin lists, healthy or not.", devices.capacity()),
        ("allocatable", "Devices that are healthy, in use or not.", devices.allocatable()),
        ("in_use", "Devices that containers have.", in_use),
    ):
        gauge = GaugeMetricFamily(f"pinfold_devices_{name}", meaning, labels=[_RESOURCE])
        for resource, amount in sorted(amounts.items()):
            gauge.add_metric([resource], amount)
        yield gauge


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    bounds = [(str(bound), float(durations.buckets[bound])) for bound in ALLOCATE_SECONDS]
    return [*bounds, ("+Inf", durations.count)]


def alignment_metrics(books: Reader) -> Iterator[Metric]:
    """Containers and pods whose resources are in one NUMA node, cache or core.

    Only what the configuration promises is counted, as with the kubelet.  They are counters whose
    names have no ``_total``, which the client library would add.
    """
    counters, node = books.counters, books.view.node
    promised: set[str] = set()
    failing: set[str] = set()
    if node.topology_manager.policy is not Policy.NONE:
        promised |= {f"{scope.value}/{NUMA_NODE}" for scope in Scope}
        failing |= promised
    if node.cpu_policy is not None:
        promised |= {f"container/{PHYSICAL_CPU}", f"container/{UNCORE_CACHE}"}
        failing.add(f"container/{PHYSICAL_CPU}")
    for name, meaning, keys, counts in (
        ("count", "Resources that were given aligned.", promised, counters.aligned),
        (
            "failure_count",
            "Failures to align the resources of containers.",
            failing,
            counters.alignment_failures,
        ),
    ):
        found = Metric(f"pinfold_container_aligned_compute_resources_{name}", meaning, "unknown")
        for key in sorted(keys):
            scope, _, boundary = key.partition("/")
            found.add_sample(found.name, {"scope": scope, "boundary": boundary}, counts[key])
        yield found


def other_metrics(figures: Iterable[Figure]) -> Iterator[Metric]:
    """What other parts of the agent count."""
    families: dict[str, Metric] = {}
    for figure in figures:
        known = families.get(figure.name)
        if known is None:
            known = families[figure.name] = Metric(figure.name, figure.meaning, figure.kind)
        sample = f"{figure.name}_total" if figure.kind == "counter" else figure.name
        if figure.value is not None:
            known.add_sample(sample, dict(figure.labels), figure.value)
    yield from families.values()
