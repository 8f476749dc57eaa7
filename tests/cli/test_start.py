"""What a command imports: what it uses, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pinfold.cli import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says_of_itself(name: str) -> None:
    with click.Context(main) as context:
        command = main.get_command(context, name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == COMMANDS[name]
    # Uncut in a list of them, on a terminal of 80 columns.
    assert len(COMMANDS[name]) <= 60


KNOWN_TO_NO_CLIENT = ("admission", "agent", "audit", "node", "planning", "state")
"""Who decides, plans and keeps books: a client prints what it was told."""

_LOADED = """
import sys
from pinfold.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("\\n".join(name for name in sys.modules if name.startswith("pinfold.")))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["status", "-o", "json"],
        ["delete", "pod/a"],
        ["logs", "pod/a"],
        ["apply", "pod.json"],
        ["explain", "pod/a"],
        ["run", "--detach", "true"],
    ],
    ids=" ".join,
)
def test_a_client_knows_no_manager_and_no_planner(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text('{"apiVersion": "v1", "kind": "Pod"}')
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *words],
        env={**os.environ, "PINFOLD_SOCKET": str(tmp_path / "nobody.sock")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no agent listens" in done.stderr or "none listens" in done.stderr
    loaded = done.stdout.split()
    assert f"pinfold.cli.commands.{words[0]}" in loaded
    assert {name.split(".")[1] for name in loaded}.isdisjoint(KNOWN_TO_NO_CLIENT)
