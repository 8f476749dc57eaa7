"""What the runs of the effect on a server come to: medians, ratios, tables and a picture."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import log10
from pathlib import Path
from typing import Any, Final

from benchmarks.effect_figures import QUIET
from benchmarks.effect_pairs import Interval, paired_ratios

KINDS: Final = {
    "alone": "one thread",
    "together": "two threads that wait for each other",
}
"""The kinds of servers."""
LABELS: Final = {
    "p50_us": "p50, us",
    "p99_us": "p99, us",
    "p999_us": "p99.9, us",
    "served_per_s": "served/s",
    "busy_percent": "busy, %",
    "best_effort_cpus": "best-effort, CPUs",
    "lent_percent": "idle time used, %",
    "return_ms": "return, ms",
    "stolen_ms": "stolen, ms",
}
FIGURES: Final = (
    "p50_us",
    "p99_us",
    "p999_us",
    "served_per_s",
    "busy_percent",
    "best_effort_cpus",
    "lent_percent",
    "moves",
    "lends",
    "returns",
    "return_ms",
    "others",
    "stolen_ms",
)
"""What is told of a mode, so far as it has it."""
DECISIVE: Final = ("p50_us", "p99_us", "served_per_s", "best_effort_cpus")
"""Figures that turns go on for."""
BASES: Final = (
    ("static", "none"),
    ("lending", "static"),
    ("lending", "alone"),
    ("load-driven", "static"),
)
"""What is compared with what."""

STOLEN: Final = 10.0
"""Milliseconds of the server's CPUs that a hypervisor takes in a run that is spoilt: one tick.

While it is away requests wait, one in a hundred of a run and more: its p99 is the hypervisor's.
"""

Runs = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]
"""Kind -> mode -> its runs, in the order of the turns."""
Spread = Mapping[str, float]

_ROOT: Final = Path(__file__).parent.parent / "docs"
PAGE: Final = _ROOT / "reference" / "benchmarks.md"
PICTURE: Final = _ROOT / "pictures" / "effect.svg"
_BEGIN: Final = "<!-- effect: written by make bench-effect ARGS=--docs -->\n"
_END: Final = "<!-- effect: end -->\n"

_WIDTH, _LEFT, _RIGHT, _BAR, _HEAD = 760, 110, 150, 18, 36
_COLOURS: Final = {
    "alone": "#2e7d32",
    "none": "#d98b2b",
    "static": "#0b6bcb",
    "lending": "#7b3fa0",
    "load-driven": "#00897b",
}
_PANELS: Final = {
    "p50_us": "median latency (us, logarithmic)",
    "p99_us": "99th percentile (us, logarithmic)",
    "p999_us": "99.9th percentile (us, logarithmic)",
    "served_per_s": "requests served a second",
    "best_effort_cpus": "CPUs that best-effort pods used",
}
_LINEAR: Final = frozenset({"served_per_s", "best_effort_cpus"})


def medians(runs: Runs) -> dict[str, dict[str, dict[str, Spread]]]:
    """Kind -> mode -> figure -> its ``median``, ``least`` and ``most``."""
    return {
        kind: {
            mode: {
                figure: _spread([run[figure] for run in of if figure in run])
                for figure in FIGURES
                if any(figure in run for run in of)
            }
            for mode, of in modes.items()
            if of
        }
        for kind, modes in runs.items()
    }


def _spread(values: Sequence[float]) -> Spread:
    told = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 3) for name, value in told.items()}


def intervals(
    runs: Runs, mode: str, base: str, figures: Sequence[str] = DECISIVE
) -> dict[str, dict[str, Interval]]:
    """Kind -> figure -> how many times what it is in ``base`` it is in ``mode``.

    Pairs with a spoilt run are left out.
    """
    found: dict[str, dict[str, Interval]] = {}
    for kind, modes in runs.items():
        pairs = sound_pairs(modes.get(mode, ()), modes.get(base, ()))
        known = [name for name in figures if any(run.get(name) for _, run in pairs)]
        if pairs:
            found[kind] = {
                name: paired_ratios(
                    [one[name] for one, _ in pairs], [run[name] for _, run in pairs]
                )
                for name in known
            }
    return found


def sound_pairs(
    of: Sequence[Mapping[str, float]], to: Sequence[Mapping[str, float]]
) -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
    """The runs of the same turns of which neither is spoilt."""
    return [
        pair
        for pair in zip(of, to, strict=bool(of and to))
        if all(run.get("stolen_ms", 0.0) < STOLEN for run in pair)
    ]


def text(document: Mapping[str, Any]) -> str:
    """The medians and the ratios for people."""
    lines = []
    for kind, modes in document["medians"].items():
        lines.append(f"server of {KINDS[kind]}")
        for mode, figures in modes.items():
            told = "  ".join(f"{name} {_told(one)}" for name, one in figures.items())
            lines.append(f"  {mode:<12}{told}")
    for pair, kinds in document["ratios"].items():
        for kind, figures in kinds.items():
            told = "  ".join(f"{name} {one}" for name, one in figures.items())
            lines.append(f"{pair}, {KINDS[kind]}: {told}")
    return "\n".join([*lines, *_remarks(document)])


def markdown(document: Mapping[str, Any]) -> str:
    """The same as tables of a page."""
    lines: list[str] = []
    for kind, modes in document["medians"].items():
        names = [name for name in FIGURES if any(name in figures for figures in modes.values())]
        lines += [
            f"A server of {KINDS[kind]}; medians of {document['turns']} runs, least and most:",
            "",
            f"| mode | {' | '.join(LABELS.get(name, name) for name in names)} |",
            "|---" * (len(names) + 1) + "|",
        ]
        for mode, figures in modes.items():
            cells = [_told(figures[name]) if name in figures else "" for name in names]
            lines.append(f"| `{mode}` | {' | '.join(cells)} |")
        lines.append("")
    lines += [
        "How many times as much; medians of pairs within a turn, with the interval of each:",
        "",
        f"| | server | {' | '.join(LABELS[name].partition(',')[0] for name in DECISIVE)} |",
        "|---" * (len(DECISIVE) + 2) + "|",
    ]
    for pair, kinds in document["ratios"].items():
        for kind, ratios in kinds.items():
            cells = [ratios.get(name, "") for name in DECISIVE]
            lines.append(f"| {pair} | {KINDS[kind]} | {' | '.join(cells)} |")
    lines += ["", "![The effect on a server](../pictures/effect.svg)", ""]
    return "\n".join([*lines, *(f"{remark}." for remark in _remarks(document))]) + "\n"


def _remarks(document: Mapping[str, Any]) -> Iterator[str]:
    machine = document["machine"]
    yield (
        f"CPUs {machine['cpus']}, Linux {machine['kernel']}, cgroup v{machine['cgroups']}"
        f"{', a virtual machine' if machine['virtual'] else ''}; {document['turns']} turns, "
        f"{document['seconds']:g} s measured in each run"
    )
    spoilt = sum(
        run.get("stolen_ms", 0.0) >= STOLEN
        for modes in document["runs"].values()
        for of in modes.values()
        for run in of
    )
    yield (
        f"A run is spoilt of which the hypervisor took {STOLEN:.0f} ms or more of the server's "
        f"CPUs: {spoilt} were, and are in no ratio"
    )
    if not document["decided"]:
        yield "Some intervals are still wide and have 1 in them: those ratios are not known"
    if any(
        figures["others"]["median"] > QUIET
        for modes in document["medians"].values()
        for figures in modes.values()
    ):
        yield "Other programs were busy meanwhile: compare no latencies"


def _told(one: Spread) -> str:
    if one["least"] == one["most"]:
        return _number(one["median"])
    return f"{_number(one['median'])} ({_number(one['least'])} to {_number(one['most'])})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 20 or value == round(value) else f"{value:.2f}"


def write_into(page: Path, written: str) -> None:
    """Put tables between the two marks of a page.

    Raises:
        ValueError: the page has no such place.
    """
    whole = page.read_text(encoding="utf-8")
    place = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)
    if len(place.findall(whole)) != 1:
        raise ValueError(f"{page}: has not one place between {_BEGIN.strip()} and {_END.strip()}")
    page.write_text(place.sub(lambda _: f"{_BEGIN}\n{written}{_END}", whole), encoding="utf-8")


def as_svg(document: Mapping[str, Any]) -> str:
    """Bars of the medians, with the spread of the runs as a line on each."""
    parts: list[str] = []
    y = 44.0
    for kind, modes in document["medians"].items():
        parts.append(
            f'<text x="12" y="{y + 4:.0f}" font-size="13" font-weight="bold" fill="#222">'
            f"A server of {KINDS[kind]}</text>"
        )
        y += 8
        for figure, title in _PANELS.items():
            values = {mode: told[figure] for mode, told in modes.items() if figure in told}
            parts += _panel(y, title, values, linear=figure in _LINEAR)
            y += _HEAD + _BAR * len(values)
        y += 18
    for note in (f"{mode}: {about}" for mode, about in document["modes"].items()):
        parts.append(f'<text x="12" y="{y:.0f}" fill="#555" font-size="11">{escape(note)}</text>')
        y += 15
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 4:.0f}" '
                f'width="{_WIDTH}" height="{y + 4:.0f}" font-family="sans-serif" font-size="12">'
            ),
            f'<rect width="{_WIDTH}" height="{y + 4:.0f}" fill="#ffffff"/>',
            '<text x="12" y="24" font-size="15" fill="#222">A server beside its neighbours</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(top: float, title: str, values: Mapping[str, Spread], *, linear: bool) -> list[str]:
    parts = [f'<text x="12" y="{top + 18:.0f}" fill="#222">{title}</text>']
    high = max([one["most"] for one in values.values()] + [0.1 if linear else 10.0])

    def length(value: float) -> float:
        share = value / high if linear else log10(max(value, 1.0)) / log10(high)
        return max(2.0, share * (_WIDTH - _LEFT - _RIGHT))

    for number, (mode, one) in enumerate(values.items()):
        y = top + 26 + number * _BAR
        middle, end = y + (_BAR - 4) / 2, _LEFT + length(one["most"])
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 12:.0f}" text-anchor="end" fill="#444">{mode}</text>',
            (
                f'<rect x="{_LEFT}" y="{y:.0f}" width="{length(one["median"]):.1f}" '
                f'height="{_BAR - 4}" fill="{_COLOURS[mode]}"/>'
            ),
            (
                f'<line x1="{_LEFT + length(one["least"]):.1f}" x2="{end:.1f}" y1="{middle:.1f}" '
                f'y2="{middle:.1f}" stroke="#222"/>'
            ),
            f'<text x="{end + 6:.1f}" y="{y + 12:.0f}" fill="#222">{_told(one)}</text>',
        ]
    return parts
