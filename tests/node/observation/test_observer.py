"""What is observed of a node, on fakes: who comes and goes, and a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import pairwise

import pytest
from msgspec.structs import replace

from pinfold.core.observation.rates import Counters, Stalls
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.observation.observer import Observation
from pinfold.planning.fake_meters import FakeContainerMeters, FakeCPUMeter
from pinfold.ports.errors import ContainerKey
from pinfold.ports.observation import ContainerMeters
from tests.scenes.manager_harness import Harness, manifest, run
from tests.scenes.meters_contract import BUSY, check_container_meters, check_cpu_meter
from tests.scenes.watched_node import Watched


class _FakePlace:
    """The contract's place in memory: each look finds more CPU time used."""

    def __init__(self, source: str) -> None:
        self._working = _Working(source)
        self.meters: ContainerMeters = self._working
        self.make_anew()

    def make_anew(self) -> None:
        before = self._working.counted.get(BUSY, Counters(incarnation=0))
        self._working.counted[BUSY] = Counters(before.incarnation + 1, usage=1, wait=0)

    def remove(self) -> None:
        del self._working.counted[BUSY]


class _Working(FakeContainerMeters):
    def read(self, keys: Iterable[ContainerKey]) -> Mapping[ContainerKey, Counters]:
        if (had := self.counted.get(BUSY)) is not None:
            stalls = {"cpu": Stalls(0)} if self.wait_source == "cpu.pressure" else {}
            waits = 0 if self.wait_source else None
            used = (had.usage or 0) + 1
            self.counted[BUSY] = replace(had, usage=used, wait=waits, pressure=stalls)
        return super().read(keys)


@pytest.mark.parametrize("source", ["cpu.pressure", "schedstat", ""])
def test_the_fakes_keep_the_contract(source: str) -> None:
    check_container_meters(_FakePlace(source))
    check_cpu_meter(FakeCPUMeter(CPUSet([0, 1])), CPUSet([0, 1]))


def key(pod: str) -> ContainerKey:
    return ContainerKey(f"uid-{pod}", "c0")


def test_a_container_has_rates_from_its_second_reading_to_its_end() -> None:
    async def scenario(node: Harness) -> None:
        watched = Watched(node)
        await watched.after(0)
        assert watched.seen.load(key("one")) is None
        await node.admit(manifest("one", "2", restartPolicy="Never"))
        await watched.after(1)
        assert watched.seen.load(key("one")) is None  # it runs, and its cgroup is not there yet
        watched.meters.counted[key("one")] = Counters(1, usage=0)
        await watched.after(1, used=5)
        assert watched.seen.load(key("one")) is None  # what was before is nobody's rate
        for _ in range(10):
            await watched.after(1, used=1.5)
        await watched.after(1, used=0.5)
        load, longer = watched.seen.load(key("one")), watched.seen.load(key("one"), 2.0)
        assert load is not None and longer is not None  # noqa: PT018 - for the types
        assert (load.seconds, load.usage) == (1.0, 0.5)
        assert (longer.seconds, longer.usage) == (2.0, 1.0)

        # Missing in one reading, it begins anew: another may be there by now.
        kept = watched.meters.counted.pop(key("one"))
        await watched.after(1)
        assert watched.seen.load(key("one")) is None
        assert not watched.meters.open
        watched.meters.counted[key("one")] = kept
        await watched.after(1)
        assert watched.seen.load(key("one")) is None
        await watched.after(1)
        assert watched.seen.load(key("one")) is not None

        (one,) = [s for s in node.runtime.known() if s.key == key("one")]
        node.runtime.exit(one.id, 0)
        await node.settle()
        await watched.after(1)
        assert not watched.seen.containers
        assert not watched.meters.open

    run(scenario)


def test_a_cpu_that_goes_offline_and_back_begins_anew() -> None:
    async def scenario(node: Harness) -> None:
        watched = Watched(node)
        await watched.after(1)
        assert watched.seen.idle_shares() == {}
        await watched.after(1, idle=0.25)
        assert watched.seen.idle_shares() == {0: 0.25, 1: 0.25}
        was = watched.cpus.counted.pop(1)
        await watched.after(1, idle=1)
        assert watched.seen.idle_shares() == {0: 1.0}
        assert watched.seen.idle_shares(60.0) == {0: 0.625}
        watched.cpus.counted[1] = was
        await watched.after(1, idle=1)
        assert watched.seen.idle_shares().keys() == {0}
        await watched.after(1, idle=1)
        assert watched.seen.idle_shares() == {0: 1.0, 1: 1.0}

    run(scenario)


def test_a_clock_that_jumps_is_no_rate() -> None:
    async def scenario(node: Harness) -> None:
        watched = Watched(node)
        await node.admit(manifest("one", "2"))
        watched.meters.counted[key("one")] = Counters(1, usage=0)
        watched.cpus.stalls = {"cpu": Stalls(0, 0)}
        await watched.after(1, used=1)
        await watched.after(1, used=1)
        await watched.after(-50, used=1)
        assert watched.seen.load(key("one")) is None
        assert watched.seen.idle_shares() == {}
        assert watched.seen.pressure["cpu"].span() is None
        await watched.after(2, used=1)
        load = watched.seen.load(key("one"))
        assert load is not None
        assert (load.seconds, load.usage) == (2.0, 0.5)

    run(scenario)


def test_without_cgroups_the_cpus_are_known_and_it_is_said() -> None:
    async def scenario(node: Harness) -> None:
        watched = Watched(node, tells_apart=False)
        await node.admit(manifest("one", "2"))
        await watched.after(1)
        await watched.after(1, idle=0.5)
        assert watched.seen.idle_shares() == {0: 0.5, 1: 0.5}
        assert watched.seen.wait_source == ""
        assert watched.seen.lacks() == ["anything of containers: they have no cgroups here"]
        await watched.seen.close()

    run(scenario)


def test_it_goes_on_each_period_whatever_the_clock_says() -> None:
    """The loop's time is virtual; the observer's clock is that of the loop, and jumps."""

    async def scenario(node: Harness) -> None:
        loop, jumped = asyncio.get_running_loop(), 0.0
        read: list[float] = []

        def now() -> float:
            return loop.time() + jumped

        class Noted(FakeCPUMeter):
            def idle(self, cpus: CPUSet | None = None) -> Mapping[int, int]:
                read.append(loop.time())
                return super().idle(cpus)

        meter = Noted(CPUSet([0]))
        seen = Observation(node.books, None, meter, now=now, spent=lambda: 0.0, period=1.0)
        task = asyncio.create_task(seen.go_on())
        begun = loop.time()
        await asyncio.sleep(2.5)
        jumped = -3600.0
        await asyncio.sleep(2)
        jumped = 7200.0
        await asyncio.sleep(2)
        task.cancel()
        gaps = [after - before for before, after in pairwise(read)]
        assert read[0] == begun
        assert len(read) >= 6
        assert max(gaps) <= 1.001
        assert meter.is_open
        await seen.close()
        assert not meter.is_open

    run(scenario)
