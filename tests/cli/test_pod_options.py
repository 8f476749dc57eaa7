"""Manifests given with ``-f`` and namespaces with ``-n``, as a user of ``kubectl`` gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import Served, served

NODE = ("--machine", "2s4c2t", "--policy", "static", "--reserved-cpus", "0")
COMMANDS = {
    "plan": ("plan", *NODE, "-o", "json"),
    "explain": ("explain", *NODE, "-o", "json"),
    "rebalance": ("rebalance", "--dry-run", *NODE, "-o", "json"),
    "apply": ("apply", "--socket", "/nowhere/pinfold.sock"),
}


@pytest.fixture
def pod(tmp_path: Path) -> str:
    limits = {"cpu": "2", "memory": "1Gi"}
    spec = {"containers": [{"name": "app", "command": ["true"], "resources": {"limits": limits}}]}
    path = tmp_path / "pod.json"
    path.write_text(json.dumps({"kind": "Pod", "metadata": {"name": "feed"}, "spec": spec}))
    return str(path)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    """An agent with a pod of one name in two namespaces."""
    with served(tmp_path / "agent.sock") as server:
        for namespace in ("default", "team"):
            one = manifest("db", "1")
            server.ask(
                "POST", "/v1/pods", {**one, "metadata": {"name": "db", "namespace": namespace}}
            )
        yield server


def ask(api: Served, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--socket", str(api.path)])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_the_option_is_one_of_the_arguments(name: str, pod: str) -> None:
    plain = CliRunner().invoke(main, [*COMMANDS[name], pod])
    for option in ("-f", "--filename"):
        given = CliRunner().invoke(main, [*COMMANDS[name], option, pod])
        assert (given.exit_code, given.output) == (plain.exit_code, plain.output)
    assert plain.exit_code == (2 if name == "apply" else 0)


def test_both_are_read(pod: str, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(Path(pod).read_text().replace("feed", "other"))
    result = CliRunner().invoke(main, ["plan", *NODE, "-o", "json", str(other), "-f", pod])
    assert [one["name"] for one in json.loads(result.stdout)["pods"]] == ["feed", "other"]


@pytest.mark.parametrize("name", ["plan", "apply"])
def test_without_any_the_command_says_so(name: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr


def test_a_name_without_a_namespace_is_of_the_one_that_is_said(api: Served) -> None:
    result = ask(api, "delete", "pod/db", "-n", "team")
    assert (result.exit_code, result.stdout) == (0, "pod/team/db deleted\n")
    assert ask(api, "delete", "default/db", "--namespace", "team").stdout == "pod/db deleted\n"


def test_all_pods_of_a_namespace_are_those_of_no_other(api: Served) -> None:
    assert ask(api, "delete", "--all", "-n", "team").stdout == "pod/team/db deleted\n"
    assert ask(api, "delete", "--all", "-A").stdout == "pod/db deleted\n"


def test_a_kind_stands_before_names(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("other", "1"))
    done = ask(api, "explain", "pod", "db", "other", "-o", "jsonpath={.explanations[*].pods[0]}")
    assert done.stdout == "default/db default/other"
    assert ask(api, "explain", "db", "-o", "jsonpath={.name}").stdout == "db"
    done = ask(api, "delete", "pods", "db", "other", "-o", "name")
    assert sorted(done.stdout.split()) == ["pod/db", "pod/other"]
    assert ask(api, "delete", "po", "db", "-n", "team").stdout == "pod/team/db deleted\n"
    named = manifest("db", "1")
    named["metadata"]["namespace"] = "team"
    api.ask("POST", "/v1/pods", named)
    assert ask(api, "delete", "pod", "team/db").stdout == "pod/team/db deleted\n"
    refused = ask(api, "delete", "pod", "pod/db")
    assert refused.exit_code == 2
    assert "no need to say the kind twice; write pod/NAME" in refused.stderr
    assert "no pod default/pod" in ask(api, "delete", "pod").stderr


def test_a_bare_word_beside_files_is_a_file(api: Served, pod: str) -> None:
    done = ask(api, "explain", "db", pod, *NODE)
    assert done.exit_code == 2
    assert done.stderr == "Error: db: no such file or folder\n"
    for words in ((pod, "pod", "feed"), ("-f", pod, "pod", "feed"), ("-f", pod, "feed")):
        done = ask(api, "explain", *NODE, *words, "-o", "jsonpath={.name}")
        assert (done.exit_code, done.stdout) == (0, "feed"), words
    done = CliRunner().invoke(main, ["explain", "nofile", "--socket", "/nowhere/s"])
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: nofile: no such file, and of pods: no agent listens")


def test_what_all_does_not_go_with_is_named(api: Served) -> None:
    done = ask(api, "delete", "--all", "x", "-f", "y.yaml")
    assert "--all ends all pods: leave out x -f y.yaml, or leave out --all" in done.stderr


@pytest.mark.parametrize("words", [("--all", "-A", "-n", "team"), ("pod/db", "-A")])
def test_two_answers_to_whose_pods_are_refused(api: Served, words: tuple[str, ...]) -> None:
    result = ask(api, "delete", *words)
    assert result.exit_code == 2
    assert "--all-namespaces goes with --all" in result.stderr


@pytest.mark.parametrize(
    "command", [("explain", "pod/db"), ("logs", "pod/db"), ("resize", "pod/db", "--cpus", "1")]
)
def test_who_is_not_in_the_namespace_is_not_found(api: Served, command: tuple[str, ...]) -> None:
    result = ask(api, *command, "-n", "nobody")
    assert result.exit_code != 0
    assert "nobody/db" in result.stderr
    assert "nobody/db" not in ask(api, *command, "-n", "team").stderr


def test_several_pods_of_an_agent_are_one_document(api: Served) -> None:
    result = ask(api, "explain", "pod/db", "team/db", "-o", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["admitted"], document["rejected"]) == (0, 2, 0)
    assert [one["pods"] for one in document["explanations"]] == [["default/db"], ["team/db"]]
    alone = json.loads(ask(api, "explain", "pod/db", "-o", "json").stdout)
    assert document["explanations"][0]["explanation"] == alone


def test_the_history_of_a_namespace_is_that_of_its_pods(api: Served) -> None:
    def pods(*words: str) -> list[str]:
        entries = json.loads(ask(api, "history", *words, "-o", "json").stdout)["entries"]
        return [one["pod"] for one in entries]

    assert set(pods("-n", "team")) == {"team/db"}
    assert pods("-n", "nobody") == []
    assert pods("-A") == pods() != pods("-n", "team")
    assert set(pods("pod/db", "-n", "team")) == {"team/db"}
    assert len(pods("-n", "team", "--limit", "1")) == 1
    # What has happened since in another namespace takes none of their places.
    for number in range(3):
        api.ask("POST", "/v1/pods", manifest(f"late-{number}", ""))
    assert pods("-n", "team", "--limit", "1") == ["team/db"]
    assert pods("--limit", "1") == ["default/late-2"]


def test_a_kind_that_is_none_is_refused_with_those_that_are(api: Served) -> None:
    done = ask(api, "history", "--kind", "admited")
    assert done.exit_code == 2
    assert "'admited' is none; there are admitted, rejected, adopted, " in done.stderr
    told = {one["kind"] for one in api.ask("GET", "/v1/history").json["entries"]}
    assert told == {"admitted"}
    several = ask(api, "history", "--kind", "rejected,admitted", "--kind", "moved", "-o", "json")
    assert {one["kind"] for one in json.loads(several.stdout)["entries"]} == told


def test_the_status_of_a_namespace_lists_its_pods(api: Served) -> None:
    def namespaces(*words: str) -> list[str]:
        pods = json.loads(ask(api, "status", *words, "-o", "json").stdout)["pods"]
        return [one["namespace"] for one in pods]

    assert namespaces("-n", "team") == ["team"]
    assert namespaces("-A") == namespaces() == ["default", "team"]


@pytest.mark.parametrize("command", [("status",), ("history",), ("explain", "pod/db")])
def test_one_namespace_and_all_exclude_each_other(api: Served, command: tuple[str, ...]) -> None:
    result = ask(api, *command, "-A", "-n", "team")
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr
