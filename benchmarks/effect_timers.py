"""The effect: what a pod feels beside noisy neighbours, under policy none and under static.

    python -m benchmarks.effect --work timers [--seconds N] [--repeat N] [--json FILE] [--svg FILE]

Real agents run real pods: a probe and, except when it is alone, four pods that are busy for ever.
The modes take turns, so that a disturbance does not fall on one of them alone; the ratios are
those of one turn, and the median of all turns is told.  `others` is the CPU time (in CPUs) that
programs outside of the experiment used meanwhile.  They run where a mode leaves a CPU idle, which
is beside the probe when it is alone or has its own CPU: where `others` is not near 0, latencies of
different modes cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.agent_measuring import busy_seconds, used_seconds
from benchmarks.agent_scene import (
    CGROUPS,
    GivenUpError,
    NotHereError,
    Scene,
    answer,
    require_node,
    scene,
)
from benchmarks.effect_figures import FIGURES, Runs, is_virtual, medians, ratios, table
from benchmarks.effect_plot import as_svg

NEIGHBOURS: Final = 4
QUIET_HELP: Final = "measure again while other programs use more CPUs than this (0.2)"


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run the probe: which agent, the probe's CPUs ("" for BestEffort)."""

    agent: str
    cpus: str
    neighbours: int
    about: str


MODES: Final = {
    "alone": Mode("none", "1", 0, "no neighbours"),
    "equals": Mode("none", "", NEIGHBOURS, "policy none, probe and neighbours BestEffort"),
    "none": Mode("none", "1", NEIGHBOURS, "policy none, probe Guaranteed with 1 CPU"),
    "static": Mode("static", "1", NEIGHBOURS, "policy static, probe on an exclusive CPU"),
    "partition": Mode(
        "isolated", "1", NEIGHBOURS, "as static, an isolated cpuset partition wished for"
    ),
}
"""The last one on cgroup v2 only."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.effect --work timers", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run (3)")
    parser.add_argument("--repeat", type=int, default=3, help="turns (3)")
    parser.add_argument("--quiet", type=float, default=0.2, metavar="CPUS", help=QUIET_HELP)
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for that (120)")
    parser.add_argument("--heavy", action="store_true", help="outweigh all other programs here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw them")
    given = parser.parse_args(arguments)
    try:
        cpus = require_node()
        with _nodes(heavy=given.heavy) as nodes:
            runner = Runner(nodes, given.seconds, given.quiet, given.patience)
            runs = runner.take_turns(given.repeat)
            language = nodes["static"].probe.language
    except (NotHereError, GivenUpError) as error:
        print(f"did not run: {error}", file=sys.stderr)
        return 1
    document = {
        "machine": {
            "cpus": str(cpus),
            "kernel": platform.release(),
            "virtual": is_virtual(),
            "cgroups": 2 if _unified() else 1,
        },
        "probe": language,
        "seconds": given.seconds,
        "heavy": given.heavy,
        "modes": {name: MODES[name].about for name in runs},
        "medians": medians(runs),
        "ratios": ratios(runs),
        "runs": runs,
    }
    print(table(document))
    if given.json:
        given.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if given.svg:
        given.svg.write_text(as_svg(document), encoding="utf-8")
    return 0


def _unified() -> bool:
    return (CGROUPS / "cgroup.controllers").exists()


@contextmanager
def _nodes(*, heavy: bool) -> Iterator[Mapping[str, Scene]]:
    """An agent for each policy, at the same time; those that have no pods do nothing."""
    with ExitStack() as stack:
        # Under none nothing is reserved: all CPUs are for all pods, as on a plain node.
        nodes = {
            "none": stack.enter_context(scene(cpuManagerPolicy="none", reservedSystemCPUs="")),
            "static": stack.enter_context(scene()),
        }
        if _unified():
            nodes["isolated"] = stack.enter_context(scene({"partition": "isolated"}))
        if heavy:
            for node in nodes.values():
                node.outweigh()
        yield nodes


class Runner:
    """Runs probes in pods of several agents.

    Args:
        nodes: the agents, by the name that the modes have for them.
        seconds: of each run.
        quiet: a run is repeated while other programs use more CPUs than this,
        patience: until so many seconds were spent on all repetitions.
    """

    def __init__(
        self, nodes: Mapping[str, Scene], seconds: float, quiet: float, patience: float
    ) -> None:
        self._nodes = nodes
        self._seconds = seconds
        self._quiet = quiet
        self._patience = patience

    def take_turns(self, count: int) -> Runs:
        """Every mode, and that so many times."""
        modes = {name: mode for name, mode in MODES.items() if mode.agent in self._nodes}
        runs: dict[str, dict[str, list[Mapping[str, float]]]] = {
            mode: {task: [] for task in FIGURES} for mode in modes
        }
        for turn in range(count):
            for name, mode in modes.items():
                with _neighbours(self._nodes[mode.agent], mode.neighbours) as pids:
                    for task in FIGURES:
                        print(f"turn {turn + 1}/{count}: {name}, {task}", file=sys.stderr)
                        runs[name][task].append(self._quietest(mode, task, pids))
        return runs

    def _quietest(self, mode: Mode, task: str, neighbours: Sequence[int]) -> Mapping[str, float]:
        best = self._run(mode, task, neighbours)
        while best["others"] > self._quiet and self._patience > 0:
            began = time.monotonic()
            again = self._run(mode, task, neighbours)
            best = min(best, again, key=lambda run: run["others"])
            self._patience -= time.monotonic() - began
        return best

    def _run(self, mode: Mode, task: str, neighbours: Sequence[int]) -> Mapping[str, float]:
        node = self._nodes[mode.agent]
        file = node.new_file()
        began, everybody, hogs = time.monotonic(), busy_seconds(), used_seconds(neighbours)
        name = node.apply((task, str(self._seconds), str(file)), mode.cpus)
        measured = answer(file)
        wall = time.monotonic() - began
        ours = used_seconds(neighbours) - hogs + measured["cpu_s"]
        others = max(busy_seconds() - everybody - ours, 0.0) / wall
        node.wait_ended(name)
        node.delete(name)
        return {**measured, "others": round(others, 2)}


@contextmanager
def _neighbours(node: Scene, count: int) -> Iterator[list[int]]:
    """Pods that are busy for ever; their main processes."""
    names = [node.apply(("hog",)) for _ in range(count)]
    try:
        pids = [node.agent.pids(name)["main"] for name in names]
        time.sleep(0.3)  # the scheduler spreads them
        yield pids
    finally:
        for name in names:
            node.delete(name)
