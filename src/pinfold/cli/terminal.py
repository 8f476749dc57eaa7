"""The terminal that a command prints on."""

from __future__ import annotations

import os
import shutil
import sys

from pinfold.render.terminal import Style


def style(color: bool | None = None) -> Style:  # noqa: FBT001 - the option's value
    """How to print on standard output."""
    stream = sys.stdout
    return Style.detect(
        os.environ,
        is_tty=stream.isatty(),
        encoding=stream.encoding,
        width=shutil.get_terminal_size((80, 24)).columns,
        color=color,
    )
