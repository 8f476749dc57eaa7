"""What no command line may have: an option given twice, a file without a name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pinfold.cli import COMMANDS, main


def options(command: click.Command, *path: str) -> Iterator[tuple[str, str]]:
    """Each command below, with each of its options that takes one value."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from options(below, *path, name)
    # Those of the program itself end it before a command line is looked at.
    for one in command.params if path else ():
        if isinstance(one, click.Option) and not (one.multiple or one.is_flag or one.count):
            yield from ((" ".join(path), name) for name in one.opts)


FOUND = list(options(main))


def test_every_command_is_looked_at() -> None:
    with_options = {path.split()[0] for path, _ in FOUND}
    assert with_options >= set(COMMANDS) - {"capture", "schema"}


@pytest.mark.parametrize(("path", "option"), FOUND, ids=str)
def test_an_option_given_twice_is_refused(path: str, option: str) -> None:
    result = CliRunner().invoke(main, [*path.split(), option, "1", option, "2"])
    assert result.exit_code == 2
    assert "is given twice, and takes one value" in result.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        # Two spellings of one option are the same one.
        (["plan", "-o", "json", "--output=text", "x.yaml"], "-o: is given twice"),
        (["plan", "--kubelet-config", "a", "x.yaml", "--kubelet-config=b"], "--kubelet-config: is"),
        (["state", "check", "--policy", "none", "--policy", "static", "f"], "--policy: is given"),
    ],
)
def test_wherever_they_stand(words: list[str], problem: str) -> None:
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_what_is_another_commands_is_not_looked_at() -> None:
    words = ["run", "--name", "a", "--", "sort", "--name", "b"]
    # Whoever runs a command in the foreground takes the signals from then on.
    line = [sys.executable, "-m", "pinfold", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert "is given twice" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(("sort", "Try 'sort"))


def test_options_of_many_values_and_flags_may_be_repeated() -> None:
    words = ["--policy-option", "a=b", "--policy-option", "c=d", "--no-color", "--no-color"]
    result = CliRunner().invoke(main, ["plan", "--machine", "1s4c2t", *words, "nowhere.yaml"])
    assert "is given twice" not in result.output
    assert "nowhere.yaml" in result.stderr


@pytest.mark.parametrize("words", [["plan"], ["state", "show"]])
def test_help_is_still_asked_for_by_one_letter(words: list[str]) -> None:
    line = [sys.executable, "-m", "pinfold", *words, "-h"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "-h, --help" in done.stdout


@pytest.mark.parametrize("words", [["plan", "a" * 5000], ["explain", "a" * 5000], ["plan", "loop"]])
def test_a_name_that_no_file_can_have_is_one_line(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    line = [sys.executable, "-m", "pinfold", *words]
    done = subprocess.run(
        line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_all_gates_of_a_maturity_are_a_gate() -> None:
    result = CliRunner().invoke(
        main, ["plan", "--machine", "1s4c2t", "--feature-gate", "AllAlpha=true", "nowhere.yaml"]
    )
    assert "unrecognized" not in result.stderr
    assert "nowhere.yaml" in result.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["plan", "--kubelet-config", "", "p.yaml"], "--kubelet-config"),
        (["plan", "-f", ""], "-f"),
        (["explain", "--devices=", "p.yaml"], "--devices"),
        (["status", "--socket", ""], "--socket"),
        (["plan", "--config-dir", "", "p.yaml"], "--config-dir"),
    ],
)
def test_a_file_without_a_name_is_refused(words: list[str], option: str) -> None:
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{option}: an empty name is no file; leave it out" in result.stderr
