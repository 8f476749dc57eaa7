"""Cost against size on two logarithmic axes, as an SVG: a straight line's slope is the growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log2, log10
from typing import Final

from benchmarks.allocation import NUMA_NODES
from benchmarks.kubelet_reference import FIGURES
from benchmarks.measure import Result
from benchmarks.report import duration, here, series

_WIDTH: Final = 760
_HEIGHT: Final = 460
_LEFT: Final = 80
_RIGHT: Final = 190
_TOP: Final = 48
_BOTTOM: Final = 52
_FAMILIES: Final = {
    "allocate.packed": "#0b6bcb",
    "allocate.distributed": "#b3541e",
    "hints": "#2e7d32",
    "policy": "#7b3fa0",
}

Points = Sequence[tuple[int, float]]


def as_svg(results: Mapping[str, Result]) -> str:
    """Draw the medians of every family with sizes, and the kubelet's scaled to this machine."""
    lines: list[tuple[str, str, Points, bool]] = []
    for family, colour in _FAMILIES.items():
        points = series(results, family)
        if points:
            lines.append((family, colour, points, False))
            kubelet = [
                (cpus, here(figure, median, results[name].calibration_ns))
                for cpus, _ in points
                if (figure := FIGURES.get(name := f"{family}.{cpus}")) is not None
                and (median := figure.median_ns) is not None
            ]
            if len(kubelet) > 1:
                lines.append((f"kubelet: {family}", colour, kubelet, True))
    return _Chart(lines).draw()


class _Chart:
    def __init__(self, lines: Sequence[tuple[str, str, Points, bool]]) -> None:
        self.lines = lines
        every = [point for _, _, points, _ in lines for point in points] or [(8, 1e3), (16, 1e4)]
        self.sizes = sorted({cpus for cpus, _ in every})
        self.low = floor(log10(min(ns for _, ns in every)))
        self.high = max(self.low + 1, ceil(log10(max(ns for _, ns in every))))

    def x(self, cpus: float) -> float:
        first, last = log2(self.sizes[0]), log2(self.sizes[-1])
        share = (log2(cpus) - first) / max(1.0, last - first)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, ns: float) -> float:
        share = (log10(ns) - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def draw(self) -> str:
        parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
                f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">'
            ),
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            (
                f'<text x="{_LEFT}" y="24" font-size="15" fill="#222">Time per decision against '
                "the size of the machine</text>"
            ),
            *self._grid(),
        ]
        heights = self._label_heights()
        for (name, colour, points, dashed), label in zip(self.lines, heights, strict=True):
            path = " ".join(f"{self.x(cpus):.1f},{self.y(ns):.1f}" for cpus, ns in points)
            dash = ' stroke-dasharray="6 4"' if dashed else ""
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
            )
            parts += [
                f'<circle cx="{self.x(cpus):.1f}" cy="{self.y(ns):.1f}" r="3" fill="{colour}">'
                f"<title>{name}, {cpus} CPUs: {duration(ns)}</title></circle>"
                for cpus, ns in points
            ]
            parts.append(
                f'<text x="{_WIDTH - _RIGHT + 12}" y="{label:.1f}" fill="{colour}">{name}</text>'
            )
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _label_heights(self) -> list[float]:
        """Where each line's name goes: at its end, moved down where two would touch."""
        wanted = sorted(
            (self.y(points[-1][1]), i) for i, (_, _, points, _) in enumerate(self.lines)
        )
        heights = [0.0] * len(self.lines)
        last = 0.0
        for height, index in wanted:
            last = max(height + 4, last + 15)
            heights[index] = last
        return heights

    def _grid(self) -> list[str]:
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = [
            (
                f'<text x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 8}" text-anchor="middle" '
                'fill="#444">CPUs</text>'
            )
        ]
        for power in range(self.low, self.high + 1):
            y = self.y(10**power)
            parts.append(
                f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444">'
                f"{duration(10**power)}</text>"
            )
        for cpus in self.sizes:
            x = self.x(cpus)
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" stroke="#eee"/>'
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#444">'
                f"{cpus}</text>"
                f'<text x="{x:.1f}" y="{bottom + 32}" text-anchor="middle" fill="#777" '
                f'font-size="10">{NUMA_NODES.get(cpus, 0)} NUMA</text>'
            )
        return parts
