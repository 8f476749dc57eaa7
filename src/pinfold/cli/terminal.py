"""The terminal that a command prints on."""

from __future__ import annotations

import os
import shutil
import sys

from pinfold.render.terminal import Style


def style(color: bool | None = None) -> Style:  # noqa: FBT001 - the option's value
    """How to print on standard output."""
    # Python has none where it was closed before the program began (``>&-``).
    stream = sys.stdout or None
    return Style.detect(
        os.environ,
        is_tty=stream is not None and stream.isatty(),
        encoding="utf-8" if stream is None else stream.encoding,
        width=shutil.get_terminal_size((80, 24)).columns,
        color=color,
    )
