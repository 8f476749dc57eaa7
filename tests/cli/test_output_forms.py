"""``-o``: all forms of one answer say the same, in all commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from pinfold.cli import main
from pinfold.cli.forms import Forms
from pinfold.cli.start.command_line import without_equals
from pinfold.cli.told_documents import pods_table
from tests.roots import ROOT
from tests.scenes.command_lines import SILENT, Lines, command_lines, leaves
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import served

EXAMPLES = ROOT / "examples"
PLAN = ("plan", "--machine", "2s8c2t", "--kubelet-config", f"{EXAMPLES}/kubelet.yaml")
PODS = f"{EXAMPLES}/pods"

FORMS = {
    name: set(option.type.choices)
    for name, command in leaves()
    for option in command.params
    if isinstance(option.type, Forms)
}
TELLING = sorted(name for name, forms in FORMS.items() if "json" in forms)
"""Commands with a document."""
CHANGING = {"apply", "resize", "hugepages allocate", "hugepages release", "audit", "status"}
"""Whose second answer is another one: something has changed, or time has passed."""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    with command_lines(tmp_path_factory.mktemp("lines")) as made:
        yield made


@pytest.mark.parametrize("command", TELLING)
def test_yaml_and_templates_have_the_document_of_json(
    command: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINFOLD_SOCKET", str(lines.socket))

    def told(form: str) -> str:
        return run(*lines.of(command)[3:], "-o", form).stdout

    document = json.loads(told("json"))
    listed = yaml.safe_load_all(told("yaml"))
    told_again = next(iter(listed))
    if command == "convert":
        assert told_again == document["items"][0]
    elif command in CHANGING:
        assert told_again.keys() == document.keys()
    else:
        assert told_again == document
    first = next(key for key, value in document.items() if isinstance(value, str | int))
    assert told(f"jsonpath=<{{.{first}}}>") == f"<{document[first]}>"


def test_every_command_that_prints_has_the_forms_of_its_document() -> None:
    assert {"plan", "status", "explain", "history", "apply", "resize", "topology"} <= {*TELLING}
    for name in TELLING:
        assert {"yaml", "jsonpath=EXPR", "jsonpath-file=FILE"} <= FORMS[name]
    others = {
        name
        for name, command in leaves()
        for option in command.params
        if isinstance(option, click.Option) and "-o" in option.opts and name not in FORMS
    }
    # Here it is the file that is written.
    assert others == {"capture", "state repair", "state convert"} - SILENT


def test_names_are_what_other_commands_take() -> None:
    names = run(*PLAN, PODS, "-o", "name").stdout.split()
    assert "pod/web-0" in names
    assert "pod/trading/order-db-0" in names
    document = json.loads(run(*PLAN, PODS, "-o", "json").stdout)
    explained = run("explain", *PLAN[1:], PODS, *names, "-o", "jsonpath={.admitted} {.rejected}")
    admitted = sum(pod["admitted"] for pod in document["pods"])
    assert explained.stdout == f"{admitted} {len(names) - admitted}"
    assert explained.exit_code == 0


def test_a_table_has_a_row_for_each_pod(lines: Lines) -> None:
    done = run(*PLAN, PODS, "-o", "wide")
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    document = json.loads(run(*PLAN, PODS, "-o", "json").stdout)
    assert head[:5] == ["NAMESPACE", "NAME", "STATUS", "QOS", "CPUS"]
    assert {*head[5:]} <= {"NUMA", "DEVICES", "REASON"}
    for row, pod in zip(rows, document["pods"], strict=True):
        told = dict(zip(head, row, strict=True))
        assert (told["NAMESPACE"], told["NAME"]) == (pod["namespace"], pod["name"])
        assert told["STATUS"] == ("Admitted" if pod["admitted"] else "Rejected")
        owned = [one["cpus"] for one in pod["containers"] if one["exclusive"]]
        assert (told["CPUS"] == "<none>") == (not owned)
        assert len(owned) != 1 or told["CPUS"] == owned[0]
    status = run("status", "--socket", lines.socket, "-o", "wide")
    assert status.stdout.split()[:2] == ["NAMESPACE", "NAME"]
    assert "\ndefault " in status.stdout
    compared = run(*PLAN, "--compare", f"{EXAMPLES}/kubelet-new.yaml", PODS, "-o", "wide")
    assert compared.exit_code == 2
    assert "-o wide: this answer has no list of pods" in compared.stderr


def test_the_columns_of_a_table_keep_their_places() -> None:
    main_one = {"name": "c", "cpus": "2-3", "exclusive": True, "numa_nodes": [0]}
    pod = {"namespace": "default", "name": "a", "phase": "Running", "qos": "Guaranteed"}
    failing = {**main_one, "restarts": 2, "exit_code": 1}
    rows = [
        {**pod, "containers": [main_one]},
        {**pod, "containers": [main_one, failing]},
        {**pod, "phase": "Rejected", "reason": "OutOfcpu", "containers": []},
        {**pod, "containers": [{**failing, "exit_code": None}]},
    ]
    for some in (rows[:1], rows):
        head, *lines = [line.split() for line in pods_table({"pods": some}).splitlines()]
        assert head[:6] == ["NAMESPACE", "NAME", "STATUS", "QOS", "CPUS", "NUMA"]
        assert {len(line) for line in lines} == {len(head)}
    told = [dict(zip(head, line, strict=True)) for line in lines]
    assert [one["STATUS"] for one in told] == ["Running", "CrashLoopBackOff", "Rejected", "Running"]
    assert [one["RESTARTS"] for one in told] == ["<none>", "2", "<none>", "2"]
    assert [one["REASON"] for one in told] == ["<none>", "<none>", "OutOfcpu", "<none>"]


def test_names_of_what_is_applied_are_of_those_that_run(tmp_path: Path) -> None:
    (tmp_path / "pods.json").write_text(
        json.dumps({"kind": "List", "items": [manifest("big", "999"), manifest("small", "2")]})
    )
    with served(tmp_path / "s") as agent:
        words = ("apply", tmp_path / "pods.json", "--socket", agent.path)
        done = run(*words, "-o", "name")
        assert (done.exit_code, done.stdout) == (1, "pod/small\n")


def test_a_namespace_without_pods_is_told(tmp_path: Path) -> None:
    with served(tmp_path / "s") as agent:
        agent.ask("POST", "/v1/pods", manifest("a", "2"))
        words = ("status", "--socket", agent.path, "-n")
        for form in ("text", "wide"):
            done = run(*words, "nope", "-o", form)
            assert done.exit_code == 0
            assert done.stderr == "note: no pods in namespace nope; there are pods in default\n"
            assert run(*words, "default", "-o", form).stderr == ""


def test_names_of_a_comparison_are_those_that_change() -> None:
    changed = run(*PLAN, "--compare", f"{EXAMPLES}/kubelet-new.yaml", PODS, "-o", "name").stdout
    assert changed.split() == ["pod/trading/matching-engine", "pod/trading/risk-model"]


def test_a_template_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_text("{range .pods[*]}{.name}{'\\n'}{end}")
    done = run(*PLAN, PODS, "-o", f"jsonpath-file={file}")
    assert "web-0\n" in done.stdout
    done = run(*PLAN, PODS, "-o", f"jsonpath-file={file}.none")
    assert done.exit_code == 2
    assert done.stderr == f"Error: -o jsonpath-file={file}.none: No such file or directory\n"
    file.write_bytes(b"\xff")
    done = run(*PLAN, PODS, "-o", f"jsonpath-file={file}")
    assert (done.exit_code, "not UTF-8 text" in done.stderr) == (2, True)


def test_a_file_of_a_template_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * ((1 << 20) + 1))
    for file in ("/dev/zero", str(tmp_path / "large")):
        done = run(*PLAN, PODS, "-o", f"jsonpath-file={file}")
        told = f"Error: -o jsonpath-file={file}: larger than 1 MiB; is it a template?\n"
        assert (done.exit_code, done.stdout, done.stderr) == (2, "", told)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (
            "table",
            "'table' is not one of text, json, yaml, jsonpath=EXPR, jsonpath-file=FILE, wide,",
        ),
        ("json=x", "'json=x' is not one of text, json, yaml"),
        ("jsonpath", "template format specified but no template given: -o jsonpath=EXPR."),
        ("jsonpath=", "template format specified but no template given: -o jsonpath=EXPR."),
        ("jsonpath={.a", "Error: -o jsonpath: unclosed action {.a ^"),
        ("jsonpath={.pods[99]}", "Error: -o jsonpath: array index out of bounds: index 99, length"),
    ],
)
def test_a_form_that_cannot_be_is_told_in_one_error(form: str, said: str) -> None:
    done = run(*PLAN, PODS, "-o", form)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert said in " ".join(done.stderr.split())


def test_a_template_without_braces_is_printed_with_a_hint() -> None:
    done = run(*PLAN, PODS, "-o", "jsonpath=.pods")
    assert done.stdout == ".pods"
    assert done.stderr == "note: -o jsonpath: it has no {...}, so it is printed as it is\n"


@pytest.mark.parametrize("command", ["state convert", "state repair", "capture"])
def test_a_form_where_a_file_is_meant_writes_none(
    command: str, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [one for one in lines.of(command)[3:] if "node.tar" not in one and one != "-o"]
    done = run(*words, "-o", "json")
    assert done.exit_code == 2
    assert "'json' is a form, and here -o is a file; write ./json" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_field_that_the_document_has_not_is_told() -> None:
    done = run(*PLAN, PODS, "-o", "jsonpath={.items[*].metadata.name}")
    assert (done.exit_code, done.stdout.strip()) == (0, "")
    assert done.stderr.startswith("note: -o jsonpath: the document has no .items; it has version, ")
    assert " pods" in done.stderr
    done = run(*PLAN, PODS, "-o", "jsonpath={.items[*].name}{.machine.name}")
    assert done.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        ("-o=name",),
        ("-o=jsonpath={range .pods[*]}{.name}{'='}{end}",),
        (f"-f={PODS}", "-o=name"),
    ],
)
def test_an_option_of_one_letter_takes_an_equals_sign(words: tuple[str, ...]) -> None:
    pods = () if words[0].startswith("-f") else (PODS,)
    letters = [part for word in words for part in (word[:2], word[3:])]
    assert run(*PLAN, *pods, *words).stdout == run(*PLAN, *pods, *letters).stdout != ""


def test_an_equals_sign_that_is_not_the_options_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("=p.json").write_text(json.dumps(manifest("a", "2")))
    assert "'=name' is not one of text" in run(*PLAN, "-f", "=p.json", "-o", "=name").stderr
    assert run(*PLAN, "-f", "=p.json", "-o", "name").stdout == "pod/a\n"
    assert run(*PLAN, "-f==p.json", "-o", "name").stdout == "pod/a\n"
    # What follows a command that is run is that command's.
    line = ["run", "--cpus=1", "--", "printf", "%s", "-o=x"]
    command = main.get_command(click.Context(main), "run")
    assert command is not None
    assert without_equals(click.Context(main), command, line[1:]) == line[1:]
    assert without_equals(click.Context(main), command, ["echo", "-w=1"]) == ["echo", "-w=1"]
