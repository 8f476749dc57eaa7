"""What the containers and the CPUs of a node do: read each period, kept for a short while.

One reader for all who want to know.  What is read are counters, so whoever wants another window
asks :class:`~pinfold.core.observation.history.History` for it, and nobody reads twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from pinfold.core.observation.history import History
from pinfold.core.observation.rates import (
    Counters,
    Load,
    Stalls,
    container_history,
    counter_history,
    idle_between,
    is_stalled_on,
    load_between,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.view import Reader
from pinfold.ports.errors import ContainerKey
from pinfold.ports.observation import ContainerMeters, CPUMeter
from pinfold.ports.runtime import ContainerState

_AT_ONCE: Final = 16
"""Containers that are read before others get their turn."""

_MICROSECONDS: Final = 1_000_000
_K = TypeVar("_K")
_T = TypeVar("_T")
_NO_CGROUPS: Final = "anything of containers: they have no cgroups here"


class Observation:
    """The histories of what runs, each from its first reading to its last.

    A container that has ended, or is not there in one reading, has none; neither has a CPU that is
    offline.  When it is back, its history begins anew.

    Args:
        books: which containers there are.
        containers: what reads theirs; None where nobody can tell them apart.
        cpus: what reads the CPUs'.
        now: seconds of a clock that counts while the machine runs (``CLOCK_MONOTONIC``).
        spent: seconds of CPU time that this thread has used, for what observing costs.
        period: seconds between two readings.
    """

    def __init__(  # noqa: PLR0913 - the parts, one each
        self,
        books: Reader,
        containers: ContainerMeters | None,
        cpus: CPUMeter,
        *,
        now: Callable[[], float],
        spent: Callable[[], float],
        period: float,
    ) -> None:
        self._books = books
        self._meters = containers
        self._cpu_meter = cpus
        self._now = now
        self._spent = spent
        self.period = period
        self.containers: dict[ContainerKey, History[Counters]] = {}
        self.idle: dict[int, History[int]] = {}
        self.pressure: dict[str, History[Stalls]] = {}
        self.cost = counter_history()
        """Microseconds of CPU time for all readings until then."""
        self.readings = 0
        self._took = 0.0
        self._read_all = asyncio.Event()

    async def observe(self) -> None:
        """Read once; raises PortError."""
        self.readings += 1
        running = [
            key
            for key, status in self._books.statuses.items()
            if status.state is ContainerState.RUNNING
        ]
        found = await self._read_containers(running)
        began = self._spent()
        _keep_only(self.containers, found)
        self._read_cpus()
        self._took += self._spent() - began
        self.cost.add(self._now(), round(self._took * _MICROSECONDS))
        self._read_all.set()
        self._read_all = asyncio.Event()

    async def until_read(self) -> None:
        """Return when all has been read once more."""
        await self._read_all.wait()

    async def _read_containers(self, running: Sequence[ContainerKey]) -> Collection[ContainerKey]:
        if (meters := self._meters) is None:
            return ()
        found: set[ContainerKey] = set()
        for first in range(0, len(running), _AT_ONCE):
            began = self._spent()
            found.update(self._read(meters, running[first : first + _AT_ONCE]))
            self._took += self._spent() - began
            # Hundreds of them must not hold up those who wait for something else.
            await asyncio.sleep(0)
        meters.retain(found)
        return found

    def _read(
        self, meters: ContainerMeters, keys: Sequence[ContainerKey]
    ) -> Collection[ContainerKey]:
        now, counted = self._now(), meters.read(keys)
        for key, counters in counted.items():
            if (history := self.containers.get(key)) is None:
                history = self.containers[key] = container_history()
            history.add(now, counters)
        return counted.keys()

    def _read_cpus(self) -> None:
        now, idle = self._now(), self._cpu_meter.idle()
        for cpu, counted in idle.items():
            if (history := self.idle.get(cpu)) is None:
                history = self.idle[cpu] = counter_history()
            history.add(now, counted)
        _keep_only(self.idle, idle)
        pressure = self._cpu_meter.pressure()
        for name, stalls in pressure.items():
            if name not in self.pressure:
                self.pressure[name] = History(is_stalled_on)
            self.pressure[name].add(now, stalls)
        _keep_only(self.pressure, pressure)

    def now_used(
        self, keys: Collection[ContainerKey], cpus: CPUSet
    ) -> tuple[float, Mapping[ContainerKey, int], Mapping[int, int]]:
        """The moment, CPU time of these containers, and idle time of these CPUs, microseconds.

        Nothing of it is kept, and what it costs is whose it is who asks.  Who is not there is left
        out.  Raises PortError.
        """
        used = {} if self._meters is None else self._meters.used(keys)
        return self._now(), used, self._cpu_meter.idle(cpus) if cpus else {}

    async def go_on(self) -> None:
        """Read each period, for ever; raises PortError."""
        due = self._now()
        while True:
            await self.observe()
            now = self._now()
            # What was missed while this was stopped is not made up for, whatever the clock says.
            due = min(max(due + self.period, now), now + self.period)
            await asyncio.sleep(due - now)

    async def close(self) -> None:
        """Let go of all files."""
        if self._meters is not None:
            self._meters.close()
        self._cpu_meter.close()

    # --------------------------------------------------------------------------- what is known

    @property
    def wait_source(self) -> str:
        """Where run-queue waits are from, see :class:`ContainerMeters`."""
        return "" if self._meters is None else self._meters.wait_source

    def lacks(self) -> Sequence[str]:
        """What cannot be told here, and why."""
        return [_NO_CGROUPS] if self._meters is None else self._meters.lacks()

    def load(self, key: ContainerKey, seconds: float = 0.0) -> Load | None:
        """What a container did in the last so many seconds (0: in the last interval).

        None while it has not been read twice.
        """
        history = self.containers.get(key)
        span = None if history is None else history.span(seconds)
        return None if span is None else load_between(*span)

    def idle_shares(self, seconds: float = 0.0) -> Mapping[int, float]:
        """The share of the last so many seconds for which each CPU had nothing to do."""
        spans = {cpu: history.span(seconds) for cpu, history in sorted(self.idle.items())}
        return {cpu: idle_between(*span) for cpu, span in spans.items() if span is not None}


def _keep_only(histories: dict[_K, History[_T]], keys: Collection[_K]) -> None:
    for gone in histories.keys() - keys:
        del histories[gone]
