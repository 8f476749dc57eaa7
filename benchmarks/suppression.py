"""Suppression of best-effort work: how steady and how quick, by Koordinator's rule and by ours.

    python -m benchmarks.suppression [FOLDER] [--hours N] [--seed N] [--json FILE]

A simulated node of 32 CPUs: latency-sensitive work uses what a load says, the system two CPUs, and
best-effort work whatever its cap and the CPUs leave it.  Both rules look each second at means of
the second before, as the observation gives them.  FOLDER has a public trace of virtual machines
(azure2017, part ``dev``): which of them are there when, and their sizes, are
recorded; what each uses of its CPUs from moment to moment is drawn from a seed.  The other loads
are drawn, too.  ``above`` is what was in use beyond the threshold, in CPU hours for each hour.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct, to_builtins

from pinfold.adapters.traces.azure2017 import Azure2017
from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.controllers.suppression import Cap, Suppressed, Suppression
from pinfold.core.kubelet.own_policies import SuppressionOptions, percent
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet

CPUS: Final = 32
SYSTEM: Final = 2.0
TICKS: Final = 10
"""Moments in a second at which the load may change."""
OPTIONS: Final = SuppressionOptions(use=True)
THRESHOLD: Final = percent(OPTIONS.threshold) * CPUS
LOWERED: Final = THRESHOLD - percent(OPTIONS.margin) * CPUS
"""The same rule with a threshold that is lower by our margin."""
SHARE: Final = 1 / 100
"""Of the trace's arrivals, those that one node is offered."""
WARM_UP: Final = 24 * 3600.0
"""Seconds of the trace that fill the node, and are not counted."""
RISE: Final = 4.0
"""CPUs; a rise of the load by more within a second is one whose answer is timed."""
_SENSITIVE: Final = Owner("sensitive", "main")
_BORROWER: Final = Owner("borrower", "main")


class Rule(Protocol):
    """Whatever makes a cap of what was used in the last second."""

    name: str
    cap: float

    def look(self, second: int, sensitive: float, borrowed: float) -> None:
        """Look at means, and change :attr:`cap`."""


class Koordinator:
    """Its rule as it is published: down at once, up by a tenth of the node a second, 2 CPUs."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self.name = "Koordinator" if threshold == THRESHOLD else "lowered"
        self.cap = self._threshold = threshold

    def look(self, second: int, sensitive: float, borrowed: float) -> None:
        """See :class:`Rule`; changes of less than a hundredth of the node are left out."""
        del second, borrowed
        wished = max(2.0, self._threshold - sensitive - SYSTEM)
        wished = min(wished, self.cap + 0.1 * CPUS)
        if abs(wished - self.cap) >= 0.01 * CPUS:
            self.cap = wished


class Ours:
    """The controller that an agent has."""

    def __init__(self) -> None:
        self.name = "Pinfold"
        self.cap = inf
        self._controller = Suppression(OPTIONS, SYSTEM)
        self._memory = Suppressed()

    def look(self, second: int, sensitive: float, borrowed: float) -> None:
        """See :class:`Rule`."""
        idle = 1.0 - min(CPUS, sensitive + borrowed + SYSTEM) / CPUS
        seen = Seen(
            float(second),
            _ALL,
            _ALL,
            dict.fromkeys(_ALL, idle),
            {
                _SENSITIVE: SeenContainer(CPUSet(), QOSClass.BURSTABLE, Load(1.0, sensitive)),
                _BORROWER: SeenContainer(
                    CPUSet(), QOSClass.BEST_EFFORT, Load(1.0, borrowed), borrows=True
                ),
            },
            cap=None if self.cap == inf else self.cap,
        )
        self._memory, proposals = self._controller.step(self._memory, seen)
        for one in proposals:
            if isinstance(one, Cap) and one.quota is not None:
                self.cap = one.quota


_ALL: Final = CPUSet(range(CPUS))


class Figures(Struct):
    """What came of a load: counts in an hour; ``work`` is the mean of best-effort CPUs."""

    load: str
    rule: str
    hours: float
    steps: float
    above: float
    above_share: float
    work: float
    rises: int
    answer: float
    slowest: float


def simulate(name: str, load: Iterable[float], rule: Rule) -> Figures:
    """Run a rule over a load, one number for each tick."""
    ticks = steps = above_ticks = 0
    above = work = sensitive = borrowed = 0.0
    rose: int | None = None
    answers: list[float] = []
    recent = [inf] * TICKS
    for now in load:
        used = min(now, CPUS - SYSTEM)
        if used - recent[ticks % TICKS] > RISE and rose is None:
            rose = ticks
        recent[ticks % TICKS] = used
        took = max(0.0, min(rule.cap, CPUS - SYSTEM - used))
        beyond = max(0.0, used + took + SYSTEM - max(THRESHOLD, used + SYSTEM + 2.0))
        above += beyond
        above_ticks += beyond > 0
        work += took
        sensitive += used
        borrowed += took
        ticks += 1
        if ticks % TICKS == 0:
            cap = rule.cap
            rule.look(ticks // TICKS, sensitive / TICKS, borrowed / TICKS)
            steps += rule.cap != cap
            sensitive = borrowed = 0.0
        if rose is not None:
            target = max(2.0, THRESHOLD - used - SYSTEM)
            if rule.cap <= target + 0.02 * CPUS:
                answers.append((ticks - rose) / TICKS)
                rose = None
    hours = ticks / TICKS / 3600
    return Figures(
        name,
        rule.name,
        round(hours, 2),
        round(steps / hours, 1),
        round(above / TICKS / 3600 / hours, 3),
        round(above_ticks / ticks, 4),
        round(work / ticks, 2),
        len(answers),
        round(sum(answers) / len(answers), 2) if answers else 0.0,
        max(answers, default=0.0),
    )


# ------------------------------------------------------------------------------------------ loads


def steady(chance: random.Random) -> Iterator[float]:
    """A third of the node, give or take 2 % of it."""
    while True:
        yield CPUS / 3 + chance.gauss(0, 0.02 * CPUS)


def noisy(chance: random.Random) -> Iterator[float]:
    """A mean that wanders between nothing and two thirds of the node within minutes."""
    level = CPUS / 4
    while True:
        level += (CPUS / 4 - level) / (60 * TICKS) + chance.gauss(0, 0.06)
        yield max(0.0, level + chance.gauss(0, 0.3))


def steps(chance: random.Random) -> Iterator[float]:
    """Low and high by turns, for half a minute each on average."""
    level = 0.1 * CPUS
    while True:
        for _ in range(1 + round(chance.expovariate(1 / (30 * TICKS)))):
            yield level + chance.gauss(0, 0.01 * CPUS)
        level = 0.6 * CPUS - level


def bursts(chance: random.Random) -> Iterator[float]:
    """A low load with bursts of a second or two every few seconds, as requests come."""
    while True:
        for _ in range(1 + round(chance.expovariate(1 / (8 * TICKS)))):
            yield 0.15 * CPUS + chance.gauss(0, 0.01 * CPUS)
        level = chance.uniform(0.3, 0.55) * CPUS
        for _ in range(1 + round(chance.expovariate(1 / (1.5 * TICKS)))):
            yield level


class Machine(Struct):
    """A virtual machine of the trace: until when it is there, its CPUs, and what it does now."""

    ends: float
    cpus: int
    level: float
    until: float = 0.0


def recorded(folder: Path, chance: random.Random) -> Iterator[float]:
    """The virtual machines of a trace that one node has room for."""
    arrivals = Azure2017(str(folder), "dev", SHARE).arrivals(7)
    coming = next(arrivals, None)
    first = WARM_UP + (0.0 if coming is None else coming.at)
    running: list[Machine] = []
    for tick in range(10**9):
        now = first + tick / TICKS
        while coming is not None and coming.at <= now:
            cpus, ends = coming.size.cpu_milli // 1000, coming.at + coming.lifetime
            if ends > now and sum(one.cpus for one in running) + cpus <= CPUS - 4:
                running.append(Machine(ends, cpus, 0.2))
            coming = next(arrivals, None)
        if tick % TICKS == 0:
            running = [one for one in running if one.ends > now]
        for one in running:
            if now >= one.until:
                # Mostly little to do, sometimes all that it has, for some seconds.
                one.level = 0.9 if chance.random() < 0.1 else chance.betavariate(1.5, 5)
                one.until = now + chance.expovariate(1 / 20)
        yield sum(one.level * one.cpus for one in running) + abs(chance.gauss(0, 0.1))


def main(arguments: list[str] | None = None) -> int:
    """Simulate, print, write; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suppression", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="with the trace")
    parser.add_argument("--hours", type=float, default=6.0, help="of each load (6)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    given = parser.parse_args(arguments)
    loads: dict[str, Callable[[random.Random], Iterator[float]]] = {
        one.__name__: one for one in (steady, noisy, steps, bursts)
    }
    if (folder := given.folder) is not None:
        loads["recorded"] = lambda chance: recorded(folder, chance)
    found = []
    print(f"{'load':10}{'rule':13}{'steps/h':>9}{'above':>9}{'time':>8}{'work':>7}  answer (s)")
    for name, load in loads.items():
        for rule in (Koordinator(), Koordinator(LOWERED), Ours()):
            chance = random.Random(given.seed)  # noqa: S311 - the same load for both, no secret
            ticks = islice(load(chance), round(given.hours * 3600 * TICKS))
            one = simulate(name, ticks, rule)
            found.append(one)
            answer = f"{one.answer:.2f}, {one.slowest:.1f} at most" if one.rises else "-"
            print(
                f"{name:10}{one.rule:13}{one.steps:9.1f}{one.above:9.3f}{one.above_share:8.1%}"
                f"{one.work:7.2f}  {answer}",
                flush=True,
            )
    if given.json is not None:
        given.json.write_text(json.dumps(to_builtins(found), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
