"""The kubelet's metrics that came, or changed their names, with a version; one table.

A metric is told where the kubelet of the configured version has it, and its gate is on: of pods
that have CPUs and memory as a whole, and of protected memory.  Here their names have the prefix
``pinfold_`` whatever theirs is.  Source: upstream ``pkg/kubelet/metrics`` (1.36),
kubernetes/kubernetes#138770 (1.37).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from prometheus_client.metrics_core import Metric

from pinfold.core.kubelet.feature_gates import MEMORY_QOS, POD_LEVEL_RESOURCE_MANAGERS
from pinfold.core.kubelet.versions import V1_37, ByVersion, KubeletVersion
from pinfold.core.memory.protection import MemoryQoS
from pinfold.core.pod.pod import Pod
from pinfold.node.counters import Counters
from pinfold.node.view import Reader

RESOURCE: Final = "resource_name"
SOURCE: Final = "source"
ASSIGNMENT: Final = "assignment_type"


class KubeletMetric(Struct, frozen=True):
    """One row; ``names`` are the kubelet's by version, "" where it has none.

    ``name`` is as it is told here, ``kind`` its type, ``labels`` those of the kubelet, and ``gate``
    the feature gate with which it is there.
    """

    name: str
    names: ByVersion[str]
    kind: str
    labels: tuple[str, ...]
    gate: str
    help: str

    def at(self, version: KubeletVersion) -> str:
        """The kubelet's name in this version; "": it has none."""
        return self.names.at(version)


_BEFORE: Final = KubeletVersion(0)
_SINCE: Final = KubeletVersion(36)


def _of_managers(name: str) -> ByVersion[str]:
    """With 1.36 the subsystem was forgotten."""
    return ByVersion(((_BEFORE, ""), (_SINCE, name), (V1_37, f"kubelet_{name}")))


ALLOCATIONS: Final = KubeletMetric(
    "pinfold_resource_manager_allocations_total",
    _of_managers("resource_manager_allocations_total"),
    "counter",
    (RESOURCE, SOURCE),
    POD_LEVEL_RESOURCE_MANAGERS,
    "exclusive CPUs or memory that a container was given of the `node`, or of its `pod` as a "
    "whole; of the node, each kind of memory counts",
)
ALLOCATION_ERRORS: Final = KubeletMetric(
    "pinfold_resource_manager_allocation_errors_total",
    _of_managers("resource_manager_allocation_errors_total"),
    "counter",
    (RESOURCE, SOURCE),
    POD_LEVEL_RESOURCE_MANAGERS,
    "failures to give them, to a container of the `node`'s, or to a `pod` as a whole",
)
ASSIGNMENTS: Final = KubeletMetric(
    "pinfold_resource_manager_container_assignments",
    _of_managers("resource_manager_container_assignments"),
    "untyped",
    (ASSIGNMENT, RESOURCE),
    POD_LEVEL_RESOURCE_MANAGERS,
    "containers that were given CPUs or memory, ever: `node_exclusive`, `pod_exclusive` (their own "
    "part of what the pod has), `pod_shared` (what is left of it, with others of the pod)",
)
MEMORY_MIN: Final = KubeletMetric(
    "pinfold_memory_qos_node_memory_min_bytes",
    ByVersion(((_BEFORE, ""), (_SINCE, "kubelet_memory_qos_node_memory_min_bytes"))),
    "gauge",
    (),
    MEMORY_QOS,
    "the `memory.min` of all Guaranteed pods: memory that is never reclaimed",
)
MEMORY_LOW: Final = KubeletMetric(
    "pinfold_memory_qos_node_memory_low_bytes",
    ByVersion(((_BEFORE, ""), (_SINCE, "kubelet_memory_qos_node_memory_low_bytes"))),
    "gauge",
    (),
    MEMORY_QOS,
    "the `memory.low` of all Burstable pods: memory that is reclaimed last",
)

KUBELET_METRICS: Final = (ALLOCATIONS, ALLOCATION_ERRORS, ASSIGNMENTS, MEMORY_MIN, MEMORY_LOW)
"""Every row, in the order of the documentation."""

Samples = Mapping[tuple[str, ...], float]


def kubelet_metrics(books: Reader) -> Iterator[Metric]:
    """Those that a kubelet of the configured version would tell."""
    view = books.view
    gates = {
        POD_LEVEL_RESOURCE_MANAGERS: view.node.pod_level,
        MEMORY_QOS: view.settings.memory_qos is not None,
    }
    for row, samples in _SAMPLES:
        if gates[row.gate] and row.at(view.settings.kubelet_version):
            yield _family(row, samples(books))


def _family(row: KubeletMetric, samples: Samples) -> Metric:
    # A family's name has no "_total"; with the type "unknown" none is added to a sample's.
    found = Metric(
        row.name.removesuffix("_total"), row.help, "unknown" if row.kind == "untyped" else row.kind
    )
    for values, amount in sorted(samples.items()):
        found.add_sample(row.name, dict(zip(row.labels, values, strict=True)), amount)
    return found


def _counted(counts: Callable[[Counters], Mapping[str, int]]) -> Callable[[Reader], Samples]:
    return lambda books: {
        tuple(key.split("/")): count for key, count in counts(books.counters).items()
    }


def _assigned(books: Reader) -> Samples:
    counts = books.counters.container_assignments
    return {(kind, resource): n for (resource, _, kind), n in _parts(counts)}


def _parts(counts: Mapping[str, int]) -> Iterator[tuple[tuple[str, str, str], int]]:
    return ((key.partition("/"), count) for key, count in counts.items())


def _protected(file: str) -> Callable[[Reader], Samples]:
    def samples(books: Reader) -> Samples:
        rules = books.view.settings.memory_qos or MemoryQoS()
        pods = (active.workload.pod for active in books.view.pods.active.values())
        return {(): _sum_of(rules, pods, file)}

    return samples


def _sum_of(rules: MemoryQoS, pods: Iterable[Pod], file: str) -> int:
    return sum(getattr(rules.of_pod(pod), file) or 0 for pod in pods)


_SAMPLES: Final[tuple[tuple[KubeletMetric, Callable[[Reader], Samples]], ...]] = (
    (ALLOCATIONS, _counted(lambda counters: counters.resource_allocations)),
    (ALLOCATION_ERRORS, _counted(lambda counters: counters.resource_allocation_errors)),
    (ASSIGNMENTS, _assigned),
    (MEMORY_MIN, _protected("min")),
    (MEMORY_LOW, _protected("low")),
)
