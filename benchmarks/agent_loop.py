"""Workloads of the one loop that decides, on fakes: 200 containers on a node of 256 CPUs.

A fifth of them own CPUs and lend them, a fifth have theirs by load, the rest is best-effort work;
all controllers are on.  Reading the kernel is not in it: see ``observe.*``.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from benchmarks.agent_fakes import admit, make_manager
from benchmarks.agent_measuring import detailed
from benchmarks.agent_scene import GivenUpError
from benchmarks.measure import Result
from pinfold.agent.loops.controlling import LENDING, controlled
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import (
    DynamicOptions,
    LendingOptions,
    LoadDrivenOptions,
    OwnPolicies,
    ParkingOptions,
    SuppressionOptions,
)
from pinfold.core.observation.rates import Counters
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.observation.observer import Observation
from pinfold.planning.fake_meters import FakeContainerMeters, FakeCPUMeter

CONTAINERS: Final = 200
BEGINS: Final = 70
"""Ticks after which a history is full, and all is lent that will be."""
TICKS: Final = BEGINS + 31
LOOKS: Final = 501
LEND: Final = "lend-cpus.pinfold.dev/pod"
BY_LOAD: Final = "load-driven.pinfold.dev/pod"
SHAPES: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("2", {LEND: "true"}),
    ("1", {BY_LOAD: "true"}),
    ("", {}),
    ("", {}),
    ("", {}),
)
CONFIG: Final = NodeConfig(
    cpu_manager_policy="dynamic",
    reserved_system_cpus=CPUSet([0, 128]),
    max_pods=CONTAINERS,
    own=OwnPolicies(
        dynamic=DynamicOptions(rebalance_period="1m"),
        lending=LendingOptions(use=True),
        load_driven=LoadDrivenOptions(use=True),
        parking=ParkingOptions(use=True),
        suppression=SuppressionOptions(use=True),
    ),
)
_USED: Final = 100_000
_IDLE: Final = 900_000
"""Microseconds in a second."""


class _Clock(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put on."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class _Deciding:
    """Such a node, whose containers use a tenth of a CPU each, and its loop."""

    def __init__(self, clock: _Clock, count: int) -> None:
        self._clock = clock
        self._count = count
        self.manager = make_manager(config=CONFIG)
        self.books = self.manager.books
        self._meters = FakeContainerMeters()
        self._cpus = FakeCPUMeter(self.books.view.machine)
        self._observation = Observation(
            self.books,
            self._meters,
            self._cpus,
            now=clock.time,
            spent=time.thread_time,
            period=1.0,
        )
        found = controlled(self.books, self.manager.rebalancing, self._observation, CONFIG)
        if found is None or found.lender is None:
            raise GivenUpError("not all controllers are on")
        self.loop, self.lender = found.loop, found.lender

    async def fill(self) -> None:
        """All containers come."""
        async with self.books.change() as draft:
            await draft.apply_pool()
        for number in range(self._count):
            await admit(self.manager, f"p{number}", *SHAPES[number % len(SHAPES)])
        for life in self.manager.lives.values():
            await life.started.wait()
        if len(self.manager.lives) != self._count:
            raise GivenUpError(f"{len(self.manager.lives)} of {self._count} pods run")
        self._meters.counted = dict.fromkeys(self.books.statuses, Counters(1, 0, 0, 0, 0, 0))

    async def second(self) -> int:
        """A second passes, and is read; nanoseconds of CPU time of the tick after it."""
        self._clock.ahead += 1.0
        for key, had in self._meters.counted.items():
            self._meters.counted[key] = replace(had, usage=(had.usage or 0) + _USED)
        for cpu in self._cpus.counted:
            self._cpus.counted[cpu] += _IDLE
        await self._observation.observe()
        began = time.thread_time_ns()
        await self.loop.tick()
        return time.thread_time_ns() - began

    def look(self) -> int:
        """Nanoseconds of CPU time of one quick look."""
        began = time.thread_time_ns()
        _, wished = self.lender.look(self.loop.memories[LENDING])
        took = time.thread_time_ns() - began
        if wished:
            raise GivenUpError(f"CPUs are taken back: {wished[0].why}")
        return took


async def _decide(clock: _Clock, count: int) -> tuple[list[float], list[float], int]:
    """What ticks and looks took, and how many CPUs were lent in the end."""
    node = _Deciding(clock, count)
    await node.fill()
    ticks = [float(await node.second()) for _ in range(TICKS)]
    lent = len(node.books.view.lent)
    looks = [float(node.look()) for _ in range(LOOKS)] if lent else []
    await asyncio.sleep(0.1)  # for what is still written beside
    await node.manager.close()
    return ticks[BEGINS:], looks, lent


def _run(count: int) -> tuple[list[float], list[float], int]:
    clock = _Clock()
    with asyncio.Runner(loop_factory=lambda: clock) as runner:
        return runner.run(_decide(clock, count))


def _tick() -> Result:
    """CPU time of one tick; ``ratio`` is that to a tick with a quarter of the containers."""
    few, _, _ = _run(CONTAINERS // 4)
    many, _, lent = _run(CONTAINERS)
    median = statistics.median(many)
    ratio = median / statistics.median(few)
    return detailed(many, percent_of_a_core_at_1_s=median / 1e7, ratio=ratio, cpus_lent=float(lent))


def _look() -> Result:
    """CPU time of one quick look while all lend; ``ratio`` as for a tick."""
    _, few, _ = _run(CONTAINERS // 4)
    _, many, lent = _run(CONTAINERS)
    if not few or not many:
        raise GivenUpError("nothing was lent")
    median = statistics.median(many)
    ratio = median / statistics.median(few)
    return detailed(
        many, percent_of_a_core_at_40_hz=median * 40 / 1e7, ratio=ratio, cpus_lent=float(lent)
    )


MEASURED: Final[dict[str, Callable[[], Result]]] = {
    f"loop.tick.{CONTAINERS}": _tick,
    f"loop.look.{CONTAINERS}": _look,
}
