"""What the runs of the effect come to: medians, ratios, and a table for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

FIGURES: Final = {
    "wake": ("p50_us", "p99_us", "p999_us", "max_us"),
    "spin": ("share_percent", "longest_gap_us"),
}
QUIET: Final = 0.2
"""CPUs that other programs may use before the figures are called doubtful."""

Runs = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]
"""Mode -> task (wake, spin) -> its runs."""


def medians(runs: Runs) -> dict[str, dict[str, float]]:
    """Mode -> figure -> its median; ``others`` is that of all runs of both tasks."""
    found: dict[str, dict[str, float]] = {}
    for mode, tasks in runs.items():
        figures = {
            figure: round(statistics.median(run[figure] for run in tasks[task]), 2)
            for task, names in FIGURES.items()
            for figure in names
        }
        others = [run["others"] for task in tasks.values() for run in task]
        found[mode] = {**figures, "others": statistics.median(others)}
    return found


def ratios(runs: Runs) -> dict[str, dict[str, float]]:
    """How many times better static is than the others: medians of the ratios within a turn.

    Below 1 (against ``alone``, as a rule) it is worse.
    """
    found: dict[str, dict[str, float]] = {}
    for mode in runs:
        if mode == "static":
            continue
        found[mode] = {}
        for task, names in FIGURES.items():
            pairs = [*zip(runs[mode][task], runs["static"][task], strict=True)]
            for name in names:
                better = [
                    one[name] / other[name]
                    for other, one in (
                        pairs if name == "share_percent" else ((b, a) for a, b in pairs)
                    )
                    if other[name]
                ]
                found[mode][name] = round(statistics.median(better), 2) if better else 0.0
    return found


def table(document: Mapping[str, Any]) -> str:
    """The medians and the ratios for people."""
    names = [*(name for figures in FIGURES.values() for name in figures), "others"]
    lines = [f"{'mode':<20}" + "".join(f"{name:>16}" for name in names)]
    for mode, figures in document["medians"].items():
        lines.append(f"{mode:<20}" + "".join(f"{figures[name]:>16,.2f}" for name in names))
    for mode, figures in document["ratios"].items():
        label = f"static against {mode}"
        lines.append(
            f"{label:<21}"
            + "".join(f"{figures[name]:>15.2f}x" for name in names if name != "others")
        )
    machine = document["machine"]
    virtual = (
        ", a virtual machine: its host's pauses are in all modes" if machine["virtual"] else ""
    )
    lines += [f"{mode}: {about}" for mode, about in document["modes"].items()]
    lines.append(
        f"CPUs {machine['cpus']}, Linux {machine['kernel']}, cgroup v{machine['cgroups']}{virtual}"
        f"; probe in {document['probe']}"
    )
    if "partition" not in document["medians"]:
        lines.append("static with a partition was not run: it needs cgroup v2")
    if max(figures["others"] for figures in document["medians"].values()) > QUIET:
        lines.append(
            "other programs were busy: they take CPUs that a mode leaves idle; compare no latencies"
        )
    return "\n".join(lines)


def is_virtual() -> bool:
    """Whether the CPU says that a hypervisor is below (x86; elsewhere unknown, so False)."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    return False
