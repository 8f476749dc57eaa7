"""What the manager counts, for metrics and ``pinfold status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pinfold.node.admission import Decision

START_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the histogram of container starts."""


class Repairable(Protocol):
    """Something that may have been repaired."""

    @property
    def repaired(self) -> bool:
        """Whether it was."""


@dataclass(slots=True)
class Counters:
    """Totals since the agent started; times are seconds."""

    admissions: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    pinning_requests: int = 0
    pinning_errors: int = 0
    alignment_requests: int = 0
    alignment_errors: int = 0
    container_starts: int = 0
    container_start_seconds: float = 0.0
    container_start_buckets: Counter[float] = field(default_factory=Counter)
    container_exits: int = 0
    reconciles: int = 0
    reconcile_seconds: float = 0.0
    repairs: int = 0
    cgroup_failures: int = 0

    def count_admission(self, decision: Decision) -> None:
        """One pod was decided about."""
        self.admissions += 1
        pinned = bool(decision.allocations) or decision.fault is not None
        aligned = bool(decision.affinities)
        self.pinning_requests += pinned or decision.failed_container is not None
        self.alignment_requests += aligned
        if not decision.admitted:
            self.rejections[decision.reason or ""] += 1
            self.pinning_errors += decision.failed_container is not None
            self.alignment_errors += decision.reason == "TopologyAffinityError"

    def count_reconcile(self, seconds: float, drifts: Sequence[Repairable]) -> None:
        """One reconciliation has ended."""
        self.reconciles += 1
        self.reconcile_seconds += seconds
        for drift in drifts:
            if drift.repaired:
                self.repairs += 1
            else:
                self.cgroup_failures += 1

    def count_start(self, seconds: float) -> None:
        """One container was started."""
        self.container_starts += 1
        self.container_start_seconds += seconds
        for bound in START_SECONDS:
            if seconds <= bound:
                self.container_start_buckets[bound] += 1
