"""The files of a report: the page, and its plots as pictures.

The libraries that draw are an extra.  They take 100 ms and more to load, so this module is loaded
when a report is asked for.
"""

from __future__ import annotations

from pathlib import Path

from pinfold.cli.output import InputError, input_errors
from pinfold.cli.views.report.view import report_view
from pinfold.documents.simulation.results import Simulation

try:
    from pinfold.render.report.drawing import picture
    from pinfold.render.report.page import page
except ModuleNotFoundError as missing:
    raise InputError(
        f"a report needs {missing.name}; install pinfold with its extra: pip install "
        "'pinfold[report]'"
    ) from None


def write_report(simulation: Simulation, path: Path) -> None:
    """Write the page.

    Raises:
        InputError: it cannot be written there.
    """
    text = page(report_view(simulation))
    with input_errors(OSError):
        path.write_text(text, encoding="utf-8")


def write_pictures(simulation: Simulation, folder: Path) -> None:
    """Write each plot as an SVG into a folder, which is made if it is not there.

    Raises:
        InputError: they cannot be written there.
    """
    pictures = {figure.name: picture(figure) for figure in report_view(simulation).figures()}
    with input_errors(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pictures.items():
            (folder / f"{name}.svg").write_text(text, encoding="utf-8")
