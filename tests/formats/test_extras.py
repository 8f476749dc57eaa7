"""An extra that is missing is named with the command that the package was installed with."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinfold.formats.extras import install_command


@pytest.mark.parametrize(
    ("mark", "command"),
    [
        ("pipx_metadata.json", "pipx install --force 'pinfold[agent]'"),
        ("uv-receipt.toml", "uv tool install --force 'pinfold[agent]'"),
        ("pyvenv.cfg", "pip install 'pinfold[agent]'"),
    ],
)
def test_the_command_is_that_of_the_tool(mark: str, command: str, tmp_path: Path) -> None:
    (tmp_path / mark).touch()
    assert install_command("agent", tmp_path) == command


def test_of_this_environment() -> None:
    assert install_command("agent,cluster") == "pip install 'pinfold[agent,cluster]'"
