"""The same option has the same name, metavar and type in all commands; numbers say their range."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from pinfold.cli import COMMANDS, main
from pinfold.cli.client import Seconds
from pinfold.config.settings import SETTINGS, Setting
from tests.scenes.command_lines import leaves

OTHERWISE = {
    "--at": {"simulate", "readiness"},
    "--cpus": {"resize", "run", "shield"},
    "--node": {
        "plan",
        "explain",
        "rebalance",
        "readiness",
        "hugepages allocate",
        "hugepages release",
    },
    "--output": {"capture", "state repair", "state convert", "convert"},
    "--to": {"convert", "state convert"},
    "--root": {"audit", "capture", "hugepages show", "hugepages allocate", "hugepages release"},
    "--config": {"agent"},
    "--manifests": {"agent"},
    "-w": {"status", "run"},
    "--namespace": {"quota serve", "classes serve"},
    "-f": {"logs"},
    # All addresses are what a replica is asked at, and nothing that a page begins with.
    "--listen": {"serve"},
}
"""Options that are called alike and mean something else by command; those commands."""


def _options() -> Iterator[tuple[str, str, click.Option]]:
    for name, command in leaves():
        for option in command.params:
            if isinstance(option, click.Option):
                for word in (*option.opts, *option.secondary_opts):
                    yield word, name, option


WORDS = sorted({word for word, _, _ in _options()})


@pytest.mark.parametrize("word", WORDS)
def test_an_option_is_the_same_in_all_commands(word: str) -> None:
    shapes = {
        (option.metavar, option.type.name, option.multiple, tuple(sorted(option.opts)))
        for found, name, option in _options()
        if found == word
        and name not in OTHERWISE.get(word, ())
        and name not in OTHERWISE.get(option.opts[-1], ())
    }
    # An agent takes its own settings without the names of a kubelet's flags.
    own = {name for name, _ in leaves() if name.startswith(("state", "agent"))}
    if word in {setting.option for setting in SETTINGS}:
        shapes = {
            (option.metavar, option.type.name, option.multiple, ())
            for found, name, option in _options()
            if found == word and name not in own
        }
    assert len(shapes) <= 1, shapes


def test_a_place_of_many_files_is_called_alike() -> None:
    assert "FOLDER" not in {option.metavar for _, _, option in _options()}


def test_what_is_measured_in_time_takes_a_duration() -> None:
    for _, _, option in _options():
        if option.metavar == "SECONDS":
            assert isinstance(option.type, Seconds), option.opts


def test_what_takes_a_value_says_what_it_is() -> None:
    for _, name, option in _options():
        value = (
            not option.is_flag and not option.count and not isinstance(option.type, click.Choice)
        )
        if value:
            assert option.metavar, f"{name} {option.opts}"
            assert re.fullmatch(r"[A-Za-z/\[\]=|:.,]+", option.metavar)
        assert option.help or isinstance(option.type, click.Choice), f"{name} {option.opts}"


@pytest.mark.parametrize("setting", [one for one in SETTINGS if one.option], ids=lambda s: s.field)
@pytest.mark.parametrize("command", ["plan", "explain", "rebalance"])
def test_a_kubelets_own_flags_are_taken(command: str, setting: Setting) -> None:
    words = {word for word, name, _ in _options() if name == command}
    assert {setting.kubelet_flag, setting.option} <= words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plann",), "No such command 'plann'. (Did you mean one of: 'explain', 'plan'?)"),
        (("help", "plan"), "No such command 'help'. pinfold --help lists the commands;"),
        (("-n", "x", "status"), "No such option '-n': options go after the command, as in"),
        (("plan", "-A", "-"), "'-A'. This command takes what it is given, of every namespace."),
        (("version",), "No such command 'version'. pinfold --version prints it."),
        (("get", "pods"), "No such command 'get'. pinfold status -o wide lists the pods"),
        (("status", "--no-headers"), "No such option '--no-headers'. Names alone: -o name"),
        (("status", "--selector", "a=b"), "Pods are chosen by --namespace, and by their names."),
        (("plan", "--topology", "2s4c2t", "-"), "A machine is given with --machine."),
        (("plan", "--topology-policy", "none", "-"), "Did you mean --topology-manager-policy?"),
        (("plan", "--machin", "2s4c2t", "-"), "Did you mean '--machine'?"),
        (("simulate", "--seed", "x", "f"), "'x' is no whole number from 0 to 9007199254740991."),
        (("simulate", "--workers", "0", "f"), "0 is no whole number from 1 to 4096."),
        (("history", "--limit", "0"), "0 is no whole number from 1 to 1000."),
        (("logs", "a", "--tail", "-1"), "-1 is no whole number from 0."),
        (("exec", "a", "--", "sh"), "No such command 'exec'. pinfold run COMMAND runs"),
        (("ps",), "No such command 'ps'. pinfold status -o wide lists the pods of an agent."),
        (("history", "-f"), "No such option '-f'. pinfold status --watch follows an agent."),
        (("plan", "--dry-run", "x"), "No such option '--dry-run'. A plan changes nothing anyway."),
        (("apply", "--dry-run", "x"), "'--dry-run'. pinfold plan FILE says what would become"),
        (("apply", "--wait", "x"), "'--wait'. apply returns when the pods are admitted;"),
        (("status", "pod/x"), "argument (pod/x). pinfold explain pod/NAME tells of one pod;"),
        (("plan", "-f", "https://x/a.yaml"), "-f: https://x/a.yaml: addresses are not read;"),
        (("apply", "http://x/a.yaml"), "Error: http://x/a.yaml: addresses are not read;"),
        (("explain", "HTTPS://x/a.yaml"), "Error: HTTPS://x/a.yaml: addresses are not read;"),
        (("plan", "--machine", "https://x/m", "-"), "--machine: https://x/m: addresses are not"),
    ],
)
def test_what_is_not_known_has_a_hint(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    unknown = {"plann", "help", "version", "get", "exec", "ps", "-n"}
    assert words[0] in {*COMMANDS, *unknown}


def test_the_socket_is_told_with_its_variable() -> None:
    helped = " ".join(CliRunner().invoke(main, ["status", "--help"]).output.split())
    assert "Without it: PINFOLD_SOCKET, else /run/pinfold/pinfold.sock." in helped
    assert "(/run" not in helped


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status",), "; ask the agent of a node of the cluster with --node NAME; on the node"),
        (("explain", "pod/x"), "; read a pod of the cluster with --from-cluster; on the node"),
        (("delete", "pod/x"), "; call it on the node itself, or there start one with: pinfold"),
    ],
)
def test_on_a_laptop_the_cluster_comes_first(words: tuple[str, ...], said: str) -> None:
    line = [*words, "--socket", "/nowhere/s.sock"]
    done = CliRunner().invoke(main, line, prog_name="kubectl pinfold")
    assert done.exit_code == 2
    assert f"no agent listens on /nowhere/s.sock{said}" in done.stderr
    here = CliRunner().invoke(main, line)
    assert "no agent listens on /nowhere/s.sock; start one with: pinfold agent" in here.stderr
