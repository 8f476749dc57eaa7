"""The manual pages: all that a command's help says, in roff that nobody warns of."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pinfold import __version__
from pinfold.cli import main
from pinfold.cli.manual import RELEASED, manual_page, walk
from pinfold.cli.shipped import shipped
from pinfold.cli.start.status_words import rows_of
from tests.roots import ROOT

PAGES = [*walk(main)]
DAY = "1767225600"


def read(roff: str) -> str:
    """What a reader sees, on one line."""
    text = "\n".join(
        line for line in roff.splitlines() if not re.match(r"\.(TP|PP|br|nf|fi)$", line)
    )
    text = re.sub(r"^\.[A-Z]+ ", "", text, flags=re.MULTILINE)
    for written, shown in (("\\-", "-"), ("\\(dq", '"'), ("\\&", ""), ("\\e", "\\")):
        text = text.replace(written, shown)
    return " ".join(text.split())


@pytest.mark.parametrize(("names", "command"), PAGES, ids=["-".join(names) for names, _ in PAGES])
def test_a_page_has_all_that_the_help_has(names: tuple[str, ...], command: click.Command) -> None:
    page = read(manual_page(names, command))
    with click.Context(command, info_name=names[-1], help_option_names=["-h", "--help"]) as context:
        for one in command.get_params(context):
            if isinstance(one, click.Option) and not one.hidden:
                for word in (*one.opts, *one.secondary_opts):
                    assert word in page
                assert " ".join((one.help or "").split()) in page
    for row in rows_of(" ".join(names[1:])):
        assert " ".join(row.meaning.split()) in page
        assert row.remedy in page
    for paragraph in (command.help or "").split("\n\n"):
        assert " ".join(paragraph.replace("\b", "").split()) in page


def test_what_is_roffs_is_text() -> None:
    @click.command(help=".TH is 'no' macro here\n\n'and \\fBnothing\\fP is \"bold\"")
    def odd() -> None:
        pass

    page = manual_page(("pinfold", "odd"), odd)
    assert "\n\\&.TH is 'no' macro here\n" in page
    assert "\n\\&'and \\efBnothing\\efP is \\(dqbold\\(dq\n" in page


def test_the_same_sources_have_the_same_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", DAY)
    assert shipped() == shipped()
    page = shipped()["share/man/man1/pinfold-plan.1"].decode()
    assert page.startswith('.TH "PINFOLD\\-PLAN" "1" "2026-01-01" "pinfold ')
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    page = shipped()["share/man/man1/pinfold-plan.1"].decode()
    assert f'"1" "{RELEASED}" "pinfold' in page


@pytest.mark.parametrize("epoch", ["253402300800", "9" * 25, "9" * 5000, "soon"])
def test_a_time_that_is_none_is_told_by_the_name_of_its_variable(
    epoch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    done = CliRunner().invoke(main, ["man", "plan"])
    assert done.exit_code == 2
    assert done.stderr == (
        f"Error: SOURCE_DATE_EPOCH={epoch[:40]}: has to be seconds since 1970, up to the year "
        "9999; unset it for the day of the version\n"
    )


def test_a_version_has_a_day_once_the_changelog_has_it() -> None:
    heading = re.compile(rf"^## \[{re.escape(__version__)}\] - (.+)$", re.MULTILINE)
    released = heading.findall((ROOT / "CHANGELOG.md").read_text())
    assert (released or [""]) == [RELEASED]


@pytest.mark.parametrize("words", [(), ("plan",), ("state", "check")], ids=" ".join)
def test_a_page_is_printed_where_nobody_reads_it(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, ["man", *words])
    assert done.exit_code == 0
    assert done.stdout == manual_page(("pinfold", *words), dict(PAGES)["pinfold", *words])


def test_a_page_that_there_is_not() -> None:
    done = CliRunner().invoke(main, ["man", "state", "chek"])
    assert done.exit_code == 2
    assert "there is no command 'state chek'; pinfold --help lists them" in done.stderr


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", DAY)
    for names, command in PAGES:
        (tmp_path / f"{'-'.join(names)}.1").write_text(manual_page(names, command))
    return sorted(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc")
def test_mandoc_has_nothing_to_warn_of(pages: list[Path]) -> None:
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", *pages], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_has_nothing_to_warn_of(pages: list[Path]) -> None:
    for page in pages:
        command = ["groff", "-man", "-Tutf8", "-ww", "-Kutf8", str(page)]
        done = subprocess.run(command, capture_output=True, check=True)
        assert done.stderr == b"", page
        assert b"EXIT STATUS" in re.sub(rb"\x1b\[\d*m|.\x08", b"", done.stdout)
