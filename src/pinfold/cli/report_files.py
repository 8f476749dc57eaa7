"""The files of a report: the page, and its plots as pictures.

The libraries that draw are an extra, and take 170 ms to load, so this module is loaded when a
report is asked for, within :func:`~pinfold.cli.output.needs_extra`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.cli.output import InputError, input_errors, write_whole
from pinfold.documents.simulation.results import Simulation
from pinfold.render.report.drawing import picture
from pinfold.render.report.page import page
from pinfold.views.report.view import report_view

_PAGES: Final = frozenset({".html", ".htm"})


class ReportFiles(Struct, frozen=True):
    """What was asked for: the page, a folder of pictures, or both.

    Raises:
        InputError: they cannot be written there, which is told before a long run.
    """

    page: str | None
    pictures: str | None

    def __post_init__(self) -> None:
        """See that there are places for them."""
        if self.page is not None:
            path = Path(self.page)
            if path.suffix not in _PAGES and (path.is_file() or not path.exists()):
                raise InputError(f"--report {path}: it is a page of HTML; name it {path.stem}.html")
            if path.is_dir():
                raise InputError(f"--report {path}: is a folder; name a file in it")
            if not path.absolute().parent.is_dir():
                raise InputError(f"--report {path}: there is no folder {path.absolute().parent}")
        if self.pictures is not None:
            folder = Path(self.pictures)
            if folder.exists() and not folder.is_dir():
                raise InputError(f"--svg {folder}: is no folder")

    def write(self, simulation: Simulation) -> None:
        """Write them; raises InputError."""
        if self.page is not None:
            write_report(simulation, Path(self.page))
        if self.pictures is not None:
            write_pictures(simulation, Path(self.pictures))


def write_report(simulation: Simulation, path: Path) -> None:
    """Write the page.

    Raises:
        InputError: it cannot be written there.
    """
    text = page(report_view(simulation))
    with input_errors(OSError, prefix=f"--report {path}: "):
        write_whole(path, text)


def write_pictures(simulation: Simulation, folder: Path) -> None:
    """Write each plot as an SVG into a folder, which is made if it is not there.

    Raises:
        InputError: they cannot be written there.
    """
    pictures = {figure.name: picture(figure) for figure in report_view(simulation).figures()}
    with input_errors(OSError, prefix=f"--svg {folder}: "):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pictures.items():
            write_whole(folder / f"{name}.svg", text)
