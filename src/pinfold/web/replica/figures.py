"""What a replica counts, for Prometheus."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

DECISIONS: Final = ("allowed", "denied", "failed")

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Figures:
    """All numbers of a replica."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Tell one more number, asked for at each scrape."""
        Gauge(name, meaning, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All of it now, in the text format."""
        return generate_latest(self.registry)


class Counted(Struct):
    """A request under way: what it is about, and what was decided."""

    path: str = ""
    decision: str = "failed"


class Requests:
    """Counts the requests of one kind, and how long they took.

    Args:
        figures: where they are told.
        name: of the metrics, in the singular: ``pinfold_quota_review``.
        asked: what such a request is called: "Admission reviews".
        resources: what they may be about; everything else is counted as ``other``.
        label: what that is called.
    """

    def __init__(
        self,
        figures: Figures,
        name: str,
        asked: str,
        resources: tuple[str, ...],
        label: str = "resource",
    ) -> None:
        self._decided = Counter(
            f"{name}s",
            f"{asked} by what they were about and what was decided; failed: no decision was made.",
            (label, "decision"),
            registry=figures.registry,
        )
        self._seconds = Histogram(
            f"{name}_seconds",
            f"{asked}: how long one took, with what was written to the API server.",
            (label,),
            buckets=_BUCKETS,
            registry=figures.registry,
        )
        self._under_way = Gauge(
            f"{name}s_under_way",
            f"{asked} that are being answered.",
            registry=figures.registry,
        )
        self._labels = {
            resource: (
                {decision: self._decided.labels(resource, decision) for decision in DECISIONS},
                self._seconds.labels(resource),
            )
            for resource in (*resources, "other")
        }

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counted]:
        """Count what is done in the block as one request."""
        counted, begun = Counted(), time.perf_counter()
        self._under_way.inc()
        try:
            yield counted
        finally:
            self._under_way.dec()
            decided, seconds = self._labels.get(counted.path) or self._labels["other"]
            decided[counted.decision].inc()
            seconds.observe(time.perf_counter() - begun)
