"""What the plugin counts, for metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct, field

from pinfold.ports.figures import Figure


class MethodCount(Struct):
    """How often a runtime called one method, and how long its answers took, in seconds."""

    requests: int = 0
    refused: int = 0
    """Answered with a refusal, as decided."""
    failed: int = 0
    """Answered with an error because something went wrong here."""
    late: int = 0
    """Answered when the runtime had stopped waiting: it went on without the answer."""
    seconds: float = 0.0
    longest: float = 0.0

    def add(self, seconds: float, *, refused: bool, failed: bool, late: bool) -> None:
        """Count one answered call."""
        self.requests += 1
        self.refused += refused
        self.failed += failed
        self.late += late
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


class PluginCounters(Struct):
    """Counted since the plugin was made."""

    methods: defaultdict[str, MethodCount] = field(default_factory=lambda: defaultdict(MethodCount))
    """By the names of NRI's methods; events that come as ``StateChange`` under their own."""
    registrations: int = 0
    """How often a runtime has taken the plugin; the first is no reconnect."""
    disconnects: int = 0
    """Connections lost after they were registered."""
    failed_connects: int = 0
    updates: int = 0
    """Containers in unsolicited updates that the runtime took."""
    failed_updates: int = 0
    repeated_updates: int = 0
    """Containers that were told again because an older change could have overtaken the newer."""

    @property
    def reconnects(self) -> int:
        """Registrations after the first."""
        return max(0, self.registrations - 1)

    def figures(self) -> Iterator[Figure]:
        """All of it for the metrics; a name is known before anything has been counted."""
        for name, meaning, value in (
            ("registrations", "Registrations that the runtime took.", self.registrations),
            ("disconnects", "Connections to the runtime that were lost.", self.disconnects),
            ("failed_connects", "Attempts to register that failed.", self.failed_connects),
            ("updates", "Unsolicited updates of containers that were taken.", self.updates),
            (
                "failed_updates",
                "Unsolicited updates of containers that failed.",
                self.failed_updates,
            ),
            ("repeated_updates", "Containers that were told once more.", self.repeated_updates),
        ):
            yield Figure(f"pinfold_nri_{name}", meaning, value)
        per_method = (
            ("calls", "requests", "Calls of the runtime."),
            ("calls_refused", "refused", "Calls that were refused, as decided."),
            ("calls_failed", "failed", "Calls that failed because something went wrong here."),
            ("calls_late", "late", "Calls answered when the runtime had stopped waiting."),
            ("call_seconds", "seconds", "Time that the answers took."),
        )
        for name, attribute, meaning in per_method:
            yield Figure(f"pinfold_nri_{name}", meaning, None)
            for method, count in sorted(self.methods.items()):
                counted: float = getattr(count, attribute)
                yield Figure(f"pinfold_nri_{name}", meaning, counted, {"method": method})
