"""What a command imports: what it uses, and no more."""

from __future__ import annotations

import click
import pytest
from click.shell_completion import BashComplete

from pinfold.cli import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says_of_itself(name: str) -> None:
    with click.Context(main) as context:
        command = main.get_command(context, name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == COMMANDS[name]


def test_commands_and_options_are_completed() -> None:
    complete = BashComplete(main, {}, "pinfold", "_PINFOLD_COMPLETE").get_completions
    assert [item.value for item in complete([], "st")] == ["state", "status"]
    assert [item.value for item in complete([], "-")] == ["--version", "-h", "--help"]
    assert "--watch" in [item.value for item in complete(["status"], "--")]
    assert [item.value for item in complete(["state"], "sh")] == ["show"]
