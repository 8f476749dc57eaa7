"""Completion in real shells on a terminal: what a TAB makes of a line."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.scenes.command_lines import command_lines
from tests.scenes.shell_terminal import ShellTerminal, shell_terminal

_PROGRAM = """#!/bin/sh
# Completes as the program does; else says what it was called with.
case $1 in
__complete*) exec {python} -m pinfold "$@" ;;
*) printf 'called:'; printf '[%s]' "$@"; echo ;;
esac
"""

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}")
    return name


@contextmanager
def completing(shell: str, folder: Path, socket_path: str) -> Iterator[ShellTerminal]:
    """A shell that has read the script, and a program beside it that tells its arguments."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "pinfold"
    program.write_text(_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    script = folder / f"completion.{shell}"
    script.write_text(
        subprocess.run(
            [sys.executable, "-m", "pinfold", "completion", shell],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    environment = {"PINFOLD_SOCKET": socket_path}
    with shell_terminal(shell, folder, environment) as terminal:
        ready = {
            "bash": "PATH=$PWD/bin:$PATH; bind 'set enable-bracketed-paste off'",
            "zsh": "PATH=$PWD/bin:$PATH; autoload -Uz compinit; compinit -u -D",
            "fish": "set -p PATH $PWD/bin",
        }
        terminal.type(f"{ready[shell]}; source {script}; echo rea''dy\n")
        terminal.wait("ready")
        terminal.settle()
        yield terminal


def called(terminal: ShellTerminal, keys: str) -> str:
    """With what the program is called once these keys were pressed, with waits at each TAB."""
    pieces = keys.split("\t")
    for piece in pieces[:-1]:
        terminal.type(f"{piece}\t")
        terminal.settle(1.2)
    terminal.type(f"{pieces[-1]}\n")
    terminal.wait(r"called:.*\]\r?\n")
    return terminal.plain.partition("called:")[2].splitlines()[0].strip()


LINES = [
    ("pinfold topol\t", "[topology]"),
    ("pinfold plan --topology-manager-sc\tpo\t", "[plan][--topology-manager-scope][pod]"),
    ("pinfold state rep\t--dry\t", "[state][repair][--dry-run]"),
    ("pinfold plan --policy-option full-p\ttr\t", "[plan][--policy-option][full-pcpus-only=true]"),
    ("pinfold plan --output=sv\t", "[plan][--output=svg]"),
    ("pinfold plan --machine 2s16c2t@h\t", "[plan][--machine][2s16c2t@half]"),
    ("pinfold plan --kubelet-config my\t", "[plan][--kubelet-config][my file.yaml]"),
    ("pinfold plan --kubelet-config=my\t", "[plan][--kubelet-config=my file.yaml]"),
    ("pinfold plan -f sub\t", "[plan][-f][subfolder]"),
    ("pinfold history --kind admitted,rel\t", "[history][--kind][admitted,released]"),
    ("pinfold logs pod/d\t", "[logs][pod/db]"),
    ("pinfold logs pod/db -c c\t", "[logs][pod/db][-c][c0]"),
    ("pinfold resize d\t--cpus 2", "[resize][db][--cpus][2]"),
    ("pinfold schema audi\t", "[schema][audit]"),
    ("pinfold 'plan' --out\tjs\t", "[plan][--output][json]"),
]


def test_a_tab_completes(shell: str, tmp_path: Path) -> None:
    (tmp_path / "my file.yaml").touch()
    (tmp_path / "subfolder").mkdir()
    with (
        command_lines(tmp_path) as lines,
        completing(shell, tmp_path, str(lines.socket)) as terminal,
    ):
        for keys, expected in LINES:
            # zsh takes the slash back that it wrote after a folder.
            assert called(terminal, keys).replace("/]", "]") == expected, keys


def test_what_there_is_is_listed_with_what_it_does(shell: str, tmp_path: Path) -> None:
    with completing(shell, tmp_path, "nobody") as terminal:
        terminal.type("pinfold state \t\t")
        for word in ("show", "check", "versions", "repair", "convert"):
            terminal.wait(rf"\b{word}\b")
        if shell != "bash":
            terminal.wait("Print a state file readably")


def test_without_an_agent_nothing_is_said(shell: str, tmp_path: Path) -> None:
    with completing(shell, tmp_path, str(tmp_path / "nobody")) as terminal:
        assert called(terminal, "pinfold logs po\t") == "[logs][po]"
        assert "rror" not in terminal.plain


def test_a_tab_does_not_wait_for_an_agent_that_hangs(shell: str, tmp_path: Path) -> None:
    path = tmp_path / "hangs"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with completing(shell, tmp_path, str(path)) as terminal:
            terminal.type("pinfold logs \t")
            terminal.settle(1.5)
            terminal.type("x\n")
            assert terminal.wait(r"called:.*\]\r?\n", 5) < 3
