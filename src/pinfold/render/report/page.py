"""The report as one page of HTML that loads nothing.

Every text goes through Jinja's escaping, and what turns the direction of text or moves a cursor
becomes the replacement character before.  The page has no script, and its policy allows none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from pinfold.render.report.colours import declarations
from pinfold.render.report.drawing import NARROW, WIDE, inline
from pinfold.render.report.texts import safe
from pinfold.render.report.view import Block, Figure, Report


def page(report: Report) -> str:
    """The page as text."""
    environment = Environment(
        loader=FunctionLoader(_part),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["runs"] = _runs
    pictures = {
        figure.name: tuple(Markup(inline(figure, width)) for width in (WIDE, NARROW))  # noqa: S704 - drawn as XML from escaped texts
        for figure in report.figures()
    }
    style = _part("report.css").replace("/* light */", declarations(dark=False))
    return environment.get_template("page.html.jinja").render(
        report=report,
        pictures=pictures,
        style=Markup(style.replace("/* dark */", declarations(dark=True))),  # noqa: S704 - our own file
    )


def _runs(blocks: tuple[Block, ...]) -> Iterator[Mapping[str, object]]:
    """Plots that follow each other are side by side."""
    for figures, run in groupby(blocks, lambda block: isinstance(block, Figure)):
        yield {"figures": figures, "blocks": tuple(run)}


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _finalize(value: Any) -> Any:  # noqa: ANN401 - whatever a template prints
    return safe(value) if type(value) is str else value
