"""The examples of ``--help``: they run, and the manual has them, too."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pinfold.cli import COMMANDS, main
from pinfold.cli.manual import manual_page
from pinfold.cli.start.command_line import check_command_line
from pinfold.cli.start.examples import EXAMPLES
from tests.roots import ROOT


def command_of(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_that_need_nothing_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path / "examples")
    for one in EXAMPLES[name]:
        program, called, *words = shlex.split(one.line)
        assert (program, called in COMMANDS) == ("pinfold", True)
        # Each can be read, also where it needs an agent.
        check_command_line(click.Context(main), command_of(called), called, words)
        command_of(called).make_parser(click.Context(main)).parse_args([*words])
        if one.alone:
            done = CliRunner().invoke(main, [called, *words])
            assert done.exit_code == 0, done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_manual_have_them(name: str) -> None:
    helped = CliRunner().invoke(main, [name, "--help"]).output
    page = manual_page(("pinfold", name), command_of(name)).replace("\\-", "-")
    assert ("Examples:" in helped) == (".SH EXAMPLES" in page) == (name in EXAMPLES)
    for one in EXAMPLES.get(name, ()):
        assert f"  {one.line}\n" in helped
        assert f".B {one.line}\n" in page
