"""``--explain-exit``: what a status means, and what to do then."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import COMMANDS, main
from pinfold.cli.start.exit_statuses import GENERAL, OF_COMMANDS, statuses_of
from tests.scenes.command_lines import leaves


def explained(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("row", [*GENERAL, *OF_COMMANDS], ids=lambda row: row.meaning[:30])
def test_each_row_says_what_to_do(row: object) -> None:
    assert re.search(r"\S\.$", getattr(row, "remedy", ""))


@pytest.mark.parametrize("name", [name for name, _ in leaves()])
def test_each_command_tells_its_own_and_those_of_all(name: str) -> None:
    done = explained(*name.split(), "--explain-exit")
    assert done.exit_code == 0
    rows = statuses_of(name)
    taken = {row.status for row in rows}
    for row in (*rows, *(one for one in GENERAL if one.status not in taken)):
        assert plain(row.meaning) in plain(done.stdout)
        assert f"-> {plain(row.remedy)}" in plain(done.stdout)


def test_one_status_is_told_alone() -> None:
    told = plain(explained("readiness", "--explain-exit", "3").stdout)
    assert told.startswith("3 some are coming, and the rest are ready -> Wait")
    assert told.count("->") == 1


def test_a_status_with_several_meanings_has_each() -> None:
    assert explained("explain", "--explain-exit", "2").stdout.count("->") == 4


def test_a_group_tells_what_those_below_it_may_end_with() -> None:
    told = plain(explained("state", "--explain-exit", "1").stdout)
    assert "findings; notes do not count" in told
    assert "something is left that this does not mend" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--explain-exit", "7"), "the command's own status"),
        (("plan", "--explain-exit", "137"), "ended by SIGKILL"),
        (("--explain-exit", "130"), "interrupted by SIGINT"),
    ],
)
def test_a_status_that_others_have_set(words: tuple[str, ...], said: str) -> None:
    done = explained(*words)
    assert done.exit_code == 0
    assert said in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("plan", "--explain-exit", "9"),
            "pinfold plan does not end with 9; its statuses are 0, 1, 2, 130, 141, 143",
        ),
        (("--explain-exit", "plan"), "pinfold COMMAND --explain-exit [STATUS]"),
        (("--explain-exit", "99"), "pinfold does not end with 99"),
    ],
)
def test_what_is_no_status_is_said(words: tuple[str, ...], said: str) -> None:
    done = explained(*words)
    assert done.exit_code == 2
    assert said in plain(done.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_option_is_there_once(name: str) -> None:
    for _ in range(2):
        words = CliRunner().invoke(main, [name, "--help"]).stdout
        assert words.count("--explain-exit [STATUS]  ") == 1
