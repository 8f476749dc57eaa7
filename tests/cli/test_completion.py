"""What may come next on a command line, by the table and by the agent."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.cli.completion_table import table
from pinfold.cli.completion_values import FREE, values_of
from pinfold.completion.engine import Answer, complete
from pinfold.completion.program import split
from pinfold.completion.sources import SOURCES
from pinfold.completion.table import Command, read_table
from tests.scenes.command_lines import Lines, command_lines, leaves

TABLE = table()


def completed(*words: str) -> list[str]:
    return [word for word, _ in answer(*words).words]


def answer(*words: str) -> Answer:
    *before, word = words
    return complete(TABLE, before, word, SOURCES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("st",), ["state", "status"]),
        (("state", "re"), ["repair"]),
        (("plan", "--kubelet-v"), ["--kubelet-version"]),
        (("plan", "--kubelet-version", ""), ["1.34", "1.35", "1.36", "1.37"]),
        (("plan", "--output=s"), ["--output=svg"]),
        (("plan", "-o", "jsonp"), ["jsonpath=", "jsonpath-file="]),
        (("plan", "-ojson", "--each-pod", "--each"), []),
        (("plan", "--policy", "s"), ["static"]),
        (("plan", "--cpu-manager-policy", "s"), ["static"]),
        (("plan", "--policy-option", "full"), ["full-pcpus-only="]),
        (
            ("plan", "--policy-option", "full-pcpus-only="),
            ["full-pcpus-only=true", "full-pcpus-only=false"],
        ),
        (("history", "--kind", "moved,und"), ["moved,undone"]),
        (("history", "--kind", "moved,mo"), []),
        (("profile", "show", "h"), ["hyper-tuned"]),
        (("readiness", "--explain-exit", "3"), ["3"]),
        (("man", "state", "ver"), ["versions"]),
        (("man", "plan", ""), []),
        (("run", "--", "--cp"), []),
        (("run", "--cpus", "2", "--det"), ["--detach"]),
        (("run", "sh", "--cp"), []),
        (("plan", "--no-such-option", "--each"), ["--each-pod"]),
        (("nonsense", "--wh"), []),
    ],
)
def test_words(words: tuple[str, ...], expected: list[str]) -> None:
    assert completed(*words) == expected


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("plan", ""), "files"),
        (("plan", "--config-dir", ""), "folders"),
        (("plan", "--machine", ""), "files"),
        (("explain", "x"), "files"),
        (("plan", "--policy", ""), ""),
        (("run", "cat", ""), "files"),
        (("capture", "-o", ""), "files"),
    ],
)
def test_files(words: tuple[str, ...], files: str) -> None:
    assert answer(*words).files == files


def test_options_have_the_words_of_their_help() -> None:
    told = dict(answer("plan", "--comp").words)
    assert told["--compare"].startswith("Plan the same pods under this second")
    assert all(len(text) <= 80 for text in told.values())


def _commands(command: Command) -> Iterator[Command]:
    yield command
    for below in command.commands.values():
        yield from _commands(below)


def test_every_command_and_option_is_in_the_table() -> None:
    for name, command in leaves():
        found = TABLE
        for word in name.split():
            found = found.commands[word]
        spelled = {word for option in found.options for word in option.words}
        for one in command.params:
            if isinstance(one, click.Option):
                assert {*one.opts, *one.secondary_opts} <= spelled, name
        assert {"-h", "--help", "--explain-exit"} <= spelled
        assert len(found.arguments) == sum(
            isinstance(one, click.Argument) for one in command.params
        )


def test_every_source_is_known() -> None:
    asked = {
        values.source
        for command in _commands(TABLE)
        for values in (
            *(option.takes for option in command.options if option.takes),
            *(argument.takes for argument in command.arguments),
        )
    }
    assert asked - {""} == {*SOURCES}


KNOWN = re.compile(r"FILE|DIR|PATH|SRC|MANIFEST|pod/|NAMESPACE|K=|\bV\b|COMMAND|MACHINE")
"""In what the help calls a value: somebody knows which there are."""


def test_a_value_that_somebody_knows_is_completed() -> None:
    for name, command in leaves():
        for one in command.params:
            if isinstance(one, click.Option) and (one.is_flag or one.count):
                continue
            if values_of(one, tuple(name.split())) is FREE:
                known = KNOWN.search(one.metavar or "")
                assert not known, f"{name} {one.opts}: say in completion_values"


_WORDS = sorted(
    {
        word
        for command in _commands(TABLE)
        for word in (*command.commands, *(w for option in command.options for w in option.words))
    }
)


@given(
    before=st.lists(st.one_of(st.sampled_from(_WORDS), st.text(max_size=5))),
    word=st.one_of(st.sampled_from(_WORDS), st.text(max_size=5)),
)
def test_what_is_offered_begins_as_the_word_does(before: list[str], word: str) -> None:
    for offered, text in complete(TABLE, before, word, dict.fromkeys(SOURCES, _nobody)).words:
        assert offered.startswith(word)
        assert "\n" not in f"{offered}{text}"
        assert "\t" not in f"{offered}{text}"


def _nobody(_line: object, _begun: str) -> tuple[()]:
    return ()


@given(words=st.lists(st.text("ab '\"\\=", max_size=4), max_size=4))
def test_a_line_of_any_characters_has_words(words: list[str]) -> None:
    assert split(" ".join(words)) or not " ".join(words).strip()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pinfold plan ", ["pinfold", "plan", ""]),
        ("pinfold plan 'my fi", ["pinfold", "plan", "my fi"]),
        ('pinfold plan "my fi', ["pinfold", "plan", "my fi"]),
        ("pinfold plan my\\ fi", ["pinfold", "plan", "my fi"]),
    ],
)
def test_a_line_is_split_as_a_shell_does(line: str, words: list[str]) -> None:
    assert split(line) == words


def test_the_table_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "table.json"
    monkeypatch.setattr("pinfold.completion.table.FILE", file)
    assert read_table() is None
    file.write_bytes(msgspec.json.encode(TABLE))
    assert read_table() == TABLE


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    with command_lines(tmp_path_factory.mktemp("completion")) as found:
        yield found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("logs", ""), ["pod/db"]),
        (("logs", "d"), ["db"]),
        (("logs", "pod/"), ["pod/db"]),
        (("delete", "pod/db", ""), []),
        (("logs", "-n", "other", ""), []),
        (("logs", "-n", ""), ["default"]),
        (("logs", "pod/db", "-c", ""), ["c0"]),
        (("logs", "nobody", "-c", ""), []),
        (("explain", "--pod", ""), ["db"]),
        (("rebalance", "--resize", ""), ["pod/db="]),
    ],
)
def test_words_of_the_agent(lines: Lines, words: tuple[str, ...], expected: list[str]) -> None:
    command, *rest = words
    assert completed(command, "--socket", str(lines.socket), *rest) == expected


def asked(path: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pinfold", "__complete", *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PINFOLD_SOCKET": path},
    )


def test_the_program_answers_as_cobra_does(lines: Lines) -> None:
    done = asked(str(lines.socket), "resize", "po")
    assert done.stdout.splitlines() == ["pod/db\tRunning", ":4"]
    assert asked(str(lines.socket), "plan", "--resize", "").stdout == "pod/db=\tRunning\n:6\n"


@pytest.mark.parametrize(
    ("onto", "status", "words"),
    [
        (">/dev/full", 1, "Error: standard output: No space left on device\n"),
        (">&-", 1, "Error: standard output: it is closed; >/dev/null is for what nobody wants"),
        (">/dev/full 2>/dev/full", 1, ""),
        (">&- 2>&-", 1, ""),
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_an_answer_that_cannot_be_written(onto: str, status: int, words: str) -> None:
    # It has to be late, so that nobody reads any more.
    script = f'(sleep 0.5; exec "$0" -m pinfold __complete plan --po) {onto}'
    line = ["bash", "-c", script, sys.executable]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == bool(words)


def test_a_terminal_that_hangs_up_before_the_answer() -> None:
    terminal, end = pty.openpty()
    line = [sys.executable, "-m", "pinfold", "__complete", "plan", "--po"]
    os.close(terminal)
    done = subprocess.run(line, stdout=end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(end)
    assert (done.returncode, done.stderr) == (1, "Error: standard output: Input/output error\n")


def test_bytes_that_are_no_text_come_back_as_they_are() -> None:
    line = [sys.executable, "-m", "pinfold", "__complete", "history", "--kind"]
    done = subprocess.run([*map(os.fsencode, line), b"\xff,mov"], capture_output=True, check=True)
    assert done.stdout.startswith(b"\xff,moved")


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "who never answers"])
def test_without_an_agent_there_is_silence(tmp_path: Path, *, listens: bool) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        if listens:
            server.bind(path)
            server.listen()
        done = asked(path, "logs", "")
    assert (done.stdout, done.stderr) == (":4\n", "")


def test_an_agent_that_drips_is_not_waited_for(tmp_path: Path) -> None:
    """Each piece comes in time, and all of them never do."""
    path, over = str(tmp_path / "s"), threading.Event()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def drip() -> None:
            with server.accept()[0] as connection:
                connection.settimeout(5)
                try:
                    while not over.wait(0.1):
                        connection.sendall(b"x")
                except OSError:
                    pass

        thread = threading.Thread(target=drip)
        thread.start()
        done = asked(path, "logs", "")
        over.set()
        thread.join()
    assert (done.stdout, done.stderr) == (":4\n", "")


def test_nodes_are_those_of_the_manifests(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "kind: Node\nmetadata:\n  labels: {a: b}\n  name: worker-1\n---\n"
        "kind: Pod\nmetadata: {name: web}\n---\n"
        "apiVersion: v1\nkind: Node\nmetadata: {name: worker-2}\n"
    )
    for words in ((str(file), "--node", ""), ("-f", str(tmp_path), "--node", "work")):
        assert completed("plan", *words) == ["worker-1", "worker-2"]


def test_what_is_no_small_file_has_no_nodes(tmp_path: Path) -> None:
    """Devices, pipes and sockets, large files, and many of them: no memory, and no waiting."""
    node = "kind: Node\nmetadata: {name: far}\n"
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "large.yaml").write_text(node + "#" * (1 << 18))
    own = tmp_path / "own"
    own.mkdir()
    for number in range(20):
        (own / f"{number:02}.yaml").write_text("#" * ((1 << 18) - 1))
    (own / "99.yaml").write_text(node)
    words = ("/dev/zero", "~nobody-here/x", "a\0b", str(tmp_path), str(own))
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29));"
        "from pinfold.completion.engine import Line; from pinfold.completion.table import Command;"
        "from pinfold.completion.sources import SOURCES;"
        f"line = Line(Command(), {{'--filename': {words!r}}}, []);"
        "print(*SOURCES['nodes'](line, ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_programs_are_those_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "measure-it").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    assert completed("run", "--cpus", "1", "--", "mea") == ["measure-it"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_for_each_shell(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pinfold", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "__complete" in done.stdout
