"""What the webhook counts, for Prometheus."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

RESOURCES: Final = ("pods", "pods/resize", "resourceclaims", "resourceclaimtemplates")

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Counted(Struct):
    """A request under way: what it is about, and what was decided."""

    path: str = ""
    decision: str = "failed"


class Requests:
    """Counts reviews and how long they took."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._decided = Counter(
            "pinfold_quota_reviews",
            "Admission reviews by what they were about and what was decided; "
            "failed: no decision was made, and the webhook's failurePolicy holds.",
            ("resource", "decision"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "pinfold_quota_review_seconds",
            "How long a review took, with what was written to the API server.",
            ("resource",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._under_way = Gauge(
            "pinfold_quota_reviews_under_way",
            "Reviews that are being answered.",
            registry=self._registry,
        )
        self._labels = {
            name: (
                {
                    decision: self._decided.labels(name, decision)
                    for decision in ("allowed", "denied", "failed")
                },
                self._seconds.labels(name),
            )
            for name in (*RESOURCES, "other")
        }

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counted]:
        """Count what is done in the block as one review."""
        counted, begun = Counted(), time.perf_counter()
        self._under_way.inc()
        try:
            yield counted
        finally:
            self._under_way.dec()
            decided, seconds = self._labels.get(counted.path) or self._labels["other"]
            decided[counted.decision].inc()
            seconds.observe(time.perf_counter() - begun)

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Tell one more number, asked for at each scrape."""
        Gauge(name, meaning, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """All of it now, in the text format."""
        return generate_latest(self._registry)
