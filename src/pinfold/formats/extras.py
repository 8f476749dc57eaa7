"""What to type where an extra of the package is not installed: as the package itself was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_MARKS: Final = {
    "pipx_metadata.json": "pipx install --force",
    "uv-receipt.toml": "uv tool install --force",
}
"""The file that a tool leaves in the environment it makes, and how that tool installs."""


def install_command(extra: str, environment: Path | None = None) -> str:
    """The command that installs the package with an extra.

    Args:
        extra: such as ``agent``, or several with commas.
        environment: the one of Python; that of this process where it is not said.
    """
    place = environment or Path(sys.prefix)
    found = (command for mark, command in _MARKS.items() if (place / mark).exists())
    return f"{next(found, 'pip install')} 'pinfold[{extra}]'"
