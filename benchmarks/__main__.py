"""The command: ``python -m benchmarks [--json FILE] [--svg FILE] [NAME...]``.

A name may be a pattern (``allocate.*``).  Nothing is asserted; a workload that cannot run is
reported and left out, and the exit status is then 1.  One that this machine or user is not for
(an agent needs root) is left out without that.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from benchmarks import (
    agent_containers,
    agent_fakes,
    agent_kernel,
    agent_live,
    agent_loop,
    allocation,
    decisions,
    device_plugins,
    devices,
    events,
    extender,
    kubelet_merge,
    merge,
    moves,
    page,
    process,
    publishing,
    quota_cache,
    scheduling,
    simulation,
    start_up,
)
from benchmarks.agent_measuring import remarks
from benchmarks.agent_scene import GivenUpError, NotHereError
from benchmarks.measure import Result, measure, measure_own_clock
from benchmarks.plot import as_svg
from benchmarks.report import HEADER, as_json, growth, legend, row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads (all); * is a wildcard")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw cost against size")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    given = parser.parse_args(arguments)
    registry = workloads()
    chosen = [
        name
        for name in registry
        if not given.names or any(fnmatchcase(name, wanted) for wanted in given.names)
    ]
    if given.list:
        print("\n".join(chosen))
        return 0
    if not chosen:
        parser.error(f"no workload is named {' or '.join(given.names)}; --list shows them")
    results: dict[str, Result] = {}
    print(HEADER)
    for name in chosen:
        try:
            results[name] = registry[name]()
        except NotHereError as error:
            chosen = [other for other in chosen if other != name]
            print(f"{name:<26} left out: {error}", flush=True)
        except GivenUpError as error:
            print(f"{name:<26} did not run: {error}", flush=True)
        except subprocess.CalledProcessError as error:
            print(f"{name:<26} did not run: {_last_line(error)}", flush=True)
        else:
            print(row(name, results[name]), flush=True)
    _print_summary(results)
    if given.json:
        given.json.write_text(as_json(results))
    if given.svg:
        given.svg.write_text(as_svg(results))
    return 0 if len(results) == len(chosen) else 1


def workloads() -> dict[str, Callable[[], Result]]:
    """Every workload by name: set up and measure."""
    found: dict[str, Callable[[], Result]] = {}
    for module in (
        allocation,
        decisions,
        merge,
        kubelet_merge,
        devices,
        moves,
        publishing,
        scheduling,
        process,
    ):
        for name, setup in module.WORKLOADS.items():
            found[name] = partial(_measure, setup)
    for name, own_clock in (allocation.OWN_CLOCK | process.OWN_CLOCK).items():
        found[name] = partial(_measure_own_clock, own_clock)
    for agent in (
        start_up,
        device_plugins,
        agent_fakes,
        agent_kernel,
        agent_loop,
        agent_live,
        agent_containers,
        events,
        page,
        quota_cache,
        extender,
        simulation,
    ):
        found |= agent.MEASURED
    return found


def _measure(setup: Callable[[], Callable[[], object]]) -> Result:
    return measure(setup())


def _measure_own_clock(setup: Callable[[], Callable[[], int]]) -> Result:
    return measure_own_clock(setup())


def _print_summary(results: dict[str, Result]) -> None:
    if not results:
        return
    print()
    for line in legend(results):
        print(line)
    lines = growth(results)
    if lines:
        print("growth, exponent of the number of CPUs (1 is linear):")
        print("\n".join(lines))
    for line in (*remarks(results), *agent_kernel.growth(results)):
        print(line)


def _last_line(error: subprocess.CalledProcessError) -> str:
    output = error.stderr or b""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output
    lines = text.strip().splitlines()
    return lines[-1] if lines else f"exit status {error.returncode}"


if __name__ == "__main__":
    sys.exit(main())
