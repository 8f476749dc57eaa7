"""Plots as SVG, drawn by Vega-Lite without a browser and without a network.

Vega is asked for colours that are CSS variables.  Each element gets the light colour as well, as
an attribute, so that programs without CSS (slides, converters) draw it right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element, register_namespace, tostring

import vl_convert
from defusedxml.ElementTree import fromstring

from pinfold.render.report.colours import declarations, variables
from pinfold.render.report.specification import specification
from pinfold.render.report.texts import safe
from pinfold.render.report.view import Figure
from pinfold.render.svg_canvas import SANS, wrap_text

WIDE: Final = 560
NARROW: Final = 340
"""Pixels: for a page, and for a telephone."""

_SVG: Final = "http://www.w3.org/2000/svg"
_VEGA_LITE: Final = "5.20"
_VARIABLE: Final = re.compile(r"var\(--([a-z0-9-]+)\)")
_NUMBER: Final = re.compile(r"-?\d+\.\d+")
_UNUSED: Final = ("pointer-events", "aria-hidden", "role", "aria-roledescription", "class")


def picture(figure: Figure) -> str:
    """A plot that stands alone, with its title, in both schemes."""
    words = [figure.title, *wrap_text(safe(figure.says), 12, WIDE - 40)]
    return _named(_drawn(figure, WIDE, words), figure, figure.name, alone=True)


def inline(figure: Figure, width: int) -> str:
    """A plot for a page that has the variables, and says its title."""
    return _named(_drawn(figure, width, ()), figure, f"{figure.name}-{width}", alone=False)


def _drawn(figure: Figure, width: int, title: list[str] | tuple[()]) -> Element:
    text = vl_convert.vegalite_to_svg(
        specification(figure.chart, width, title), vl_version=_VEGA_LITE
    )
    drawn: Element = fromstring(text)
    return drawn


def _named(drawn: Element, figure: Figure, prefix: str, *, alone: bool) -> str:
    """The picture as text: with its words, and with names of its own on what is referred to."""
    colours = variables(dark=False)
    for parent in list(drawn.iter()):
        for child in list(parent):
            if child.get("display") == "none" or (
                child.tag.endswith("path") and not child.get("d")
            ):
                parent.remove(child)
        _settle(parent, colours, prefix)
    drawn.attrib.pop("version", None)
    drawn.set("role", "img")
    drawn.set("aria-labelledby", f"{prefix}-title {prefix}-desc")
    drawn.set("font-family", SANS)
    words = []
    for kind, text in (("title", figure.title), ("desc", figure.says)):
        element = Element(f"{{{_SVG}}}{kind}", {"id": f"{prefix}-{kind}"})
        element.text = safe(text)
        words.append(element)
    if alone:
        style = Element(f"{{{_SVG}}}style")
        style.text = (
            f"svg{{{declarations(dark=False)}}}"
            f"@media screen and (prefers-color-scheme:dark){{svg{{{declarations(dark=True)}}}}}"
        )
        back = Element(
            f"{{{_SVG}}}rect",
            {"width": "100%", "height": "100%", "fill": colours["bg"], "style": "fill:var(--bg)"},
        )
        words += [style, back]
    for place, element in enumerate(words):
        drawn.insert(place, element)
    register_namespace("", _SVG)
    return tostring(drawn, encoding="unicode") + "\n"


def _settle(element: Element, colours: Mapping[str, str], prefix: str) -> None:
    for name in _UNUSED:
        element.attrib.pop(name, None)
    if element.tag.endswith("text"):
        element.attrib.pop("font-family", None)
    styles = [element.get("style", "")] if element.get("style") else []
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.set(name, f"{prefix}-{value}")
        elif "url(#" in value:
            element.set(name, value.replace("url(#", f"url(#{prefix}-"))
        elif name == "d":
            element.set(name, _NUMBER.sub(lambda found: f"{float(found[0]):.4g}", value))
        elif name in ("fill", "stroke") and (found := _VARIABLE.fullmatch(value)):
            element.set(name, colours[found[1]])
            styles.append(f"{name}:{value}")
    if styles:
        element.set("style", ";".join(styles))
