"""The effect as a picture: a row of bars for each figure, the modes below each other."""

from __future__ import annotations

from collections.abc import Mapping
from math import log10
from typing import Any, Final

_WIDTH: Final = 760
_LEFT: Final = 110
_RIGHT: Final = 110
_BAR: Final = 18
_HEAD: Final = 34
_COLOURS: Final = {
    "alone": "#2e7d32",
    "equals": "#b3541e",
    "none": "#d98b2b",
    "static": "#0b6bcb",
    "partition": "#7b3fa0",
}
_PANELS: Final = {
    "p50_us": "wake-up of a 1 ms timer, median lateness (us, logarithmic)",
    "p99_us": "99th percentile (us, logarithmic)",
    "p999_us": "99.9th percentile (us, logarithmic)",
    "max_us": "latest (us, logarithmic)",
    "share_percent": "share of the time that a busy loop gets (%)",
}


def as_svg(document: Mapping[str, Any]) -> str:
    """Draw the medians of a document of :mod:`benchmarks.effect`."""
    medians: Mapping[str, Mapping[str, float]] = document["medians"]
    parts: list[str] = []
    y = 40.0
    for figure, title in _PANELS.items():
        values = {mode: figures[figure] for mode, figures in medians.items()}
        parts += _panel(y, title, values, linear=figure == "share_percent")
        y += _HEAD + _BAR * len(values)
    notes = [f"{mode}: {about}" for mode, about in document["modes"].items()]
    if document["machine"]["virtual"]:
        notes.append("measured in a virtual machine: its host's pauses are in all modes")
    for note in notes:
        y += 15
        parts.append(f'<text x="12" y="{y:.0f}" fill="#555" font-size="11">{note}</text>')
    height = round(y + 16)
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
                f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">'
            ),
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            '<text x="12" y="24" font-size="15" fill="#222">A pod beside noisy neighbours</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(top: float, title: str, values: Mapping[str, float], *, linear: bool) -> list[str]:
    parts = [f'<text x="12" y="{top + 18:.0f}" fill="#222">{title}</text>']
    high = 100.0 if linear else max(*values.values(), 10.0)
    for number, (mode, value) in enumerate(values.items()):
        y = top + 26 + number * _BAR
        share = value / high if linear else log10(max(value, 1.0)) / log10(high)
        length = max(2.0, share * (_WIDTH - _LEFT - _RIGHT))
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 12:.0f}" text-anchor="end" fill="#444">{mode}</text>',
            (
                f'<rect x="{_LEFT}" y="{y:.0f}" width="{length:.1f}" height="{_BAR - 4}" '
                f'fill="{_COLOURS[mode]}"/>'
            ),
            f'<text x="{_LEFT + length + 6:.1f}" y="{y + 12:.0f}" fill="#222">{value:,.1f}</text>',
        ]
    return parts
