"""A node on fakes that is observed."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.observation.observer import Observation
from pinfold.planning.fake_meters import FakeContainerMeters, FakeCPUMeter
from tests.scenes.manager_harness import Harness

SECOND: Final = 1_000_000


class Watched:
    """A node on fakes, watched: its counters and its clock are what a test says."""

    def __init__(self, node: Harness, *, tells_apart: bool = True) -> None:
        self.node = node
        self.meters, self.cpus = FakeContainerMeters(), FakeCPUMeter(CPUSet([0, 1]))
        self.at = 100.0
        self.seen = Observation(
            node.books,
            self.meters if tells_apart else None,
            self.cpus,
            now=lambda: self.at,
            spent=lambda: self.at / 100,
            period=1.0,
        )

    async def after(self, seconds: float, *, used: float = 0.0, idle: float = 0.0) -> None:
        """Read so many seconds later, when each container and CPU has counted so much more."""
        self.at += seconds
        for key, had in self.meters.counted.items():
            usage = (had.usage or 0) + round(used * SECOND)
            self.meters.counted[key] = replace(had, usage=usage)
        self.cpus.counted = {
            cpu: had + round(idle * SECOND) for cpu, had in self.cpus.counted.items()
        }
        await self.seen.observe()
