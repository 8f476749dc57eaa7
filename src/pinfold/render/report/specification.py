"""From a plot as data to its specification in Vega-Lite 5.

Colours are CSS variables: Vega passes them through, so that one picture follows the page's scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pinfold.render.report.colours import series, step
from pinfold.render.report.texts import elided, isolated, safe
from pinfold.render.report.view import BarChart, Chart, LineChart
from pinfold.render.svg_canvas import SANS, text_width

Spec = dict[str, Any]

SHAPES: Final = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
DASHES: Final = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3])
"""The colours and shapes of all dashes are those of the lines eight before."""

_FONT: Final = 12
_SYMBOL: Final = 70
"""Pixels beside a name in a legend."""
_PLOT_HEIGHT: Final = 240
_BAR_STEP: Final = 42
_MARKERS: Final = 7


def specification(chart: Chart, width: int, title: Sequence[str] = ()) -> Spec:
    """The specification of a plot.

    Args:
        chart: what is to be drawn.
        width: of the whole picture, in pixels.
        title: lines above it, for a plot that stands alone; the first is set larger.
    """
    if isinstance(chart, LineChart):
        spec = _lines(chart, width, alone=bool(title))
    else:
        spec = _bars(chart, width)
    spec |= {
        "width": width,
        "padding": 4,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": _config(),
    }
    if title:
        head, *rest = title
        spec["title"] = {"text": safe(head), "subtitle": [safe(line) for line in rest]}
    return spec


def labels(names: Sequence[str], width: float) -> list[str]:
    """The names for a picture: none too wide, each only once; numbered where some are alike."""
    short = [elided(isolated(name), width, _FONT) for name in names]
    if len(set(short)) == len(short):
        return short
    numbers = [f"{number}. " for number, _ in enumerate(names, start=1)]
    room = width - max(text_width(number, _FONT) for number in numbers)
    return [
        number + elided(isolated(name), room, _FONT)
        for number, name in zip(numbers, names, strict=True)
    ]


def _config() -> Spec:
    axis = {
        "labelColor": "var(--dim)",
        "titleColor": "var(--ink)",
        "gridColor": "var(--edge)",
        "gridOpacity": 0.55,
        "domainColor": "var(--edge)",
        "tickColor": "var(--edge)",
        "labelFontSize": _FONT,
        "titleFontSize": _FONT,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    }
    legend = {
        "orient": "top",
        "direction": "horizontal",
        "title": None,
        "labelColor": "var(--ink)",
        "labelFontSize": _FONT,
        "labelLimit": 0,
        "symbolSize": 90,
        "symbolStrokeWidth": 2,
        "symbolOpacity": 1,
        "rowPadding": 4,
        "columnPadding": 16,
        "offset": 14,
    }
    title = {
        "anchor": "start",
        "color": "var(--ink)",
        "fontSize": 16,
        "fontWeight": 600,
        "subtitleColor": "var(--dim)",
        "subtitleFontSize": _FONT,
        "subtitlePadding": 6,
        "offset": 14,
        "frame": "bounds",
    }
    return {
        "aria": False,
        "background": None,
        "font": SANS,
        "axis": axis,
        "legend": legend,
        "title": title,
        "view": {"stroke": None},
    }


def _legend(names: Sequence[str], width: int) -> Spec:
    widest = max((text_width(name, _FONT) for name in names), default=0) + 44
    return {"title": None, "columns": max(int((width - 20) / widest), 1), "symbolType": "square"}


def _lines(chart: LineChart, width: int, *, alone: bool) -> Spec:
    names = labels(chart.keys, width - _SYMBOL)
    if chart.numbered and not alone:
        names = [str(number) for number, _ in enumerate(names, start=1)]
    used = sorted({line.key for line in chart.lines})
    domain = [names[key] for key in used]
    shown: list[Spec] = []
    for place, line in enumerate(chart.lines):
        apart = max(-(-len(line.points) // _MARKERS), 1)
        for number, (x, y) in enumerate(line.points):
            marked = (number + line.key * apart // len(SHAPES)) % apart == 0
            shown.append(
                {
                    "x": _x(chart, x),
                    "y": y,
                    "key": names[line.key],
                    "line": place,
                    "marked": marked,
                }
            )
    bands = [
        {"x": _x(chart, x), "low": low, "high": high, "key": names[line.key]}
        for line in chart.lines
        for x, low, high in line.band
    ]
    legend = _legend(domain, width) if len(used) > 1 or chart.keys[1:] else None
    if legend:
        del legend["symbolType"]
    scale = {"domain": domain, "range": [series(key) for key in used]}
    colour = {"field": "key", "type": "nominal", "scale": scale, "legend": legend}
    dash_scale = {"domain": domain, "range": [DASHES[key // 8 % len(DASHES)] for key in used]}
    shape_scale = {"domain": domain, "range": [SHAPES[key % len(SHAPES)] for key in used]}
    x_axis = _x_axis(chart, width)
    y_axis: Spec = {
        "type": "quantitative",
        "scale": {"zero": chart.from_zero, "nice": True},
        "axis": {"title": None, "tickCount": 6, "domain": False, "ticks": False},
    }
    if chart.percent:
        y_axis["axis"]["format"] = "~%"
    layers: list[Spec] = []
    if bands:
        layers.append(
            {
                "data": {"values": bands},
                "mark": {"type": "area", "opacity": 0.2, "interpolate": "linear"},
                "encoding": {
                    "x": x_axis,
                    "y": y_axis | {"field": "low"},
                    "y2": {"field": "high"},
                    "color": colour,
                },
            }
        )
    both = {"x": x_axis, "y": y_axis | {"field": "y"}, "color": colour}
    dash = {"field": "key", "type": "nominal", "scale": dash_scale, "legend": legend}
    shape = {"field": "key", "type": "nominal", "scale": shape_scale, "legend": legend}
    layers.append(
        {
            "mark": {"type": "line", "strokeWidth": 2, "strokeJoin": "round"},
            "encoding": both | {"strokeDash": dash, "detail": {"field": "line"}},
        }
    )
    layers.append(
        {
            "transform": [{"filter": "datum.marked"}],
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": both | {"shape": shape},
        }
    )
    if chart.at is not None:
        last = max((x for line in chart.lines for x, _ in line.points), default=0.0)
        layers += _moment(chart.at, "left" if chart.at[0] < last / 2 else "right")
    return {"height": _PLOT_HEIGHT, "data": {"values": shown}, "layer": layers}


def _x(chart: LineChart, x: float) -> float | str:
    return chart.categories[int(x)] if chart.categories else x


def _x_axis(chart: LineChart, width: int) -> Spec:
    if chart.categories:
        return {
            "field": "x",
            "type": "ordinal",
            "scale": {"domain": list(chart.categories)},
            "axis": {"title": chart.x, "labelAngle": 0, "labelOverlap": True, "grid": False},
        }
    axis: Spec = {"title": chart.x, "tickCount": width // 80, "grid": False}
    if chart.whole:
        axis |= {"values": sorted({x for line in chart.lines for x, _ in line.points})}
        axis |= {"format": "d", "labelOverlap": True}
    return {
        "field": "x",
        "type": "quantitative",
        "scale": {"zero": False, "nice": False, "padding": 10 if chart.whole else 4},
        "axis": axis,
    }


def _moment(at: tuple[float, str], align: str) -> list[Spec]:
    place, words = at
    data = {"values": [{"x": place, "words": words}]}
    x = {"field": "x", "type": "quantitative"}
    return [
        {
            "data": data,
            "mark": {"type": "rule", "color": "var(--dim)", "strokeDash": [4, 3]},
            "encoding": {"x": x},
        },
        {
            "data": data,
            "mark": {
                "type": "text",
                "align": align,
                "baseline": "bottom",
                "dy": -2,
                "y": 0,
                "fontSize": 11,
                "color": "var(--dim)",
            },
            "encoding": {"x": x, "text": {"field": "words"}},
        },
    ]


def _bars(chart: BarChart, width: int) -> Spec:
    says = [safe(bar.says) for bar in chart.bars]
    room = width - 30 - max((text_width(f": {words}", _FONT) for words in says), default=0)
    names = labels([bar.name for bar in chart.bars], max(room, width / 3))
    rows = [f"{name}: {words}" for name, words in zip(names, says, strict=True)]
    parts = labels(chart.parts, width - _SYMBOL)
    shown = [
        {"row": row, "part": part, "number": number, "value": value}
        for row, bar in zip(rows, chart.bars, strict=True)
        for number, (part, value) in enumerate(zip(parts, bar.values, strict=True))
    ]
    y = {
        "field": "row",
        "type": "nominal",
        "sort": rows,
        "axis": {
            "title": None,
            "ticks": False,
            "domain": False,
            "labelAlign": "left",
            "labelBaseline": "middle",
            "labelPadding": -2,
            "labelOffset": -11,
            "labelLimit": 0,
            "labelColor": "var(--ink)",
        },
    }
    hues = chart.hues or tuple(range(len(parts)))
    colours = [step(n) if chart.ordered else series(n) for n in hues]
    colour = {
        "field": "part",
        "type": "nominal",
        "sort": None,
        "scale": {"domain": parts, "range": colours},
        "legend": _legend(parts, width) if parts[1:] else None,
    }
    axis: Spec = {"title": chart.x, "tickCount": width // 90, "domain": False, "ticks": False}
    if chart.percent:
        axis["format"] = "~%"
    x = {
        "field": "value",
        "type": "quantitative",
        "stack": "zero",
        "scale": {"domainMin": 0},
        "axis": axis,
    }
    bar = {"type": "bar", "size": 15, "yOffset": 9, "stroke": "var(--bg)", "strokeWidth": 1}
    layers: list[Spec] = [
        {
            "mark": bar,
            "encoding": {
                "x": x,
                "y": y,
                "color": colour,
                "order": {"field": "number", "type": "quantitative"},
            },
        }
    ]
    ranges = [
        {"row": row, "low": bar.between[0], "high": bar.between[1]}
        for row, bar in zip(rows, chart.bars, strict=True)
        if bar.between is not None and bar.between[0] < bar.between[1]
    ]
    if ranges:
        between = {
            "x": {"field": "low", "type": "quantitative"},
            "x2": {"field": "high"},
            "y": y,
        }
        layers.append(
            {
                "data": {"values": ranges},
                "mark": {"type": "rule", "yOffset": 19, "strokeWidth": 2, "color": "var(--ink)"},
                "encoding": between,
            }
        )
    return {"height": {"step": _BAR_STEP}, "data": {"values": shown}, "layer": layers}
