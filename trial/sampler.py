"""Watches the kernel while the trial goes on; a process of its own.

``python -m trial.sampler TRIAL RESULT`` walks over the trial's processes until its standard input
ends, then writes RESULT, a JSON document.  With the kernel's tracing it also counts who was put on
an owner's CPU by the scheduler.
"""

from __future__ import annotations

import json
import select
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from trial.judge import Judge
from trial.observed import Process, Processes, online, present
from trial.patience import PATIENCE
from trial.switches import Switch, Switches

PAUSE: Final = 0.01 * PATIENCE
SETTLING: Final = 2.0 * PATIENCE
"""Seconds after a CPU went or came in which the kernel itself moves everybody."""


class Sampler:
    """Walks and judges; ``switches`` counts those on owned CPUs, ``foreign`` those to others."""

    def __init__(self, trial: str) -> None:
        self._judge = Judge()
        self.judgement = self._judge.judgement
        self.switches: int | None = None
        self.foreign = 0
        self._processes = Processes(trial)
        self._tracing = Switches.open(trial)
        self._unjudged: list[Switch] = []
        if self._tracing is not None:
            self.switches = 0
        self._walks: list[tuple[float, list[Process], float]] = []
        """Begin, what was seen, end."""
        self._online = online()
        self._changed = 0.0
        self._owned: list[tuple[float, float, dict[str, frozenset[int]], dict[int, str]]] = []

    def run(self) -> None:
        """Until standard input ends."""
        while not select.select([sys.stdin], [], [], PAUSE)[0]:
            self.step()
        if self._tracing is not None:
            self._tracing.close()

    def step(self) -> None:
        """One walk, and what it shows of the one before."""
        began = time.monotonic()
        if (now := online()) != self._online:
            self._online, self._changed = now, began
        seen = self._processes.walk()
        self._walks = [*self._walks[-2:], (began, seen, time.monotonic())]
        self.judgement.walks += 1
        if len(self._walks) < 3:
            return
        if began - self._changed < SETTLING:
            self.judgement.unjudged += 1
            self._owned.clear()
            self._judge.skip()
        else:
            first, middle, last = (walk for _, walk, _ in self._walks)
            owners = self._judge.look((first, middle, last), present() - self._online)
            pids = {
                one.pid: one.pod for _, walk, _ in self._walks for one in walk if not one.escapes
            }
            # It was an owner at some moment of the first walk and at some moment of the last.
            self._owned.append((self._walks[0][2], self._walks[2][0], owners, pids))
        self._count_switches()

    def _count_switches(self) -> None:
        if self._tracing is None:
            return
        until = self._walks[-1][0]
        switches = [*self._unjudged, *self._tracing.read()]
        # Who owned what while a walk went on is known after the next one.
        self._unjudged = [switch for switch in switches if switch.at > until]
        for switch in switches:
            if switch.at <= until:
                self._judge_switch(self._tracing, switch)
        self._owned = self._owned[-100:]

    def _judge_switch(self, tracing: Switches, switch: Switch) -> None:
        for since, until, owners, pids in self._owned:
            if not since <= switch.at <= until:
                continue
            owner = next((pod for pod, cpus in owners.items() if switch.cpu in cpus), None)
            if owner is None:
                continue
            self.switches = (self.switches or 0) + 1
            other = pids.get(switch.tid)
            if other is not None and other != owner and tracing.was_itself(switch):
                self.foreign += 1
                self.judgement.find(
                    "strangers",
                    f"thread {switch.tid} of {other} was put on CPU {switch.cpu} of {owner}",
                )
            return

    def result(self) -> dict[str, Any]:
        """What was seen, as JSON has it."""
        return {**asdict(self.judgement), "switches": self.switches, "foreign": self.foreign}


def main() -> None:
    """See the module."""
    trial, result = sys.argv[1:]
    sampler = Sampler(trial)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sampler.run()
    Path(result).write_text(json.dumps(sampler.result()), encoding="utf-8")


if __name__ == "__main__":
    main()
