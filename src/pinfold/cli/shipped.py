"""What a wheel has beside the modules: ``python -m pinfold.cli.shipped FOLDER``, when it is built.

Manual pages, the scripts of the shells where these look for them, and the table of completion.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from pinfold.cli import main
from pinfold.cli.commands.about.completion import script
from pinfold.cli.completion_table import table
from pinfold.cli.manual import SECTION, manual_page, walk

TABLE: Final = "table.json"
"""The table of completion in the folder; it belongs into the package."""

_SCRIPTS: Final[Mapping[str, str]] = {
    "bash": "share/bash-completion/completions/pinfold",
    "zsh": "share/zsh/site-functions/_pinfold",
    "fish": "share/fish/vendor_completions.d/pinfold.fish",
}
"""Where the shells look, below where programs are installed."""


def shipped() -> dict[str, bytes]:
    """Every file, by its path."""
    files = {
        f"share/man/man{SECTION}/{'-'.join(names)}.{SECTION}": manual_page(names, one).encode()
        for names, one in walk(main)
    }
    files |= {path: script(shell).encode() for shell, path in _SCRIPTS.items()}
    return files | {TABLE: msgspec.json.encode(table())}


def write(folder: Path) -> None:
    """Write them."""
    for path, content in shipped().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
