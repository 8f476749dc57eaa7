"""The effect on a server: latency, throughput, and what the others get done meanwhile.

    python -m benchmarks.effect --work service [--repeat N] [--budget SECONDS] [--docs]

Real agents run real pods: a server under open-loop load, a pod that owns a CPU or would, and
neighbours as clusters have them.  The modes take turns, so that a disturbance does not fall on one
of them alone; ratios are those within a turn.  Turns go on until the interval of each median ratio
leaves 1 out or is narrow, or until --budget is spent.  `others` is the CPU time (in CPUs) that
programs outside of the experiment used: where it is not near 0, compare no latencies.  Pairs of
which the hypervisor took a tick or more of the server's CPUs in either run are left out of ratios.

--docs writes the table into docs/reference/benchmarks.md and docs/pictures/effect.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.agent_measuring import busy_seconds, stolen_seconds, used_seconds
from benchmarks.agent_scene import GivenUpError, NotHereError, Scene, answer, require_node, scene
from benchmarks.effect_figures import is_virtual
from benchmarks.effect_modes import (
    AGENTS,
    BEST_EFFORT,
    LENDS,
    MODES,
    NEIGHBOURS,
    OWNER,
    RESERVED,
    Mode,
)
from benchmarks.effect_service_report import (
    BASES,
    KINDS,
    PAGE,
    PICTURE,
    Runs,
    as_svg,
    intervals,
    markdown,
    medians,
    text,
    write_into,
)
from pinfold.core.values.cpuset import CPUSet

REQUEST_US: Final = 250.0
"""How long a request is to take where nobody disturbs it."""
SOURCE: Final = Path(__file__).with_name("effect_server.c")
MEAN_BUSY, CALIBRATION = 50.0, 1.5
"""Percent of the time for which the load is to keep the server busy, and seconds to find out."""
FIRST_UNITS = 5_000
"""The units that are tried first: so few that no machine falls behind."""
REST, PULSE = 1.5, 1.0
"""Seconds for which an owner rests, once its CPU may have been lent, and for which it is busy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.effect --work service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="that are measured a run (3)")
    parser.add_argument("--repeat", type=int, default=6, help="turns at least (6)")
    parser.add_argument(
        "--budget", type=float, default=720.0, help="seconds after which no turn begins (720)"
    )
    parser.add_argument("--modes", default=",".join(MODES), help="which, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw them")
    parser.add_argument("--docs", action="store_true", help="write them into the documentation")
    given = parser.parse_args(arguments)
    modes = {name: MODES[name] for name in given.modes.split(",") if name in MODES}
    try:
        document = measure(modes, given.seconds, given.repeat, given.budget)
    except (NotHereError, GivenUpError) as error:
        print(f"did not run: {error}", file=sys.stderr)
        return 1
    print(text(document))
    if given.json:
        given.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if given.svg:
        given.svg.write_text(as_svg(document), encoding="utf-8")
    if given.docs:
        PICTURE.write_text(as_svg(document), encoding="utf-8")
        write_into(PAGE, markdown(document))
    return 0


def measure(
    modes: Mapping[str, Mode], seconds: float, repeat: int, budget: float
) -> dict[str, Any]:
    """Take turns until the ratios are known; everything that was measured.

    Raises:
        NotHereError: this machine, or this user, cannot run it.
        GivenUpError: something did not happen.
    """
    cpus, began = require_node(), time.monotonic()
    with _nodes(modes) as nodes:
        bench = Bench(nodes, seconds)
        runs: dict[str, dict[str, list[Mapping[str, float]]]] = {
            kind: {name: [] for name in modes} for kind in KINDS
        }
        turn, longest = 0, 0.0
        while turn < repeat or not _is_decided(runs):
            if (before := time.monotonic()) - began + longest > budget:
                break
            turn += 1
            bench.calibrate()
            for name, mode in modes.items():
                print(f"turn {turn}: {name}", file=sys.stderr)
                for kind, run in bench.runs(mode).items():
                    runs[kind][name].append(run)
            longest = max(longest, time.monotonic() - before)
    if not turn:
        raise GivenUpError(f"no turn could begin within {budget:g} s; give --budget more")
    return {
        "machine": {
            "cpus": str(cpus),
            "kernel": platform.release().split("-")[0],
            "virtual": is_virtual(),
            "cgroups": 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
        },
        "seconds": seconds,
        "turns": turn,
        "decided": _is_decided(runs),
        "modes": {name: mode.about for name, mode in modes.items()},
        "medians": medians(runs),
        "ratios": {
            f"{mode} to {base}": {
                kind: {name: str(one) for name, one in figures.items()}
                for kind, figures in intervals(runs, mode, base).items()
            }
            for mode, base in BASES
            if mode in modes and base in modes
        },
        "runs": runs,
    }


def _is_decided(runs: Runs) -> bool:
    return all(
        interval.is_decided
        for mode, base in BASES
        for figures in intervals(runs, mode, base).values()
        for interval in figures.values()
    )


@contextmanager
def _nodes(modes: Mapping[str, Mode]) -> Iterator[Mapping[str, Scene]]:
    """An agent for each way to look after pods; those that have none at the moment do nothing."""
    with ExitStack() as stack:
        nodes = {}
        for name in dict.fromkeys(mode.agent for mode in modes.values()):
            policy, own = AGENTS[name]
            nodes[name] = stack.enter_context(scene(own, cpuManagerPolicy=policy, **RESERVED))
        yield nodes


class Bench:
    """Runs servers in pods of several agents, each by the name that the modes have for it."""

    def __init__(self, nodes: Mapping[str, Scene], seconds: float) -> None:
        self._nodes = nodes
        self._seconds = seconds
        self._program = _build(next(iter(nodes.values())).folder)
        self._units: dict[str, int] = {}

    def runs(self, mode: Mode) -> dict[str, Mapping[str, float]]:
        """A run of each kind of server."""
        node = self._nodes[mode.agent]
        with self._neighbours(node, mode) as pids:
            runs = {kind: self._run(node, mode, kind, pids) for kind in KINDS}
            if mode.agent == LENDS:
                back = self._return(node, mode)
                runs = {kind: {**run, **back} for kind, run in runs.items()}
            return runs

    def calibrate(self) -> None:
        """Find how many units a request of each kind has, so that it keeps the server as busy.

        It is asked under the load of the runs: back to back, requests find their data in the
        caches, and are a tenth shorter.  The machine is not always as fast, so each turn asks anew.
        """
        node = next(iter(self._nodes.values()))
        for kind in KINDS:
            for _ in range(1 if kind in self._units else 2):
                units = self._units.get(kind, FIRST_UNITS)
                file = node.new_file()
                words = ("serve", kind, str(units), f"{REQUEST_US}", "0", f"{CALIBRATION}")
                name = self._apply(node, "calibration", (*words, str(file)), OWNER)
                told = answer(file)
                # Also what was late counts: a pause of the machine makes no request shorter.
                served = max(told["requests"] - told["lost"], 1.0) / told["requests"]
                busy = 100 * told["cpu_s"] / CALIBRATION / served
                node.delete(name)
                self._units[kind] = max(round(units * MEAN_BUSY / busy), 8)

    def _run(
        self, node: Scene, mode: Mode, kind: str, pids: Mapping[str, int]
    ) -> Mapping[str, float]:
        file, counted = node.new_file(), _counters(node)
        load = (str(self._units[kind]), f"{REQUEST_US}", f"{mode.warm}", f"{self._seconds}")
        words = ("serve", kind, *load, str(file))
        name = self._apply(node, "server", words, OWNER, mode.annotations)
        owner = node.agent.pids(name)["main"]
        time.sleep(mode.warm)
        before = _Look(pids, owner)
        time.sleep(self._seconds)
        after = _Look(pids, owner)
        measured = answer(file)
        node.delete(name)
        later = _counters(node)
        events = {name: later[name] - counted.get(name, 0.0) for name in later}
        return {**measured, **before.until(after), **events}

    def _return(self, node: Scene, mode: Mode) -> Mapping[str, float]:
        """Milliseconds from the end of an owner's rest until its CPU is not lent any more.

        The kernel's file is read every half of a millisecond, from outside of the agent; nothing is
        told where the CPU was not lent when the rest ended.
        """
        file, lent = node.new_file(), node.idle_file()
        words = ("pulse", f"{mode.warm + REST}", f"{PULSE}", str(file))
        name = self._apply(node, "server", words, OWNER, mode.annotations)
        cpu = CPUSet(os.sched_getaffinity(node.agent.pids(name)["main"]))
        last = gone = 0
        deadline = time.monotonic() + mode.warm + REST + PULSE
        while not gone and time.monotonic() < deadline:
            if _has(lent, cpu):
                last = time.monotonic_ns()
            elif file.exists():
                gone = time.monotonic_ns()
            time.sleep(0.0005)
        began = answer(file)["at_ns"]
        node.delete(name)
        if not gone or last < began:
            return {}
        return {"return_ms": round((gone - began) / 1e6, 2)}

    @contextmanager
    def _neighbours(self, node: Scene, mode: Mode) -> Iterator[Mapping[str, int]]:
        """The neighbours' main processes, by name."""
        listed = NEIGHBOURS if mode.neighbours else {}
        pods = {
            name: self._apply(node, name, words, resources)
            for name, (words, resources) in listed.items()
        }
        try:
            yield {name: node.agent.pids(pod)["main"] for name, pod in pods.items()}
        finally:
            for pod in pods.values():
                node.delete(pod)

    def _apply(
        self,
        node: Scene,
        name: str,
        words: Sequence[str],
        resources: Mapping[str, Any],
        annotations: Mapping[str, str] | None = None,
    ) -> str:
        container = {
            "name": "main",
            "command": [str(self._program), *words],
            "resources": resources,
        }
        node.agent.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": dict(annotations or {})},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            }
        )
        return name


def _has(file: Path, cpus: CPUSet) -> bool:
    """Whether these CPUs are in a kernel's file; not where there is no such file."""
    try:
        return bool(cpus) and cpus <= CPUSet.parse(file.read_text(encoding="ascii").strip())
    except OSError:
        return False


class _Look:
    """What everybody has used until now."""

    def __init__(self, neighbours: Mapping[str, int], owner: int) -> None:
        self.at = time.monotonic()
        self.best_effort = used_seconds(neighbours[name] for name in BEST_EFFORT if neighbours)
        self.neighbours = used_seconds(neighbours.values())
        self.owner = used_seconds([owner])
        self.machine = busy_seconds()
        self.cpus = os.sched_getaffinity(owner)
        self.stolen = stolen_seconds(self.cpus)
        self.beside = busy_seconds(self.cpus) if len(self.cpus) == 1 else None

    def until(self, later: _Look) -> dict[str, float]:
        """What was used from here to there, in CPUs, and how much of the owner's idle time.

        ``lent_percent`` is missing where the server has not one CPU at both moments.
        """
        wall = later.at - self.at
        owner = later.owner - self.owner
        ours = later.neighbours - self.neighbours + owner
        found = {
            "best_effort_cpus": (later.best_effort - self.best_effort) / wall,
            "others": max(later.machine - self.machine - ours, 0.0) / wall,
        }
        if self.cpus == later.cpus:
            found["stolen_ms"] = 1000 * (later.stolen - self.stolen)
        if self.beside is not None and later.beside is not None and self.cpus == later.cpus:
            idle = max(wall - owner, 0.001)
            used = later.beside - self.beside - owner
            found["lent_percent"] = 100 * min(max(used / idle, 0.0), 1.0)
        return {name: round(value, 3) for name, value in found.items()}


def _counters(node: Scene) -> dict[str, float]:
    """The agent's counters of what it has done by itself."""
    found = dict.fromkeys(COUNTERS, 0.0)
    for line in _metrics(node.agent.socket).splitlines():
        name, _, value = line.rpartition(" ")
        for word, pattern in COUNTERS.items():
            if re.match(pattern, name):
                found[word] += float(value)
    return found


def _metrics(path: Path) -> str:
    """What an agent tells Prometheus."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        parts = [*iter(partial(connection.recv, 65536), b"")]
    return b"".join(parts).decode("utf-8", "replace")


COUNTERS: Final = {
    "moves": "pinfold_move_duration_seconds_count",
    "lends": r"pinfold_control_proposals_total(?=.*outcome=\"done\").*rank=\"lending\"",
    "returns": r"pinfold_control_proposals_total(?=.*outcome=\"done\").*rank=\"return\"",
}
"""A figure, and the metrics that it is the growth of."""


def _build(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NotHereError("needs a C compiler (cc)")
    program = folder / "server"
    command = [compiler, "-O2", "-pthread", "-o", str(program), str(SOURCE), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return program
